// Package loop is a Loop: it owns the scheduler machine, the clock and the writes to the catalogue.
// All events of the scheduler are handled by one goroutine, which a bounded mailbox feeds, or by a
// caller's goroutine that takes the lock for a moment (see combine.go). The loop takes the waiting
// messages, steps the machine, and carries out the effects by writing into outboxes. The streams'
// own goroutines empty the outboxes, so the loop never waits for a network.
package loop

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/catalog"
	"github.com/millrace/millrace/server/functions"
	"github.com/millrace/millrace/server/members"
	"github.com/millrace/millrace/server/plugins"
	"github.com/millrace/millrace/server/sched"
	"github.com/millrace/millrace/server/schedapi"
	"github.com/millrace/millrace/server/templates"
)

// mailboxLength bounds the closures that wait for the loop. When the mailbox is full, senders
// block, and their streams with them.
const mailboxLength = 1024

const (
	// idleSleep is how long the loop sleeps without workers, clients and timers: it has nothing to
	// do then, so only a needless wake-up is at stake.
	idleSleep = time.Hour
	// idleLeft is the rest of that sleep below which it is made anew. It saves setting the alarm
	// after each message.
	idleLeft = time.Minute
)

// Config sets up a loop.
type Config struct {
	Machine sched.Config
	// Cluster describes this scheduler. WorkerLease is the longest silence of a worker before it is
	// declared lost; 0: 5 s. Life 0: drawn at random.
	Cluster schedapi.Cluster
	// ReconnectGrace is the time that a worker whose connection broke has to reconnect. 0: 2 s.
	ReconnectGrace time.Duration
	// RestartGrace is the time that workers have to come back after a restart from a journal. 0: 15
	// s.
	RestartGrace time.Duration
	// UnrecordedTasks bounds the new tasks whose records are not durable; a submission may exceed
	// it. 0: 2^20, which is far below the numbers that a restart leaves out.
	UnrecordedTasks int
	// Templates bounds the templates of graphs that are kept, which use a quarter of
	// Machine.MemoryBytes at most. Zero: templates.DefaultLimits.
	Templates templates.Limits
	// NativeOps are native ops that are accepted before any worker has registered.
	NativeOps []string
	Log       *slog.Logger
	// Clock returns the time, by which all of the loop goes; nil: time.Now. Random returns 64
	// random bits that cannot be guessed; nil: those of crypto/rand. A simulation has others.
	Clock  func() time.Time
	Random func() uint64
}

// Loop implements schedapi.Scheduler. The mutex owning guards the fields unless they say otherwise.
type Loop struct {
	config  Config
	log     *slog.Logger
	catalog *catalog.Catalog
	machine *sched.Machine

	mailbox chan func()
	// posted counts the closures that were posted and did not run yet. wake ends the sleep of Run.
	posted atomic.Int64
	wake   chan struct{}
	// stopped is closed when Run has returned: no closure runs after that.
	stopped chan struct{}
	// draining is closed when the scheduler begins to stop.
	draining chan struct{}
	// shutdown is closed when a client has asked the cluster to stop.
	shutdown chan struct{}

	// owning is held by the goroutine that does the loop's work: the one of Run, or a caller's (see
	// tryStepInline). Run keeps it when it returns, so that no caller can take it afterwards.
	owning sync.Mutex
	// armed is the time at which the loop's alarm wakes it.
	armed time.Time
	// start never changes. All times that are compared must have a reading of the monotonic clock,
	// as start has, because the wall clock can jump.
	start time.Time
	now   time.Time
	// lastPass is the time of the loop's last pass. heartbeat is the time at which it must wake
	// again, even without work, so that a long gap between passes proves that the process stood
	// still (see renewLeases). idle is the time of the next wake-up without workers and clients.
	lastPass, heartbeat, idle time.Time
	effects                   []sched.Effect
	assignment                sched.Assignment
	timers                    timers

	workers workers
	clients clients
	// rebalance is the rebalance in progress; nil: none.
	rebalance    *rebalance
	coordination coordination

	deaths    deaths
	functions *functions.Machine
	plugins   *plugins.Machine
	templates templateStore // has its own lock
	datasets  uint64        // last number given out
	// nativeOps is sorted. It is replaced as a whole, and any goroutine may read it.
	nativeOps atomic.Pointer[[]string]

	dirty      dirty
	restarting restarting
	events     events // has its own lock
	// acknowledged says that a caller was told of a change that is not in the catalogue yet, so
	// that readers must wait for a commit. It is set before the answer is given, and any goroutine
	// may read it.
	acknowledged atomic.Bool
}

