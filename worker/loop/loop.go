// Package loop is a Loop: it owns a worker's lifecycle machine and the clock,
// speaks with the scheduler, and introduces store, device, paths and executors
// to each other.
//
// One goroutine at a time, the owner, steps the machine. Whatever happens elsewhere
// (a message, an ended run, a fetched object) is posted to its inbox; what it wants
// to tell the scheduler goes to the outbox, which the session sends as fast as
// the stream takes it. Both are batches of what has accumulated: nobody waits to
// fill one.
package loop

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/memory/ledger"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/flow"
	"github.com/millrace/millrace/transfer/herald"
	"github.com/millrace/millrace/worker/device"
	"github.com/millrace/millrace/worker/executor"
	"github.com/millrace/millrace/worker/lifecycle"
	"github.com/millrace/millrace/worker/store"
	"github.com/millrace/millrace/worker/tasklog"
)

// Executors runs attempts in processes. Its methods are called by the owner and
// do not wait.
type Executors interface {
	// Kinds are the runners it has: "python", names of registered programs.
	Kinds() []string
	// Segments says whether processes of a kind can read memory besides the slab.
	Segments(kind string) bool
	// KindOf returns which kind of executor a process is, "" if it is none that runs tasks now.
	KindOf(pid int) string
	// Start hands a run to a lane.
	Start(kind string, lane int, r *executor.Run)
	// Stop ends a run, begun or not; its result follows.
	Stop(kind string, lane int, ref lifecycle.Ref)
	// TakeBack has a run returned if it has not begun.
	TakeBack(kind string, lane int, ref lifecycle.Ref)
	// Registered tells the worker's number and the limit of inline results.
	Registered(worker ids.WorkerID, inlineBytes uint64)
	// DropFunctions has processes forget functions, by their hashes.
	DropFunctions(hashes [][]byte)
	// Deaths is how many processes died, and why the last one did.
	Deaths() (n uint64, last string)
	// Close ends all processes and waits for them.
	Close()
}

// Config is fixed for the life of a worker.
type Config struct {
	// Registration is what the worker says of itself; inventory and running are
	// filled in here.
	Registration *millracev1.Registration
	// Scheduler is the connection to it. The caller closes it.
	Scheduler *grpc.ClientConn
	Device    device.Device
	// Health is why the device is lost for good, nil while it is not: then the worker
	// ends with it, as soon as it is asked. May be nil.
	Health func() error
	// GPUHealth is the state of its GPU, nil where that is not known. May be nil.
	GPUHealth func() *millracev1.GpuHealth
	Store     *store.Store
	// Path is how objects of peers are fetched.
	Path transfer.Path
	// Herald is how results are told to peers, and heard of from them; it calls Heard,
	// Asked, Handle and Left. Nil: this worker does not tell, and its registration says so.
	Herald *herald.Herald
	// Executors may be nil: then there are native operations only. Posting its
	// results is the caller's business: see Worker.PostResults.
	Executors Executors
	Logs      *tasklog.Logs
	// Traffic returns the bytes received and sent since the start.
	Traffic func() (in, out uint64)
	// SchedulerTimeout is how long the scheduler may be away. Default 60 s.
	SchedulerTimeout time.Duration
	// MemoryWait is how long an attempt waits for memory. Default 30 s.
	MemoryWait time.Duration
	// BorrowWait bounds the asking for loans; then the object is fetched. Default 2 s.
	BorrowWait time.Duration
	// Linger is for how long, at most, a lane of native operations that has run out of work
	// looks for more before it sleeps, while the worker has attempts: see internal/patience.
	// Default: none.
	Linger time.Duration
	Log    *slog.Logger
	// Ready, if set, is called by the owner when it is first registered.
	Ready func(ids.WorkerID)
	// Alive, if set, is called by the owner every second or so: as long as it is, the worker does not hang.
	Alive func()
	// Drain, if closed, has the worker take nothing new, end what it has, and leave when the scheduler says that nothing is lost
	// with it; DrainGrace later it leaves in any case. May be nil.
	Drain      <-chan struct{}
	DrainGrace time.Duration
	// Lifecycle are the machine's limits; slots and resources come from the
	// registration.
	Lifecycle lifecycle.Config
}

