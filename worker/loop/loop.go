// Package loop is a Loop: it owns a worker's lifecycle machine and the clock, communicates with the
// scheduler, and connects store, device, paths and executors with each other.
//
// One goroutine at a time, the owner, steps the machine. Events from elsewhere (a message, an ended
// run, a fetched object) are posted to its inbox. Messages for the scheduler go to the outbox,
// which the session sends as fast as the stream takes them. Both are batches of what has
// accumulated: nothing waits until a batch is full.
package loop

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/memory/ledger"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/flow"
	"github.com/millrace/millrace/transfer/notify"
	"github.com/millrace/millrace/worker/device"
	"github.com/millrace/millrace/worker/executor"
	"github.com/millrace/millrace/worker/lifecycle"
	"github.com/millrace/millrace/worker/store"
	"github.com/millrace/millrace/worker/tasklog"
)

// Executors runs attempts in processes. The owner calls its methods; they do not wait.
type Executors interface {
	// Kinds are the kinds of runners that it has: "python", and the names of registered programs.
	Kinds() []string
	// Segments says whether processes of a kind can read memory besides the slab.
	Segments(kind string) bool
	// KindOf returns the kind of executor that a process is, "" if it is none that runs tasks now.
	KindOf(pid int) string
	// Start hands a run to a slot.
	Start(kind string, slot int, r *executor.Run)
	// Stop ends a run, begun or not; its result follows.
	Stop(kind string, slot int, ref lifecycle.Ref)
	// TakeBack returns a run as a result if it has not begun.
	TakeBack(kind string, slot int, ref lifecycle.Ref)
	// Registered passes on the worker's number and the size limit of inline results.
	Registered(worker ids.WorkerID, inlineBytes uint64)
	// DropFunctions makes the processes forget functions, identified by their hashes.
	DropFunctions(hashes [][]byte)
	// Deaths returns how many processes died, and the reason of the last death.
	Deaths() (n uint64, last string)
	// Close ends all processes and waits for them.
	Close()
}

// Config is fixed for the life of a worker.
type Config struct {
	// Registration describes the worker to the scheduler. The loop fills in inventory and running.
	Registration *workerv1.Registration
	// Scheduler is the connection to the scheduler. The caller closes it.
	Scheduler *grpc.ClientConn
	Device    device.Device
	// Health returns the reason why the device is lost for good, nil while it works. It is called
	// after a native operation has failed; if it returns an error, the worker ends with that error.
	// May be nil.
	Health func() error
	// GPUHealth returns the state of the worker's GPU, nil if that is unknown. May be nil.
	GPUHealth func() *millracev1.GpuHealth
	Store     *store.Store
	// Path fetches objects from peers. Nil: the worker has no peers.
	Path transfer.Path
	// Notifier sends completion notifications to peers and receives theirs. It must call the
	// worker's Completed, Requested, Handle and Left. Nil: this worker sends none, and its
	// registration must say so.
	Notifier *notify.Notifier
	// Executors may be nil: then the worker has native operations only. The caller must pass the
	// results to Worker.PostResults.
	Executors Executors
	Logs      *tasklog.Logs
	// Traffic returns the bytes received and sent since the start.
	Traffic func() (in, out uint64)
	// SchedulerTimeout is how long the scheduler may be unreachable. Default 60 s.
	SchedulerTimeout time.Duration
	// MemoryWait is how long an attempt waits for memory. Default 30 s.
	MemoryWait time.Duration
	// BorrowWait limits the time of a request for leases; after that the object is fetched. Default
	// 2 s.
	BorrowWait time.Duration
	// SubscriptionWait is how long the subscription of a peer is kept while its attempt is unknown
	// here: the assignment may still be on its way. After that the peer is told that the object
	// will not be made here. Default 2 s.
	SubscriptionWait time.Duration
	// SpinTime is the spin limit of native slots: the longest time that a slot without work polls
	// for more before it blocks, while the worker has attempts. See internal/spin. Default 0: it
	// blocks at once.
	SpinTime time.Duration
	Log      *slog.Logger
	// Ready, if set, is called by the owner at the first registration.
	Ready func(ids.WorkerID)
	// Alive, if set, is called by the owner about every second. If the calls stop, the worker
	// hangs.
	Alive func()
	// Drain, when it is closed, makes the worker take no new work, finish its attempts, and leave
	// as soon as the scheduler confirms that nothing is lost with it. After DrainGrace it leaves in
	// any case. May be nil.
	Drain      <-chan struct{}
	DrainGrace time.Duration
	// Cores is the number of processors that native operations may use together. Default: those
	// that this process may use.
	Cores int
	// Lifecycle are the machine's limits. Slots and resources are taken from the registration.
	Lifecycle lifecycle.Config
}