var _ schedapi.Scheduler = (*Loop)(nil)

// New returns a loop that does no work until Run is called.
func New(config Config) *Loop {
	config.Cluster.WorkerLease = cmp.Or(config.Cluster.WorkerLease, members.DefaultLease)
	config.ReconnectGrace = cmp.Or(config.ReconnectGrace, members.DefaultGrace)
	config.RestartGrace = cmp.Or(config.RestartGrace, members.DefaultRestartGrace)
	config.UnrecordedTasks = cmp.Or(config.UnrecordedTasks, sched.UnrecordedTasks)
	if config.Log == nil {
		config.Log = slog.New(slog.DiscardHandler)
	}
	if config.Clock == nil {
		config.Clock = time.Now
	}
	if config.Random == nil {
		config.Random = random64
	}
	for config.Cluster.Life == 0 {
		config.Cluster.Life = config.Random()
	}
	if config.Machine.FirstTask == 0 {
		config.Machine.FirstTask = firstTask(config.Cluster.Life)
	}
	start := config.Clock()
	l := &Loop{
		start: start, now: start, lastPass: start, heartbeat: start,
		config:   config,
		log:      config.Log,
		catalog:  catalog.New(),
		machine:  sched.New(config.Machine),
		mailbox:  make(chan func(), mailboxLength),
		wake:     make(chan struct{}, 1),
		stopped:  make(chan struct{}),
		draining: make(chan struct{}),
		shutdown: make(chan struct{}),
		workers: newWorkers(members.Config{
			Life: config.Cluster.Life, Lease: config.Cluster.WorkerLease, Grace: config.ReconnectGrace,
		}),
		clients: newClients(),

		coordination: newCoordination(uint64(start.UnixMicro())),

		functions: functions.New(),
		plugins:   plugins.New(uint64(start.UnixNano())),
		templates: newTemplates(config),
	}
	l.dirty.graphs = map[ids.GraphID]struct{}{}
	ops := slices.Sorted(slices.Values(config.NativeOps))
	l.nativeOps.Store(&ops)
	return l
}

// Run owns the machine until ctx ends. Call it once.
func (l *Loop) Run(ctx context.Context) {
	defer close(l.stopped)
	alarm := time.NewTimer(idleSleep)
	defer alarm.Stop()
	l.owning.Lock()
	for {
		if next := l.nextAlarm(); !next.Equal(l.armed) {
			l.armed = next
			alarm.Reset(next.Sub(l.config.Clock()))
		}
		l.owning.Unlock()
		var run func()
		ended := false
		select {
		case <-ctx.Done():
			ended = true
		case <-alarm.C:
		case <-l.wake:
		case run = <-l.mailbox:
		}
		l.owning.Lock()
		if ended {
			l.beginDraining()
			return
		}
		l.pass(run)
	}
}

// pass does the work that there is when the loop wakes. run is the first message; nil: none has
// arrived. The caller holds the lock.
func (l *Loop) pass(run func()) {
	if run == nil {
		l.armed = time.Time{}
	} else {
		// Messages that have arrived by now share one flush; later ones wait for the next pass.
		for more := len(l.mailbox); ; more-- {
			l.now = l.config.Clock()
			run()
			l.posted.Add(-1)
			if more == 0 {
				break
			}
			run = <-l.mailbox
		}
	}
	l.now = l.config.Clock()
	l.fire()
	l.flushSessions()
	l.flushClients()
	if l.commitDue() {
		l.commit()
	}
	l.beginSnapshot()
}

// Pass does what Run does when it wakes, and returns the time at which Run would wake next if no
// message arrived. It does nothing if Run would still sleep. A simulation, whose clock does not run
// by itself, calls Pass in place of Run: after each call to the loop, and at the times that Pass
// returns. Then all of the loop runs on the caller's goroutine.
func (l *Loop) Pass() (next time.Time) {
	l.owning.Lock()
	defer l.owning.Unlock()
	var run func()
	select {
	case run = <-l.mailbox:
	case <-l.wake:
	default:
		if l.armed.After(l.config.Clock()) {
			return l.armed
		}
	}
	l.pass(run)
	l.armed = l.nextAlarm()
	return l.armed
}

// Waiting reports whether messages wait for a pass.
func (l *Loop) Waiting() bool { return l.posted.Load() > 0 }