// ErrSchedulerLost: the scheduler was away for longer than SchedulerTimeout.
var ErrSchedulerLost = errors.New("the scheduler is away")

// StoppedError is returned when the scheduler told the worker to stop.
type StoppedError struct{ Reason string }

// Error is part of error.
func (e *StoppedError) Error() string { return "stopped by the scheduler: " + e.Reason }

// RefusedError says that the scheduler does not take this worker, and will not.
type RefusedError struct{ Err error }

// Error is part of error.
func (e *RefusedError) Error() string { return "the scheduler refuses this worker: " + e.Err.Error() }

func (e *RefusedError) Unwrap() error { return e.Err }

// Worker is one incarnation at work.
type Worker struct {
	config  Config
	log     *slog.Logger
	machine *lifecycle.Machine
	native  *native
	outbox  *outbox
	// fetching counts the goroutines of fetches; Run waits for them.
	fetching sync.WaitGroup
	// inlineBytes is the largest result to send inline.
	inlineBytes atomic.Uint32
	// fetches are the last ones, for DescribeMemory.
	fetches fetchBook
	// borrowedBytes were used in place at peers.
	borrowedBytes atomic.Uint64
	// self is the worker's number, 0 before it is registered; life is that of the scheduler which gave it, 0 if that has none.
	self atomic.Uint32
	life atomic.Uint64
	// busy: the machine has attempts. going: a run, a fetch or a loan was begun, see lookout.
	busy  atomic.Bool
	going atomic.Bool
	times timeBook

	mu sync.Mutex
	// inbox is guarded by mu, as is ended: the runs of which something is left to do, see settleEnded.
	// wake has room for one.
	inbox []any
	ended []*nativeRun
	wake  chan struct{}

	// settling is held by who does that.
	settling sync.Mutex

	// owning is held by who is the owner, and for ever when the worker has stopped.
	owning sync.Mutex

	// Below belongs to the owner. ticking: it ticks.
	ticking  bool
	attempts map[lifecycle.Ref]*attempt
	// session counts registrations: messages of older ones are dropped.
	session   uint64
	ops       map[uint32]*op
	functions map[ids.FunctionHash]*millracev1.Function
	parked    []*attempt
	// emptied is an inbox to be used again.
	emptied []any
	// ending is the run whose end is being told of, nil if there is none.
	ending *nativeRun
	peers  map[ids.WorkerID]transfer.Peer
	// told is what the scheduler knows of the paths to them.
	told         []flow.Lane
	reservations map[lifecycle.ReservationID]ledger.ReservationID
	// borrowing are the attempts that wait for loans; borrowedTimes counts the loans
	// of each object.
	borrowing     map[lifecycle.Ref]*attempt
	borrowedTimes map[ledger.ObjectID]int
	nearby        nearby
	// rescuing are the objects that are being copied out of the memory of dead peers.
	rescuing map[ledger.ObjectID]bool
	awaits   awaits
	// draining: nothing new comes. asked: since it was asked to leave, and drained says that the scheduler agrees.
	draining, asked, drained bool
	// takes: whoever is the owner carries out a fetch itself, which is taken then.
	takes bool
	taken *fetching
	// stopped ends the owner; nil while it goes on.
	stopped error
	leaving bool
	// staying ends, by quit, when the worker leaves.
	staying context.Context //nolint:containedctx // a state that the session's goroutine waits for
	quit    context.CancelFunc
	// fetchCtx bounds what belongs to one life of the scheduler, and is made of running, which is Run's.
	fetchCtx, running context.Context //nolint:containedctx // for the goroutines that Run waits for
	cancelFetches     context.CancelFunc
	// renewing is nil but for a worker that gives up what is of another life of the scheduler. lending counts the goroutines
	// that ask for loans.
	renewing *renewal
	lending  int
	// writes are the objects of clients that the scheduler has not accepted.
	writes    map[ledger.ObjectID]*writing
	executors map[string]bool
}

// New returns a worker that has not begun.
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
		rescuing:  make(map[ledger.ObjectID]bool),
		writes:    make(map[ledger.ObjectID]*writing),
		awaits:    awaits{waiting: make(map[ledger.ObjectID][]*attempt), readers: make(map[ledger.ObjectID][]reader)},
		executors: make(map[string]bool),
	}
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

