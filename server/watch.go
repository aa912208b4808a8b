package server

import (
	"context"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/server/alarms"
	"github.com/millrace/millrace/server/schedapi"
	"github.com/millrace/millrace/server/web/stream"
)

const (
	// observeEvery is the time between two observations for alarms, as workers report every second.
	observeEvery = time.Second
	// observedWorkers bounds the workers that are observed, and observedUnserved the sets of tasks
	// that no worker can run.
	observedWorkers  = 4096
	observedUnserved = 16
	// shownRoutes bounds the routes in a summary, as each viewer gets them: the slowest are enough.
	shownRoutes = 32
)

// watch observes the cluster and gives the machine of alarms what it sees.
type watch struct {
	scheduler schedapi.Scheduler
	// limit is the memory that the scheduler may hold for tasks; 0: no limit.
	limit   uint64
	log     *slog.Logger
	policy  alarms.Policy
	machine *alarms.Machine
	current atomic.Pointer[alarmList]

	// peers are several schedulers with one journal; nil: this one is alone.
	peers      schedapi.Peers
	routes     []alarms.Route // memory for the next look
	comparison atomic.Pointer[alarms.Comparison]
}

// alarmList is what is raised at one time. It is never changed.
type alarmList struct {
	alarms   []alarms.Alarm
	revision uint64
}

func newWatch(scheduler schedapi.Scheduler, limit uint64, log *slog.Logger) *watch {
	w := &watch{scheduler: scheduler, limit: limit, log: log, machine: alarms.New(alarms.Policy{})}
	w.current.Store(&alarmList{})
	w.comparison.Store(&alarms.Comparison{})
	return w
}

// run observes until ctx ends.
func (w *watch) run(ctx context.Context) {
	tick := time.NewTicker(observeEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if seen, ok := w.observe(ctx); ok {
			w.step(time.Now(), seen)
		}
	}
}

// step gives the machine an observation, and publishes the alarms.
func (w *watch) step(now time.Time, seen *alarms.Observed) {
	for _, e := range w.machine.Step(now, seen) {
		a := &e.Alarm
		switch e.Kind {
		case alarms.Raised, alarms.Changed:
			w.log.Warn("an alarm", "alarm", a.ID, "severity", a.Severity.String(), "text", a.Text, "remedy", a.Remedy)
		case alarms.Ended:
			w.log.Info("an alarm has ended", "alarm", a.ID, "after", now.Sub(a.Since).Round(time.Second))
		}
	}
	last, list := w.current.Load(), w.machine.Alarms()
	if !slices.Equal(last.alarms, list) {
		w.current.Store(&alarmList{list, last.revision + 1})
	}
}

// Alarms returns what is raised now. The list must not be changed.
func (w *watch) Alarms() []alarms.Alarm { return w.current.Load().alarms }

// List is Alarms for the dashboard.
func (w *watch) List() ([]stream.Alarm, uint64) {
	now := w.current.Load()
	list := make([]stream.Alarm, 0, len(now.alarms))
	for _, a := range now.alarms {
		list = append(list, stream.Alarm{
			ID: a.ID, Kind: a.Kind.String(), Severity: a.Severity.String(), Since: a.Since, Subject: a.Subject, Text: a.Text, Remedy: a.Remedy,
		})
	}
	return list, now.revision
}

// SlowestRoutes has the slowest route of each reader at the last look at all of them, for the
// dashboard.
func (w *watch) SlowestRoutes() []stream.SlowRoute {
	slowest := w.comparison.Load().Slowest
	slowest = slowest[:min(len(slowest), shownRoutes)]
	list := make([]stream.SlowRoute, 0, len(slowest))
	for i := range slowest {
		s := &slowest[i]
		list = append(list, stream.SlowRoute{
			Reader: s.Reader, Peer: s.Source, Path: s.Path, BytesPerSecond: s.BytesPerSecond, Median: s.Median, Alike: s.Alike, Good: s.Good,
		})
	}
	return list
}