// capabilities are the optional abilities of the path; none without a path.
func (c *Config) capabilities() transfer.Capabilities {
	if c.Path == nil {
		return transfer.Capabilities{}
	}
	return c.Path.Capabilities()
}

// ErrSchedulerLost says that the scheduler was unreachable for longer than SchedulerTimeout.
var ErrSchedulerLost = errors.New("the scheduler is away")

// StoppedError is returned when the scheduler told the worker to stop.
type StoppedError struct{ Reason string }

// Error is part of error.
func (e *StoppedError) Error() string { return "stopped by the scheduler: " + e.Reason }

// RestartError is returned when the worker has left so that its supervisor starts it again.
type RestartError struct{ Reason string }

// Error is part of error.
func (e *RestartError) Error() string { return e.Reason }

// RefusedError says that the scheduler rejects this worker, and always will.
type RefusedError struct{ Err error }

// Error is part of error.
func (e *RefusedError) Error() string { return "the scheduler refuses this worker: " + e.Err.Error() }

func (e *RefusedError) Unwrap() error { return e.Err }

// Worker is one incarnation of a worker.
type Worker struct {
	config  Config
	log     *slog.Logger
	machine *lifecycle.Machine
	native  *native
	outbox  *outbox
	// fetching counts the goroutines of fetches, lease requests, rescues and the preparation of
	// routes; Run waits for them.
	fetching sync.WaitGroup
	// inlineBytes is the size of the largest result that is sent inline.
	inlineBytes atomic.Uint32
	// fetches records the last fetches for DescribeMemory.
	fetches fetchBook
	// borrowedBytes counts the bytes that were used in place at peers.
	borrowedBytes atomic.Uint64
	// self is the worker's number, 0 before it is registered. life identifies the run of the
	// scheduler that assigned the number, 0 if that scheduler has no such number.
	self atomic.Uint32
	life atomic.Uint64
	// busy: the machine has attempts. startedWork: the owner has started a run, a fetch or a lease
	// request; see poller.
	busy        atomic.Bool
	startedWork atomic.Bool
	cores       cores
	times       timeBook

	mu sync.Mutex
	// inbox is guarded by mu, as is ended: the runs whose deferred work is not done yet, see
	// settleEnded. wake wakes the owner goroutine and has room for one signal.
	inbox []any
	ended []*nativeRun
	wake  chan struct{}

	// settling is held during settleEnded.
	settling sync.Mutex

	// owning is held by the owner. It stays locked when the worker has stopped.
	owning sync.Mutex

	// The fields below belong to the owner. ticking: the ticker of the owner goroutine runs.
	ticking  bool
	attempts map[lifecycle.Ref]*attempt
	// session counts the registrations. Messages of earlier sessions are dropped.
	session   uint64
	ops       map[uint32]*op
	functions map[ids.FunctionHash]*millracev1.Function
	parked    []*attempt
	// emptied is an empty inbox slice for reuse.
	emptied []any
	// ending is the native run whose end the machine is handling, nil if there is none.
	ending *nativeRun
	peers  map[ids.WorkerID]transfer.Peer
	// reportedRoutes are the routes as they were last reported to the scheduler.
	reportedRoutes []flow.Route
	reservations   map[lifecycle.ReservationID]ledger.ReservationID
	// borrowing are the attempts that wait for leases. borrowedTimes counts the leases of each
	// object.
	borrowing     map[lifecycle.Ref]*attempt
	borrowedTimes map[ledger.ObjectID]int
	nearby        nearby
	// rescuing are the objects that are being copied out of the memory of dead peers.
	rescuing      map[ledger.ObjectID]bool
	subscriptions subscriptions
	// asked: the worker was told to leave through Config.Drain. drained: the scheduler has agreed
	// to that, or has ordered the worker to leave.
	asked, drained bool
	// takesFetch: the goroutine that is the owner now can carry out a fetch itself; that fetch is
	// stored in takenFetch.
	takesFetch bool
	takenFetch *fetching
	// stopped is the reason why the worker stops, nil while it runs.
	stopped error
	leaving bool
	// staying ends, through quit, when the worker leaves.
	staying context.Context //nolint:containedctx // a state that the session's goroutine waits for
	quit    context.CancelFunc
	// fetchCtx is the context of everything that belongs to one life of the scheduler. Its parent
	// is running, the context of Run.
	fetchCtx, running context.Context //nolint:containedctx // for the goroutines that Run waits for
	cancelFetches     context.CancelFunc
	// renewing is set while the worker drops everything of an earlier life of the scheduler, and
	// nil otherwise. lending counts the goroutines that request leases.
	renewing *renewal
	lending  int
	// writes are the objects that clients wrote and that the scheduler has not accepted yet.
	writes    map[ledger.ObjectID]*writing
	executors map[string]bool
}