// Self returns the worker's number, 0 while it has none.
func (w *Worker) Self() ids.WorkerID { return ids.WorkerID(w.self.Load()) }

// PostResults takes the results of executors.
func (w *Worker) PostResults(results []executor.Result) { w.post(results) }

// What is posted, besides []*nativeRun, []executor.Result and lifecycle events.
type (
	// message is what the scheduler said in a session.
	message struct {
		session  uint64
		response *millracev1.SessionResponse
	}
	// opening asks for a registration.
	opening struct{ reply chan<- *opened }
	opened  struct {
		session      uint64
		registration *millracev1.Registration
		// life is what the last session was in, 0 if there was none.
		life uint64
	}
	// sessionFailed: the session loop gave up.
	sessionFailed struct{ err error }
	// alone: for how long there has been no session.
	alone struct{ since time.Duration }
	// gained: an object is here that nobody was told of.
	gained struct{ report *millracev1.ObjectReport }
	// told is what became of a reservation that was not ready at once.
	told struct {
		ref         lifecycle.Ref
		reservation lifecycle.ReservationID
		store.Told
	}
	// gone: the store gave an object up.
	gone struct{ object ledger.ObjectID }
)

const (
	beat = time.Second
	tick = 5 * time.Millisecond
	// aloneGrace is how long a worker that was asked to leave, and runs nothing, waits for a scheduler that is away.
	aloneGrace = 5 * time.Second
	// farewell is how long a worker that leaves tries to say so.
	farewell = 2 * time.Second
	// keepBytes of free memory keep their pages.
	keepBytes = 256 << 20
	// parkTime is how long an attempt waits for its function.
	parkTime = 30 * time.Second
)

// Run works until the context ends, the scheduler stops or drains the worker, or
// it is away for too long. It returns nil after leaving properly.
func (w *Worker) Run(ctx context.Context) error {
	work, cancel := context.WithCancel(context.WithoutCancel(ctx))
	w.running = work
	w.beginFetches()
	w.native = newNative(nativeConfig{
		device: w.config.Device, store: w.config.Store, memoryWait: w.config.MemoryWait, inlineBytes: &w.inlineBytes, lost: w.deviceLost,
		post: func(runs []*nativeRun) { w.post(runs) }, hand: func(runs []*nativeRun) { w.driveQuietly(runs) }, idle: w.signal,
		linger: w.config.Linger, busy: &w.busy, lookout: w.lookout(),
	}, w.config.Lifecycle.Slots)
	sessionDone := make(chan struct{})
	go func() {
		defer close(sessionDone)
		w.sessions(work)
	}()
	err := w.own(ctx)
	if w.leaving {
		// The scheduler ends the session when it has heard the farewell; one that is cancelled
		// takes back what it has not put on the wire.
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
		a.endLoans() // what ran is over, and who lent may have been told nothing
	}
	return err
}

// deviceLost says whether the device is lost; then the worker ends.
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

