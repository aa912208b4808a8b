package alarms

import "time"

// Policy has the thresholds. A pair is the threshold from which a subject is bad, and the one below
// which it is good again. Zero fields mean the defaults, which have their reasons here.
type Policy struct {
	// A worker spills without end if it has written this share of its memory in SpillWindow: then
	// it replaces its contents every few minutes, and waits for a disk most of the time. A single
	// large result, written once, is less.
	SpillBad, SpillGood float64
	SpillWindow         time.Duration

	// A route is slow below this part of the median of comparable routes. Half of it is common
	// noise of a busy network; a quarter is not.
	RouteBad, RouteGood float64
	// Routes with smaller objects are not compared: latency would decide. Nor are those with fewer
	// fetches: the first ones wait for the connection.
	RouteObjectBytes uint64
	RouteFetches     uint64
	// An alarm needs a route whose fetches have taken so long in all, since less delays few tasks:
	// a slow network carries less in that time than a fast one. It also needs so many comparable
	// routes, itself among them: beside one other route nobody knows which of the two is usual.
	RouteTime        time.Duration
	ComparableRoutes int

	// A reader is slow if the best of its routes is below this part of the median of the comparable
	// readers. Readers differ by two or three, as their processors and their load do; a difference
	// of five has a cause.
	ReaderBad, ReaderGood float64
	// ReaderRoutes is the number of its routes that must be slow: one says nothing of the others.
	// The readers that are compared are at least ComparableRoutes.
	ReaderRoutes int

	// GPUErrorKept is the time for which the last error of a GPU is shown: an operator looks
	// within the hour, and a repeated error keeps the alarm.
	GPUErrorKept time.Duration

	// JournalLag: a record waits some ms for the disk. Callers of Submit wait for as long, so a
	// second is felt.
	JournalLagBad, JournalLagGood time.Duration

	// Tasks of a group fail again and again if so many attempts, and this share of all, failed in
	// FailWindow. One poisoned input fails fewer; a missing module fails all.
	FailuresBad, FailuresGood uint64
	FailedShare               float64
	FailWindow                time.Duration

	// A worker dies again and again if it died so often in DeathWindow. One death is a fault that
	// is mended by itself; three have a cause that stays.
	DeathsBad, DeathsGood int
	DeathWindow           time.Duration

	// A disk or memory is nearly full from this share on. Below the second one there is room for
	// the next large result again.
	DiskBad, DiskGood     float64
	MemoryBad, MemoryGood float64

	// PeerBad is the number of entries that another scheduler lacks. Each is a write that was
	// acknowledged; the leader keeps some hundreds for one that was away for a moment.
	PeerBad, PeerGood uint64

	// SchedulerBad is the time that a call waits for its turn. A step takes microseconds; a client
	// notices a quarter of a second.
	SchedulerBad, SchedulerGood time.Duration
}

func (p Policy) withDefaults() Policy {
	share := func(v *float64, d float64) {
		if *v == 0 {
			*v = d
		}
	}
	span := func(v *time.Duration, d time.Duration) {
		if *v == 0 {
			*v = d
		}
	}
	count := func(v *uint64, d uint64) {
		if *v == 0 {
			*v = d
		}
	}
	share(&p.SpillBad, 0.25)
	share(&p.SpillGood, 0.05)
	span(&p.SpillWindow, time.Minute)
	share(&p.RouteBad, 0.25)
	share(&p.RouteGood, 0.5)
	count(&p.RouteObjectBytes, 1<<20)
	count(&p.RouteFetches, 4)
	span(&p.RouteTime, 2*time.Second)
	if p.ComparableRoutes == 0 {
		p.ComparableRoutes = 3
	}
	share(&p.ReaderBad, 0.2)
	share(&p.ReaderGood, 0.4)
	if p.ReaderRoutes == 0 {
		p.ReaderRoutes = 2
	}
	span(&p.GPUErrorKept, time.Hour)
	span(&p.JournalLagBad, time.Second)
	span(&p.JournalLagGood, 250*time.Millisecond)
	count(&p.FailuresBad, 10)
	count(&p.FailuresGood, 3)
	share(&p.FailedShare, 0.5)
	span(&p.FailWindow, 5*time.Minute)
	if p.DeathsBad == 0 {
		p.DeathsBad = 3
	}
	if p.DeathsGood == 0 {
		p.DeathsGood = 1
	}
	span(&p.DeathWindow, 10*time.Minute)
	share(&p.DiskBad, 0.9)
	share(&p.DiskGood, 0.8)
	share(&p.MemoryBad, 0.9)
	share(&p.MemoryGood, 0.75)
	count(&p.PeerBad, 500)
	count(&p.PeerGood, 100)
	span(&p.SchedulerBad, 250*time.Millisecond)
	span(&p.SchedulerGood, 100*time.Millisecond)
	return p
}

// raiseAfter is the time for which a subject must be bad before its alarm is raised.
func (p *Policy) raiseAfter(k Kind) time.Duration {
	switch k {
	case GPUError, TasksFail, WorkerDies:
		return 0 // Their rules count over a time already.
	case DiskFull, JournalLags, SchedulerSlow:
		return 5 * time.Second // longer than a burst
	case PeerAway:
		return 15 * time.Second // A restart takes less.
	case SlowRoute:
		return 10 * time.Second // The rates are smoothed, and the slow fetches have taken RouteTime.
	case NoWorker, MemoryFull, SlowReader:
		return 30 * time.Second // A worker that restarts, or a wave of large tasks, takes about as long.
	case GPUThrottled:
		return time.Minute // It is normal for a while.
	case Spilling:
		return 2 * p.SpillWindow // One burst is bad for a whole window.
	}
	return time.Minute
}

// endAfter is the time for which a subject must be good before its alarm ends.
func (p *Policy) endAfter(k Kind) time.Duration {
	switch k {
	case NoWorker, PeerAway:
		return 5 * time.Second // Somebody has just started one and looks.
	case GPUError, WorkerDies:
		return 0 // Their rules keep them for long enough.
	case JournalLags, SchedulerSlow, DiskFull, MemoryFull, TasksFail:
		return 30 * time.Second
	case Spilling, SlowRoute, SlowReader, GPUThrottled:
		return time.Minute
	}
	return time.Minute
}