// New returns a worker that is not running yet.
func New(c Config) *Worker {
	if c.SchedulerTimeout <= 0 {
		c.SchedulerTimeout = time.Minute
	}
	if c.MemoryWait <= 0 {
		c.MemoryWait = 30 * time.Second
	}
	if c.BorrowWait <= 0 {
		c.BorrowWait = 2 * time.Second
	}
	if c.SubscriptionWait <= 0 {
		c.SubscriptionWait = 2 * time.Second
	}
	if c.Cores <= 0 {
		c.Cores = runtime.GOMAXPROCS(0)
	}
	c.Lifecycle.Slots = int(c.Registration.GetSlots())
	c.Lifecycle.Resources = c.Registration.GetResources()
	w := &Worker{
		config: c, log: c.Log, machine: lifecycle.New(c.Lifecycle), outbox: newOutbox(),
		wake:         make(chan struct{}, 1),
		attempts:     make(map[lifecycle.Ref]*attempt),
		ops:          make(map[uint32]*op),
		functions:    make(map[ids.FunctionHash]*millracev1.Function),
		peers:        make(map[ids.WorkerID]transfer.Peer),
		reservations: make(map[lifecycle.ReservationID]ledger.ReservationID),
		borrowing:    make(map[lifecycle.Ref]*attempt), borrowedTimes: make(map[ledger.ObjectID]int),
		rescuing:      make(map[ledger.ObjectID]bool),
		writes:        make(map[ledger.ObjectID]*writing),
		subscriptions: subscriptions{waiting: make(map[ledger.ObjectID][]*attempt), subscribers: make(map[ledger.ObjectID][]subscriber)},
		executors:     make(map[string]bool),
	}
	w.cores.share, w.cores.slots = c.Cores, max(c.Lifecycle.Slots, 1)
	w.staying, w.quit = context.WithCancel(context.Background())
	w.nearby = newNearby(&w.config)
	c.Store.OnGone(func(id ledger.ObjectID, _ error) { w.post(gone{id}) })
	if c.Executors != nil {
		for _, kind := range c.Executors.Kinds() {
			w.executors[kind] = true
		}
	}
	return w
}

// Self returns the worker's number, 0 before it is registered.
func (w *Worker) Self() ids.WorkerID { return ids.WorkerID(w.self.Load()) }

