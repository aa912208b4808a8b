// Package loop is a Loop: it owns the scheduler machine, the clock and the catalogue's writes. Everything that happens
// to the scheduler happens on its one goroutine, fed by a bounded mailbox, or on that of a stream that takes its part for
// a moment: see drive.go. It drains what is there, steps the machine, and carries the effects out into outboxes that the
// streams' own goroutines empty: it never waits for a network.
package loop

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/catalog"
	"github.com/millrace/millrace/server/front"
	"github.com/millrace/millrace/server/sched"
)

// mailboxLength bounds what waits for the loop. Senders wait when it is full, and with them their streams.
const mailboxLength = 1024

// Config sets up a loop.
type Config struct {
	Machine sched.Config
	// Cluster says who this scheduler is. WorkerLease is how long a silent worker is waited for; 0: 5 s. Life 0: drawn at random.
	Cluster front.Cluster
	// ReconnectGrace is how long a worker whose connection broke may take to come back. 0: 2 s.
	ReconnectGrace time.Duration
	// NativeOps are known before any worker has registered.
	NativeOps []string
	Log       *slog.Logger
}

// Loop implements front.Scheduler. Fields are for who holds owning unless they say otherwise.
type Loop struct {
	config  Config
	log     *slog.Logger
	catalog *catalog.Catalog
	machine *sched.Machine

	mailbox chan func()
	// stopped is closed when no closure will run any more.
	stopped chan struct{}
	// draining is closed when the scheduler begins to stop.
	draining chan struct{}
	// shutdown is closed when somebody asked the cluster to stop.
	shutdown chan struct{}

	// owning is held by who does the loop's work, and for ever once it has ended.
	owning sync.Mutex
	// armed is when the loop wakes by itself.
	armed time.Time
	// start never changes. All times that are compared have, as it has, a reading of the monotonic clock: that one does not jump.
	start time.Time
	now   time.Time
	// alive is when the loop last ran, beat the time at which it must wake again, and idle the time at which it wakes
	// even if there is nothing to do. A longer gap means that the process stood still: see forgive.
	alive, beat, idle time.Time
	effects           []sched.Effect
	assignment        sched.Assignment
	timers            timers

	workers workers
	clients clients

	functions     map[ids.FunctionHash]*function
	functionBytes uint64
	datasets      uint64 // last number given out
	// nativeOps is sorted; replaced whole, read by anyone.
	nativeOps atomic.Pointer[[]string]

	dirty dirty
}

var _ front.Scheduler = (*Loop)(nil)

// New returns a loop that does nothing until Run.
func New(config Config) *Loop {
	if config.Cluster.WorkerLease == 0 {
		config.Cluster.WorkerLease = 5 * time.Second
	}
	if config.ReconnectGrace == 0 {
		config.ReconnectGrace = 2 * time.Second
	}
	if config.Log == nil {
		config.Log = slog.New(slog.DiscardHandler)
	}
	config.Machine.ReconnectGrace = config.ReconnectGrace
	for config.Cluster.Life == 0 {
		config.Cluster.Life = random64()
	}
	if config.Machine.FirstTask == 0 {
		config.Machine.FirstTask = firstTask(config.Cluster.Life)
	}
	start := time.Now()
	l := &Loop{
		start: start, now: start, alive: start, beat: start,
		config:    config,
		log:       config.Log,
		catalog:   catalog.New(),
		machine:   sched.New(config.Machine),
		mailbox:   make(chan func(), mailboxLength),
		stopped:   make(chan struct{}),
		draining:  make(chan struct{}),
		shutdown:  make(chan struct{}),
		workers:   newWorkers(),
		clients:   newClients(),
		functions: map[ids.FunctionHash]*function{},
	}
	l.dirty.graphs = map[ids.GraphID]struct{}{}
	ops := slices.Sorted(slices.Values(config.NativeOps))
	l.nativeOps.Store(&ops)
	return l
}