// observe returns the state of the cluster; false if the scheduler stops.
func (w *watch) observe(ctx context.Context) (*alarms.Observed, bool) {
	seen := &alarms.Observed{}
	began := time.Now()
	err := w.scheduler.Read(ctx, func(r schedapi.Reader) {
		seen.Scheduler.Delay = time.Since(began)
		totals := r.Totals()
		seen.Scheduler.HeldBytes, seen.Scheduler.LimitBytes = totals.HeldBytes+totals.InlineBytes+totals.DetailBytes+totals.TailBytes, w.limit
		for _, o := range r.OpTimes() {
			seen.Ops = append(seen.Ops, alarms.Op{Name: o.Op, Succeeded: o.Succeeded, Failed: o.Failed, LastFailure: o.LastFailure})
		}
		for _, u := range r.Unserved(observedUnserved) {
			seen.Unserved = append(seen.Unserved, alarms.Unserved{Op: u.Op, Key: u.Key, Why: u.Why, Tasks: u.Tasks})
		}
	})
	if err != nil {
		return nil, false
	}
	if j := w.scheduler.Journal(); j != nil {
		seen.Journal = &alarms.Journal{Lag: j.Lag, Trouble: j.Trouble, Lost: j.Lost}
	}
	if w.peers != nil {
		for _, p := range w.peers.Seen() {
			seen.Peers = append(seen.Peers, alarms.Peer{Address: p.Address, Votes: p.Votes, Away: p.Role == schedapi.PeerAway, Trouble: p.Trouble, Behind: p.Behind})
		}
	}
	workers, _ := w.scheduler.LastSnapshot().Workers(allStates(), 0, observedWorkers)
	newest := make(map[string]*schedapi.Worker, len(workers))
	for _, row := range workers {
		newest[row.Name] = row // Rows are in the order of registration.
	}
	for _, row := range workers {
		if newest[row.Name] == row {
			seen.Workers = append(seen.Workers, observedWorker(row))
		}
	}
	w.routes = observedRoutes(w.routes[:0], workers)
	compared := w.policy.Compare(w.routes)
	w.comparison.Store(&compared)
	seen.Routes, seen.Readers = compared.Doubtful, compared.Readers
	return seen, true
}

func allStates() []schedapi.WorkerState {
	return []schedapi.WorkerState{schedapi.WorkerActive, schedapi.WorkerDisconnected, schedapi.WorkerDraining, schedapi.WorkerDrained, schedapi.WorkerLost}
}

func observedWorker(row *schedapi.Worker) alarms.Worker {
	w := alarms.Worker{
		Name: row.Name, Lost: row.State == schedapi.WorkerLost, MemoryBytes: row.MemoryLimitBytes, MemoryUsedBytes: row.MemoryUsedBytes,
		MemoryEvictableBytes: row.MemoryEvictableBytes, SpillWrittenBytes: row.SpillWrittenBytes, DiskFailure: row.SpillFailure, GPU: row.GPU.UUID,
	}
	for i := range row.Tiers {
		if t := &row.Tiers[i]; t.Name == "disk" {
			w.DiskBytes, w.DiskUsedBytes = t.SizeBytes, t.UsedBytes
		}
	}
	if h := row.GPUHealth; h != nil {
		w.Throttled, w.Celsius, w.XIDs, w.UncorrectedECC, w.LastGPUEvent = h.Throttled, h.Celsius, h.XIDs, h.UncorrectedECC, h.LastEvent
	}
	for i := range row.Deaths {
		w.Deaths = append(w.Deaths, alarms.Death{At: row.Deaths[i].Time, Cause: row.Deaths[i].Cause})
	}
	return w
}

// observedRoutes appends the best open route of each pair of workers.
func observedRoutes(list []alarms.Route, workers []*schedapi.Worker) []alarms.Route {
	byName := make(map[string]*schedapi.Worker, len(workers))
	for _, row := range workers {
		byName[row.Name] = row
	}
	for _, row := range workers {
		if row.State == schedapi.WorkerLost {
			continue
		}
		// The paths to one peer are together, best first: the first open one counts.
		var why, done string
		for i := range row.Routes {
			r := &row.Routes[i]
			if r.PeerName == done {
				continue
			}
			if i > 0 && row.Routes[i-1].PeerName != r.PeerName {
				why = ""
			}
			if r.State != schedapi.RouteOpen {
				if why == "" {
					why = r.Reason
				}
				continue
			}
			done = r.PeerName
			peer := byName[r.PeerName]
			if peer == nil || peer.State == schedapi.WorkerLost {
				continue
			}
			list = append(list, alarms.Route{
				Reader: row.Name, Source: r.PeerName, Relation: relation(row, peer), Path: r.Lane(), Order: int(r.Path), Why: why,
				BytesPerSecond: r.BytesPerSecond, Bytes: r.Bytes, Fetches: r.Succeeded,
			})
		}
	}
	return list
}

// relation describes how two workers lie to each other: routes of one relation should be alike.
func relation(reader, source *schedapi.Worker) string {
	text := "hosts"
	if reader.Host == source.Host {
		text = "host"
	}
	return text + kindOfMemory(source) + kindOfMemory(reader)
}

func kindOfMemory(w *schedapi.Worker) string {
	if w.GPU.UUID != "" {
		return " gpu"
	}
	return " cpu"
}