// PostResults passes results of executors to the worker.
func (w *Worker) PostResults(results []executor.Result) { w.post(results) }

// Types that are posted to the inbox, besides []*nativeRun, []executor.Result and lifecycle events.
type (
	// message is a message of the scheduler in a session.
	message struct {
		session  uint64
		response *workerv1.SessionResponse
	}
	// opening requests a registration for a new session.
	opening struct{ reply chan<- *opened }
	opened  struct {
		session      uint64
		registration *workerv1.Registration
		// life is the life of the scheduler in the last session, 0 if there was none.
		life uint64
	}
	// sessionFailed says that the session loop has given up.
	sessionFailed struct{ err error }
	// alone says for how long there has been no session.
	alone struct{ since time.Duration }
	// gained says that an object is here that the scheduler was not told of.
	gained struct{ report *workerv1.ObjectReport }
	// reservationResult is the outcome of a reservation that was not ready at once.
	reservationResult struct {
		ref         lifecycle.Ref
		reservation lifecycle.ReservationID
		store.ReservationResult
	}
	// gone says that the store has given up an object.
	gone struct{ object ledger.ObjectID }
)

const (
	beat = time.Second
	tick = 5 * time.Millisecond
	// aloneGrace is how long a worker that was asked to leave, and runs nothing, waits for an
	// unreachable scheduler.
	aloneGrace = 5 * time.Second
	// farewell is how long a leaving worker tries to deliver its last message.
	farewell = 2 * time.Second
	// keepBytes is the amount of free memory whose pages are kept.
	keepBytes = 256 << 20
	// parkTime is how long an attempt waits for its function.
	parkTime = 30 * time.Second
)

// Run runs the worker until the context ends, the scheduler stops or drains the worker, or the
// scheduler is unreachable for too long. It returns nil if the worker has left properly.
func (w *Worker) Run(ctx context.Context) error {
	work, cancel := context.WithCancel(context.WithoutCancel(ctx))
	w.running = work
	w.beginFetches()
	w.native = newNative(nativeConfig{
		device: w.config.Device, store: w.config.Store, memoryWait: w.config.MemoryWait, inlineBytes: &w.inlineBytes, lost: w.deviceLost,
		post: func(runs []*nativeRun) { w.post(runs) }, hand: func(runs []*nativeRun) { w.stepInlineQuietly(runs) }, idle: w.signal,
		spinTime: w.config.SpinTime, busy: &w.busy, poller: w.poller(), cores: &w.cores,
	}, w.config.Lifecycle.Slots)
	sessionDone := make(chan struct{})
	go func() {
		defer close(sessionDone)
		w.sessions(work)
	}()
	err := w.own(ctx)
	if w.leaving {
		// The scheduler ends the session when it has received the last message. Cancelling the
		// session earlier would discard data that is not on the wire yet.
		select {
		case <-sessionDone:
		case <-time.After(farewell):
		}
	}
	cancel()
	w.outbox.close()
	<-sessionDone
	w.native.close()
	w.fetching.Wait()
	w.settleEnded()
	for _, a := range w.attempts {
		a.endLoans() // its runs are over, and its lenders may still expect the end of the leases
	}
	return err
}

// deviceLost says whether the device is lost. If it is, the worker ends.
func (w *Worker) deviceLost() bool {
	if w.config.Health == nil {
		return false
	}
	err := w.config.Health()
	if err != nil {
		w.Fail(err)
	}
	return err != nil
}

// Fail ends the worker at once: Run returns the error.
func (w *Worker) Fail(err error) { w.post(sessionFailed{err: err}) }