// Run owns the machine until ctx ends. It is called once.
func (l *Loop) Run(ctx context.Context) {
	defer close(l.stopped)
	alarm := time.NewTimer(time.Hour)
	defer alarm.Stop()
	l.owning.Lock()
	for {
		if next := l.nextAlarm(); !next.Equal(l.armed) {
			l.armed = next
			alarm.Reset(time.Until(next))
		}
		l.owning.Unlock()
		var run func()
		ended := false
		select {
		case <-ctx.Done():
			ended = true
		case <-alarm.C:
		case run = <-l.mailbox:
		}
		l.owning.Lock()
		if ended {
			l.beginDraining()
			return
		}
		if run == nil {
			l.armed = time.Time{}
		} else {
			// What has arrived meanwhile shares the flush; what arrives later does not delay it.
			for more := len(l.mailbox); ; more-- {
				l.now = time.Now()
				run()
				if more == 0 {
					break
				}
				run = <-l.mailbox
			}
		}
		l.now = time.Now()
		l.fire()
		l.flushSessions()
		l.flushClients()
		if l.commitDue() {
			l.commit()
		}
	}
}

// nextAlarm is when there is something to do even if nothing arrives.
func (l *Loop) nextAlarm() time.Time {
	if !l.idle.After(l.now.Add(time.Minute)) {
		l.idle = l.now.Add(time.Hour)
	}
	next := l.idle
	if len(l.workers.byName)+len(l.clients.byID) > 0 {
		if !l.beat.After(l.now) {
			l.beat = l.now.Add(l.config.Cluster.WorkerLease / 4)
		}
		next = l.beat
	}
	if at, ok := l.timers.next(); ok && at.Before(next) {
		next = at
	}
	if at, ok := l.machine.NextDeadline(); ok && at.Before(next) {
		next = at
	}
	if at, ok := l.nextCommit(); ok && at.Before(next) {
		next = at
	}
	return next
}

// fire runs what is due: the loop's timers first, since they renew leases that the machine would find ended after a long
// step.
func (l *Loop) fire() {
	// Twice the beat would be late by one beat; a client's lease is not shorter than a worker's by much.
	if gap := l.now.Sub(l.alive); gap > l.config.Cluster.WorkerLease*3/4 && len(l.workers.byName)+len(l.clients.byID) > 0 {
		l.forgive(gap)
	}
	l.alive = l.now
	for {
		at, ok := l.timers.next()
		if !ok || at.After(l.now) {
			break
		}
		l.timers.pop()(at)
	}
	if at, ok := l.machine.NextDeadline(); ok && !at.After(l.now) {
		l.step(sched.TimePassed{})
	}
}