// own is the owner but while somebody drives; see drive.go.
func (w *Worker) own(ctx context.Context) error {
	beats := time.NewTicker(beat)
	defer beats.Stop()
	// ticks run only while something else does: an idle worker costs nothing.
	ticks := time.NewTicker(tick)
	defer ticks.Stop()
	done, drain := ctx.Done(), w.config.Drain
	var graceEnds <-chan time.Time
	look := w.lookout().look
	w.owning.Lock()
	w.ticking = true
	for w.stopped == nil {
		if w.machine.Len() > 0 && !w.ticking {
			w.ticking = true
			ticks.Reset(tick)
		}
		w.owning.Unlock()
		if w.waiting() {
			w.wakeOwner() // what came while we were the owner was left to us
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
			look() // in case that the lanes which said that they would are held up
			if w.machine.Len() == 0 {
				w.ticking = false
				ticks.Stop()
			}
		case beaten:
			w.config.Store.Tick(time.Now())
			w.config.Store.Trim(keepBytes)
			w.outbox.stats(w.stats())
			w.expireParked()
			w.expireReaders(time.Now())
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

// askToLeave asks the scheduler for leave: it places nothing new here, and has others copy what only this worker has.
func (w *Worker) askToLeave() {
	w.log.Info("asked to leave: ending what runs, and handing over what no other worker has",
		"running", w.machine.Len(), "objects", len(w.config.Store.Inventory()), "grace", w.config.DrainGrace)
	w.draining, w.asked = true, true
	w.outbox.drain()
}

// mayLeave says whether nothing is lost if a worker leaves that has nothing to do: the scheduler has told it to go or agrees,
// or it has nothing.
func (w *Worker) mayLeave() bool {
	return !w.asked || w.drained || len(w.config.Store.Inventory()) == 0
}

func (w *Worker) leave(why string) {
	if running, objects := w.machine.Len(), len(w.config.Store.Inventory()); !w.asked || w.drained || running+objects == 0 {
		w.log.Info("leaving", "reason", why)
	} else {
		// The scheduler makes that again of which it knows how.
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
			a.parked = time.Time{} // The request is lost with the session; the next one begins with it.
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
	case heard:
		for i := range x {
			w.hear(&x[i])
		}
	case asked:
		for _, ask := range x.asks {
			w.ask(x.reader, ask)
		}
	case left:
		w.awaits.dropAll(x.reader)
	case borrowed:
		w.lent(x)
	case gained:
		w.outbox.object(x.report)
	case *writing:
		w.written(x)
	case *renewal:
		w.renew(x)
	case told:
		w.reservationTold(x)
	case rescued:
		w.rescueEnded(x)
	case unmapped:
		w.outbox.rescue(&millracev1.RescueReport{WorkerId: uint32(x.peer), Unmapped: true})
	case gone:
		w.outbox.object(&millracev1.ObjectReport{Replica: &millracev1.Replica{
			TaskId: uint64(x.object.Task), Generation: uint32(x.object.Generation),
		}, Lost: true})
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

// open begins a session: everything that is known goes into the registration.
func (w *Worker) open() *opened {
	w.session++
	w.settleEnded() // what has ended is in the outbox, then
	clear(w.ops)
	w.told = nil
	r := proto.Clone(w.config.Registration).(*millracev1.Registration)
	for _, o := range w.config.Store.Inventory() {
		r.Inventory = append(r.Inventory, &millracev1.Replica{TaskId: uint64(o.ID.Task), Generation: uint32(o.ID.Generation), Bytes: o.Bytes()})
	}
	// What is reported and not sent counts as running, or it would be placed
	// again.
	written := make([]*millracev1.ObjectReport, 0, len(w.writes))
	// order-free: they know nothing of each other.
	for _, x := range w.writes {
		written = append(written, x.report)
	}
	for _, ref := range w.outbox.reopen(written) {
		r.Running = append(r.Running, taskRef(ref))
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

func taskRef(r lifecycle.Ref) *millracev1.TaskRef {
	return &millracev1.TaskRef{TaskId: uint64(r.Task), Attempt: uint32(r.Attempt)}
}

func refOf(r *millracev1.TaskRef) lifecycle.Ref {
	return lifecycle.Ref{Task: ids.TaskID(r.GetTaskId()), Attempt: ids.Attempt(r.GetAttempt())}
}

// scheduler handles what the scheduler said.
func (w *Worker) scheduler(r *millracev1.SessionResponse) {
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
			w.outbox.drain() // another session does not know
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
			w.outbox.task(&millracev1.TaskReport{TaskId: ref.GetTaskId(), Attempt: ref.GetAttempt(), Outcome: millracev1.TaskOutcome_TASK_OUTCOME_RETRACTED})
			continue
		}
		w.step(lifecycle.Retracted{Ref: refOf(ref)})
	}
	for _, ref := range r.GetCancellations() {
		if a := w.takeParked(refOf(ref)); a != nil {
			w.outbox.task(&millracev1.TaskReport{TaskId: ref.GetTaskId(), Attempt: ref.GetAttempt(), Outcome: millracev1.TaskOutcome_TASK_OUTCOME_CANCELLED})
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
	if r.GetDrain() {
		w.draining = true
	}
	w.drained = w.drained || r.GetDrained()
	if r.GetStopReason() != "" && w.stopped == nil {
		w.stopped = &StoppedError{Reason: r.GetStopReason()}
	}
}

// dropFunctions forgets functions that no task refers to. Those of one message that are sent in it as well are needed again: they
// are taken in afterwards.
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