// own is the owner goroutine. While it sleeps, other goroutines may be the owner; see combine.go.
func (w *Worker) own(ctx context.Context) error {
	beats := time.NewTicker(beat)
	defer beats.Stop()
	// The ticker runs only while the machine has attempts: an idle worker costs nothing.
	ticks := time.NewTicker(tick)
	defer ticks.Stop()
	done, drain := ctx.Done(), w.config.Drain
	var graceEnds <-chan time.Time
	poll := w.poller().poll
	w.owning.Lock()
	w.ticking = true
	for w.stopped == nil {
		if w.machine.Len() > 0 && !w.ticking {
			w.ticking = true
			ticks.Reset(tick)
		}
		w.owning.Unlock()
		if w.waiting() {
			w.wakeOwner() // events that arrived while this goroutine held the lock were left to it
		}
		var ticked, beaten, ended, asked, late bool
		select {
		case <-w.wake:
		case <-ticks.C:
			ticked = true
		case <-beats.C:
			beaten = true
		case <-done:
			done, ended = nil, true
		case <-drain:
			drain, asked = nil, true
			graceEnds = time.After(w.config.DrainGrace)
		case <-graceEnds:
			graceEnds, late = nil, true
		}
		w.owning.Lock()
		if w.stopped != nil {
			break
		}
		w.drainInbox()
		switch {
		case ticked:
			w.step(lifecycle.Ticked{})
			w.config.Store.Tick(time.Now())
			poll() // in case the slots that have declared to poll are delayed
			if w.machine.Len() == 0 {
				w.ticking = false
				ticks.Stop()
			}
		case beaten:
			w.config.Store.Tick(time.Now())
			w.config.Store.Trim(keepBytes)
			w.outbox.stats(w.stats())
			w.expireParked()
			w.expireSubscribers(time.Now())
			if w.config.Alive != nil {
				w.config.Alive()
			}
		case ended:
			w.leave("told to stop")
		case asked:
			w.askToLeave()
		case late:
			w.leave(fmt.Sprintf("its time to leave, %v, is over", w.config.DrainGrace))
		}
		w.settle()
	}
	if errors.Is(w.stopped, errLeft) {
		return nil
	}
	return w.stopped
}

var errLeft = errors.New("left")

// askToLeave asks the scheduler for permission to leave. The scheduler then places nothing new
// here, and has other workers copy the objects that only this worker holds.
func (w *Worker) askToLeave() {
	w.log.Info("asked to leave: ending what runs, and handing over what no other worker has",
		"running", w.machine.Len(), "objects", len(w.config.Store.Inventory()), "grace", w.config.DrainGrace)
	w.asked = true
	w.outbox.drain()
}

// mayLeave says whether an idle worker that was told to leave can do so without loss: the scheduler
// has agreed, or the worker holds no objects.
func (w *Worker) mayLeave() bool {
	return w.drained || len(w.config.Store.Inventory()) == 0
}

func (w *Worker) leave(why string) {
	if running, objects := w.machine.Len(), len(w.config.Store.Inventory()); !w.asked || w.drained || running+objects == 0 {
		w.log.Info("leaving", "reason", why)
	} else {
		// The scheduler recomputes the lost objects that it can.
		w.log.Warn("leaving before all was handed over", "reason", why, "running", running, "objects", objects)
	}
	w.quit()
	w.settleEnded()
	w.outbox.leave()
	w.leaving = true
	w.stopped = errLeft
}

func (w *Worker) drainInbox() {
	w.mu.Lock()
	batch := w.inbox
	w.inbox, w.emptied = w.emptied, nil
	w.mu.Unlock()
	for _, x := range batch {
		w.handle(x)
	}
	clear(batch)
	w.emptied = batch[:0]
}