// post hands a closure to the loop's goroutine without waiting for it to run.
func (l *Loop) post(ctx context.Context, run func()) error {
	select {
	case l.mailbox <- run:
		return nil
	case <-l.stopped:
		return errStopped()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// call runs a closure on the loop's goroutine. Once it is in the mailbox it is waited for even if ctx ends, so that
// the caller may read what it wrote; that takes no longer than the loop's other work.
func (l *Loop) call(ctx context.Context, run func()) error {
	done := make(chan struct{})
	if err := l.post(ctx, func() { run(); close(done) }); err != nil {
		return err
	}
	select {
	case <-done:
		return nil
	case <-l.stopped:
		return errStopped()
	}
}

func errStopped() error {
	return &front.Error{Kind: front.ErrDraining, Message: "the scheduler has stopped: connect to another one, or wait until it is back"}
}

// refuseIfDraining is the error of calls that would begin something new.
func (l *Loop) refuseIfDraining() error {
	select {
	case <-l.draining:
		return &front.Error{Kind: front.ErrDraining, Message: "the scheduler is stopping and takes nothing new: wait until it is back"}
	default:
		return nil
	}
}

// step tells the machine an event and carries out what it orders.
func (l *Loop) step(event sched.Event) {
	l.effects = l.machine.Step(l.now, event, l.effects[:0])
	l.carryOut()
}

// carryOut obeys the effects of one step, in order.
func (l *Loop) carryOut() {
	for i := range l.effects {
		effect := &l.effects[i]
		switch effect.Kind {
		case sched.EffectAssign:
			l.assign(effect)
		case sched.EffectRetract:
			if s := l.sessionOf(effect.Worker); s != nil {
				s.building.Retractions = append(s.building.Retractions, sched.TaskRef{Task: effect.Task, Attempt: effect.Attempt})
			}
		case sched.EffectCancel:
			if s := l.sessionOf(effect.Worker); s != nil {
				s.building.Cancellations = append(s.building.Cancellations, sched.TaskRef{Task: effect.Task, Attempt: effect.Attempt})
			}
		case sched.EffectRelease:
			if s := l.sessionOf(effect.Worker); s != nil {
				s.building.Releases = append(s.building.Releases, sched.Replica{Task: effect.Task, Generation: effect.Attempt})
			}
		case sched.EffectNotify:
			l.notify(effect)
		case sched.EffectClientExpired:
			l.forgetClient(effect.Client, true)
		case sched.EffectGraphChanged:
			l.dirty.graph(effect.Graph, l.now)
		case sched.EffectGraphRemoved:
			l.dirty.graph(effect.Graph, l.now)
		case sched.EffectAccept:
			if s := l.sessionOf(effect.Worker); s != nil {
				s.building.Accepted = append(s.building.Accepted, sched.Replica{Task: effect.Task, Generation: effect.Attempt})
			}
		case sched.EffectDrained:
			if s := l.sessionOf(effect.Worker); s != nil {
				l.log.Info("a worker may leave: nothing that is wanted is there alone", "worker", s.worker.name, "id", s.worker.id)
				s.building.Drained = true
			}
		case sched.EffectFunctionUnused:
			l.dropFunction(effect.Function)
		case sched.EffectRescue:
			l.rescue(effect)
		case sched.EffectUnmap:
			l.unmap(effect)
		case sched.EffectTaskForgotten:
			// Nothing here is kept by task.
		}
	}
	if cap(l.effects) > keptEffects {
		l.effects = nil
	}
}

// keptEffects bounds the effects whose memory is used again: giving up a million tasks at once must not cost it for good.
const keptEffects = 1 << 16

// Cluster returns who this scheduler is.
func (l *Loop) Cluster() front.Cluster { return l.config.Cluster }

// NativeOps returns the sorted names of native ops that are known.
func (l *Loop) NativeOps() []string { return *l.nativeOps.Load() }

// Read runs read on the loop's goroutine.
func (l *Loop) Read(ctx context.Context, read func(front.Reader)) error {
	return l.call(ctx, func() { read(l.machine) })
}

// Draining is closed when the scheduler begins to stop.
func (l *Loop) Draining() <-chan struct{} { return l.draining }

// ShutdownRequested is closed when Shutdown was called.
func (l *Loop) ShutdownRequested() <-chan struct{} { return l.shutdown }

// Shutdown tells the workers to stop, and asks whoever runs the loop to end it.
func (l *Loop) Shutdown(ctx context.Context, reason string) error {
	return l.call(ctx, func() {
		select {
		case <-l.shutdown:
			return
		default:
		}
		l.log.Info("the cluster is shut down", "reason", reason)
		for _, s := range l.workers.sessions() {
			s.building.StopReason = "the cluster is shutting down: " + orUnsaid(reason)
		}
		l.beginDraining()
		close(l.shutdown)
	})
}

// Drain ends all sessions and refuses new work; workers keep what they have and come back to the next scheduler.
func (l *Loop) Drain(ctx context.Context) error { return l.call(ctx, l.beginDraining) }

func (l *Loop) beginDraining() {
	select {
	case <-l.draining:
		return
	default:
	}
	close(l.draining)
	for _, s := range l.workers.sessions() {
		s.end()
	}
}

func orUnsaid(reason string) string {
	if reason == "" {
		return "no reason given"
	}
	return reason
}