// nextAlarm returns the time at which the loop has work even if no message arrives.
func (l *Loop) nextAlarm() time.Time {
	if !l.idle.After(l.now.Add(idleLeft)) {
		l.idle = l.now.Add(idleSleep)
	}
	next := l.idle
	if l.workers.machine.Len()+len(l.clients.byID) > 0 {
		if !l.heartbeat.After(l.now) {
			l.heartbeat = l.now.Add(l.config.Cluster.WorkerLease / 4)
		}
		next = l.heartbeat
	}
	if at, ok := l.timers.next(); ok && at.Before(next) {
		next = at
	}
	if at, ok := l.workers.machine.NextDeadline(); ok && at.Before(next) {
		next = at
	}
	if at, ok := l.machine.NextDeadline(); ok && at.Before(next) {
		next = at
	}
	if at, ok := l.coordination.machine.NextDeadline(); ok && at.Before(next) {
		next = at
	}
	if at, ok := l.nextCommit(); ok && at.Before(next) {
		next = at
	}
	return next
}

// fire runs the timers that are due. The loop's own timers come first: they renew leases, which the
// machine would find expired after a long step.
func (l *Loop) fire() {
	// The loop wakes every heartbeat, a quarter of the lease, so a gap of two of them is late by
	// only one. A gap of more than three means a standstill. A client's lease is not much shorter
	// than a worker's, so one limit serves both.
	if gap := l.now.Sub(l.lastPass); gap > l.config.Cluster.WorkerLease*3/4 && l.workers.machine.Len()+len(l.clients.byID) > 0 {
		l.renewLeases(gap)
	}
	l.lastPass = l.now
	for {
		at, ok := l.timers.next()
		if !ok || at.After(l.now) {
			break
		}
		l.timers.pop()(at)
	}
	if at, ok := l.workers.machine.NextDeadline(); ok && !at.After(l.now) {
		l.checkMembers()
	}
	if at, ok := l.machine.NextDeadline(); ok && !at.After(l.now) {
		l.step(sched.TimePassed{})
	}
	if at, ok := l.coordination.machine.NextDeadline(); ok && !at.After(l.now) {
		l.coordinated(l.coordination.machine.TimePassed(l.now, l.coordination.effects[:0]))
		l.settleHolds()
	}
}

// post puts a closure into the mailbox without waiting for it to run.
func (l *Loop) post(ctx context.Context, run func()) error {
	l.posted.Add(1)
	select {
	case l.mailbox <- run:
		return nil
	case <-l.stopped:
		l.posted.Add(-1)
		return errStopped()
	case <-ctx.Done():
		l.posted.Add(-1)
		return ctx.Err()
	}
}

// call runs a closure that may change rows of the catalogue, and waits for it. A later Snapshot has
// these changes.
//
// If there is a journal, call returns only after the records of the changes are durable.
func (l *Loop) call(ctx context.Context, run func()) error {
	var record, wished uint64
	err := l.inspect(ctx, func() {
		l.restarting.awaited, l.restarting.wished = 0, 0
		run()
		record, wished = l.restarting.awaited, l.restarting.wished
		if l.dirty.any() {
			l.acknowledge()
		}
	})
	if err != nil {
		return err
	}
	if wished > record && l.durable(ctx, wished) != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	return l.durable(ctx, record)
}

// settle is call for what a caller that is gone leaves behind. Nobody waits until it is durable:
// the journal of a leader that was replaced answers when all calls have ended.
func (l *Loop) settle(run func()) {
	_ = l.inspect(context.Background(), func() { // It fails only if the loop has stopped.
		run()
		if l.dirty.any() {
			l.acknowledge()
		}
	})
}

// do is call for closures that may fail.
func (l *Loop) do(ctx context.Context, run func() error) error {
	var refused error
	if err := l.call(ctx, func() { refused = run() }); err != nil {
		return err
	}
	return refused
}

// inspect runs a closure as the loop and waits for it. Once the closure is in the mailbox, inspect
// waits even if ctx ends, so that the caller can read the closure's results. The wait lasts no
// longer than the loop's other work.
func (l *Loop) inspect(ctx context.Context, run func()) error {
	if l.tryStepInline(run) {
		return nil
	}
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
	return &schedapi.Error{Kind: schedapi.ErrDraining, Message: "the scheduler has stopped: connect to another one, or wait until it is back"}
}

// refuseIfDraining returns an error for calls that would begin new work while the scheduler is
// stopping.
func (l *Loop) refuseIfDraining() error {
	select {
	case <-l.draining:
		return &schedapi.Error{Kind: schedapi.ErrDraining, Message: "the scheduler is stopping and takes nothing new: wait until it is back"}
	default:
		return nil
	}
}