func (w *Worker) handle(x any) {
	switch x := x.(type) {
	case message:
		if x.session == w.session {
			w.scheduler(x.response)
		}
	case opening:
		x.reply <- w.open()
	case sessionFailed:
		if w.stopped == nil {
			w.stopped = x.err
		}
	case alone:
		for _, a := range w.parked {
			// The request was lost with the session; the next session sends it again.
			a.parked = time.Time{}
		}
		if w.asked && x.since >= aloneGrace && w.machine.Len() == 0 && w.stopped == nil {
			w.leave("the scheduler is away, and nothing runs")
		}
	case []*nativeRun:
		for _, r := range x {
			w.nativeEnded(r)
		}
	case []executor.Result:
		for i := range x {
			w.executorEnded(&x[i])
		}
	case completed:
		for i := range x {
			w.inputMade(&x[i])
		}
	case requested:
		for _, ask := range x.requests {
			w.handleRequest(x.subscriber, ask)
		}
	case left:
		w.subscriptions.dropAll(x.subscriber)
	case borrowed:
		w.lent(x)
	case gained:
		w.outbox.object(x.report)
	case *writing:
		w.written(x)
	case *renewal:
		w.renew(x)
	case reservationResult:
		w.reservationTold(x)
	case rescued:
		w.rescueEnded(x)
	case unmapped:
		w.outbox.rescue(&workerv1.RescueReport{WorkerId: uint32(x.peer), Unmapped: true})
	case gone:
		w.outbox.object(&workerv1.ObjectReport{Replica: &workerv1.Replica{
			TaskId: uint64(x.object.Task), Generation: uint32(x.object.Generation),
		}, Event: workerv1.ObjectEvent_OBJECT_EVENT_LOST})
	case lastFetched:
		w.step(x.event)
		x.times.usable = time.Since(x.times.wanted)
		w.fetches.write(x.times)
	case lifecycle.Event:
		w.step(x)
	default:
		panic(fmt.Sprintf("loop: posted %T", x))
	}
}

// open begins a session: its registration contains everything that the worker has.
func (w *Worker) open() *opened {
	w.session++
	w.settleEnded() // then the reports of all ended runs are in the outbox
	clear(w.ops)
	w.reportedRoutes = nil
	r := proto.Clone(w.config.Registration).(*workerv1.Registration)
	// Attempts whose reports are not sent yet count as running; otherwise the scheduler would place
	// them again.
	written := make([]*workerv1.ObjectReport, 0, len(w.writes))
	// order-free: they are independent of each other.
	for _, x := range w.writes {
		written = append(written, x.report)
	}
	for _, ref := range w.outbox.reopen(written) {
		r.Running = append(r.Running, taskRef(ref))
	}
	for _, o := range w.config.Store.Inventory() {
		r.Inventory = append(r.Inventory, &workerv1.Replica{TaskId: uint64(o.ID.Task), Generation: uint32(o.ID.Generation), Bytes: o.Bytes()})
	}
	for _, ref := range w.machine.Attempts() {
		r.Running = append(r.Running, taskRef(ref))
	}
	for _, a := range w.parked {
		r.Running = append(r.Running, taskRef(a.ref))
	}
	for ref, a := range w.borrowing {
		if !a.admitted {
			r.Running = append(r.Running, taskRef(ref))
		}
	}
	r.Life = w.life.Load()
	return &opened{w.session, r, r.Life}
}

func taskRef(r lifecycle.Ref) *workerv1.AttemptRef {
	return &workerv1.AttemptRef{TaskId: uint64(r.Task), Attempt: uint32(r.Attempt)}
}

func refOf(r *workerv1.AttemptRef) lifecycle.Ref {
	return lifecycle.Ref{Task: ids.TaskID(r.GetTaskId()), Attempt: ids.Attempt(r.GetAttempt())}
}

// scheduler handles a message of the scheduler.
func (w *Worker) scheduler(r *workerv1.SessionResponse) {
	if x := r.GetRegistered(); x != nil {
		first := w.self.Load() == 0
		w.life.Store(x.GetLife())
		w.self.Store(x.GetWorkerId())
		w.inlineBytes.Store(x.GetInlineResultBytes())
		w.step(lifecycle.Registered{Self: ids.WorkerID(x.GetWorkerId())})
		if w.config.Executors != nil {
			w.config.Executors.Registered(ids.WorkerID(x.GetWorkerId()), uint64(x.GetInlineResultBytes()))
		}
		if first && w.config.Ready != nil {
			w.config.Ready(ids.WorkerID(x.GetWorkerId()))
		}
		w.log.Info("registered", "id", ids.WorkerID(x.GetWorkerId()), "cluster", x.GetClusterId())
		if w.drained = false; w.asked {
			w.outbox.drain() // the scheduler does not know it in a new session
		}
		for _, a := range w.parked {
			w.park(a)
		}
	}
	for _, d := range r.GetOps() {
		w.ops[d.GetOpId()] = w.newOp(d.GetOp())
	}
	for _, p := range r.GetPeers() {
		w.setPeer(p)
	}
	if dropped := r.GetDroppedFunctions(); len(dropped) > 0 {
		w.dropFunctions(dropped)
	}
	for _, f := range r.GetFunctions() {
		w.functions[ids.FunctionHash(hash32(f.GetHash()))] = f
	}
	if len(r.GetFunctions()) > 0 {
		w.unpark()
	}
	w.accept(r.GetAcceptedWrites()) // before the assignments that waited for them
	for _, a := range r.GetAssignments() {
		w.assign(a)
		w.urgent()
	}
	for _, ref := range r.GetRetractions() {
		if a := w.takeParked(refOf(ref)); a != nil {
			w.outbox.task(&workerv1.TaskReport{TaskId: ref.GetTaskId(), Attempt: ref.GetAttempt(), Outcome: workerv1.TaskOutcome_TASK_OUTCOME_RETRACTED})
			continue
		}
		w.step(lifecycle.Retracted{Ref: refOf(ref)})
	}
	for _, ref := range r.GetCancellations() {
		if a := w.takeParked(refOf(ref)); a != nil {
			w.outbox.task(&workerv1.TaskReport{TaskId: ref.GetTaskId(), Attempt: ref.GetAttempt(), Outcome: workerv1.TaskOutcome_TASK_OUTCOME_CANCELLED})
			continue
		}
		w.step(lifecycle.Cancelled{Ref: refOf(ref)})
	}
	for _, o := range r.GetReleases() {
		w.refuse(ledger.ObjectID{Task: ids.TaskID(o.GetTaskId()), Generation: ids.Attempt(o.GetGeneration())},
			noDataTask, "it is not the first result of a DATA task that the scheduler waits for")
		w.step(lifecycle.Released{Object: lifecycle.Object{Task: ids.TaskID(o.GetTaskId()), Generation: ids.Attempt(o.GetGeneration())}})
		w.urgent()
	}
	for _, order := range r.GetRescues() {
		w.rescue(order)
	}
	if n := len(r.GetNextUses()); n > 0 {
		uses := make([]store.Use, n)
		for i, u := range r.GetNextUses() {
			uses[i] = store.Use{ID: ledger.ObjectID{Task: ids.TaskID(u.GetTaskId()), Generation: ids.Attempt(u.GetGeneration())}, Rank: u.GetRank()}
		}
		w.config.Store.Expect(uses)
	}
	w.keep(r.GetKeeps())
	w.drained = w.drained || r.GetDrained()
	if r.GetStopReason() != "" && w.stopped == nil {
		w.stopped = &StoppedError{Reason: r.GetStopReason()}
	}
	if order := r.GetLeave(); order != nil && w.stopped == nil {
		// The other orders in this message are carried out by now, or not needed any more.
		w.drained = true
		w.leave(order.GetReason())
		if order.GetRestart() {
			w.stopped = &RestartError{Reason: order.GetReason()}
		}
	}
}

// dropFunctions forgets functions that no task refers to. If a message drops a function and also
// contains it, it is needed again: the caller stores the functions of the message afterwards.
func (w *Worker) dropFunctions(hashes [][]byte) {
	for _, hash := range hashes {
		delete(w.functions, hash32(hash))
	}
	if w.config.Executors != nil {
		w.config.Executors.DropFunctions(hashes)
	}
}

func hash32(b []byte) (h [32]byte) {
	copy(h[:], b)
	return h
}