// step gives the machine an event and carries out the effects.
func (l *Loop) step(event sched.Event) {
	l.effects = l.machine.Step(l.now, event, l.effects[:0])
	l.carryOut()
	l.settleHolds()
}

// carryOut records the facts of one step, and carries out its effects, in order.
func (l *Loop) carryOut() {
	l.recordFacts()
	for i := range l.effects {
		effect := &l.effects[i]
		switch effect.Kind {
		case sched.EffectAssign:
			l.assign(effect)
		case sched.EffectRetract:
			if s := l.sessionOf(effect.Worker); s != nil {
				s.building.Retractions = append(s.building.Retractions, sched.TaskRef{Task: effect.Task, Attempt: effect.Attempt})
			}
		case sched.EffectFreeSlot:
			if s := l.sessionOf(effect.Worker); s != nil {
				s.building.FreedSlots = append(s.building.FreedSlots, sched.TaskRef{Task: effect.Task, Attempt: effect.Attempt})
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
			if effect.Ended {
				l.acknowledge() // The watches report the last task.
			}
			if effect.Failed {
				l.graphFailed(effect.Graph)
			}
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
		case sched.EffectKeep:
			if s := l.sessionOf(effect.Worker); s != nil {
				s.building.Keeps = append(s.building.Keeps, sched.Replica{Task: effect.Task, Generation: effect.Attempt})
			}
		case sched.EffectRetire, sched.EffectRestart:
			l.orderLeave(effect.Worker, effect.Kind == sched.EffectRestart)
		case sched.EffectWorkerChanged:
			if w := l.workers.get(effect.Worker); w != nil {
				l.workerChanged(w)
			}
		case sched.EffectRebalanceEnded:
			l.rebalanceEnded()
		case sched.EffectFunctionUnused:
			l.dropFunction(effect.Function)
		case sched.EffectRescue:
			l.rescue(effect)
		case sched.EffectUnmap:
			l.unmap(effect)
		case sched.EffectOrdersChanged:
			for _, c := range l.machine.ChangedOrders() {
				l.note(&c)
			}
		case sched.EffectTaskForgotten:
			// The loop keeps no state per task.
		}
	}
	if cap(l.effects) > keptEffects {
		l.effects = nil
	}
}

// keptEffects bounds the effect buffer that is kept for reuse, so that releasing a million tasks at
// once does not keep its memory for ever.
const keptEffects = 1 << 16

// Cluster returns the constant description of this scheduler.
func (l *Loop) Cluster() schedapi.Cluster { return l.config.Cluster }

// NativeOps returns the sorted names of the known native ops.
func (l *Loop) NativeOps() []string { return *l.nativeOps.Load() }

// Read runs read while no event is handled.
func (l *Loop) Read(ctx context.Context, read func(schedapi.Reader)) error {
	return l.inspect(ctx, func() { read(l.machine) })
}

// Draining is closed when the scheduler begins to stop.
func (l *Loop) Draining() <-chan struct{} { return l.draining }

// ShutdownRequested is closed after a call of Shutdown.
func (l *Loop) ShutdownRequested() <-chan struct{} { return l.shutdown }

// Shutdown orders the workers to stop, and closes ShutdownRequested so that the caller of Run ends
// the loop.
func (l *Loop) Shutdown(ctx context.Context, reason string) error {
	return l.call(ctx, func() {
		select {
		case <-l.shutdown:
			return
		default:
		}
		l.log.Info("the cluster is shut down", "reason", reason)
		l.happened(schedapi.EventShutdown, schedapi.SeverityWarning, "", "the cluster is shut down: %s", orNoReason(reason))
		for _, s := range l.workers.connected() {
			s.building.StopReason = "the cluster is shutting down: " + orNoReason(reason)
		}
		l.beginDraining()
		close(l.shutdown)
	})
}

// Drain ends all sessions and refuses new work. Workers keep their objects and connect to the next
// scheduler.
func (l *Loop) Drain(ctx context.Context) error { return l.call(ctx, l.beginDraining) }

func (l *Loop) beginDraining() {
	select {
	case <-l.draining:
		return
	default:
	}
	close(l.draining)
	for _, s := range l.workers.connected() {
		s.end()
	}
}

func orNoReason(reason string) string {
	if reason == "" {
		return "no reason given"
	}
	return reason
}
