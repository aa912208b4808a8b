// Package loop is a Loop: it owns a worker's lifecycle machine and the clock, communicates with the
// scheduler, and connects store, native slots, paths and executors with each other.
//
// One goroutine at a time, the owner, steps the machine. Events from elsewhere (a message, an ended
// run, a fetched object) are posted to its inbox. Messages for the scheduler go to the outbox,
// which the session sends as fast as the stream takes them. Both are batches of what has
// accumulated: nothing waits until a batch is full.
package loop

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/memory/ledger"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/worker/executor"
	"github.com/millrace/millrace/worker/lifecycle"
	"github.com/millrace/millrace/worker/native"
	"github.com/millrace/millrace/worker/peers"
	"github.com/millrace/millrace/worker/session"
	"github.com/millrace/millrace/worker/stats"
	"github.com/millrace/millrace/worker/store"
	"github.com/millrace/millrace/worker/writes"
)

// Worker is one incarnation of a worker.
type Worker struct {
	config  Config
	log     *slog.Logger
	machine *lifecycle.Machine
	outbox  *session.Outbox
	peers   *peers.Peers
	writes  *writes.Writes
	stats   *stats.Stats
	// sessions are the sessions with the scheduler.
	sessions Sessions
	// inlineBytes is the size of the largest result that is sent inline.
	inlineBytes uint32
	// self is the worker's number, 0 before it is registered. life identifies the run of the
	// scheduler that assigned the number, 0 if that scheduler has no such number.
	self  atomic.Uint32
	life  uint64
	times native.TimeBook

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

	// The fields below belong to the owner. ticking: Turn is called once per Tick.
	ticking  bool
	attempts map[lifecycle.Ref]*attempt
	// session is the last session. Messages of earlier ones are dropped.
	session   uint64
	ops       map[uint32]*op
	functions map[ids.FunctionHash]*millracev1.Function
	// wanted are the objects that lookUp looks for, and objects are those that it finds, for reuse.
	wanted  []ledger.ObjectID
	objects []store.Object
	// emptied is an empty inbox slice for reuse.
	emptied []any
	// ending is the native run whose end the machine is handling, nil if there is none.
	ending       *nativeRun
	reservations map[lifecycle.ReservationID]ledger.ReservationID
	nearby       nearby
	// asked: the worker was told to leave through Config.Drain. drained: the scheduler has agreed
	// to that, or has ordered the worker to leave.
	asked, drained bool
	// takesFetch: the goroutine that is the owner now can carry out a fetch itself; that fetch is
	// stored in takenFetch.
	takesFetch bool
	takenFetch func(leave func())
	// stopped is the reason why the worker stops, nil while it runs.
	stopped error
	leaving bool
	// running is the context of Run.
	running context.Context //nolint:containedctx // for the goroutines that Run waits for
	// renewing is set while the worker drops everything of an earlier life of the scheduler, and
	// nil otherwise. lending counts the goroutines that request leases.
	renewing *session.Renewal
	// renewedSince is the time when renewing began.
	renewedSince time.Time
	lending      int
	executors    map[string]bool
}

// New returns a worker that is not running yet.
func New(c Config) *Worker {
	c.SchedulerTimeout = cmp.Or(max(c.SchedulerTimeout, 0), lifecycle.DefaultSchedulerTimeout)
	c.MemoryWait = cmp.Or(max(c.MemoryWait, 0), lifecycle.DefaultMemoryWait)
	c.BorrowWait = cmp.Or(max(c.BorrowWait, 0), lifecycle.DefaultBorrowWait)
	c.Lifecycle.Slots = int(c.Registration.GetSlots())
	c.Lifecycle.Resources = c.Registration.GetResources()
	w := &Worker{
		config: c, log: c.Log, outbox: session.NewOutbox(),
		wake:         make(chan struct{}, 1),
		attempts:     make(map[lifecycle.Ref]*attempt),
		ops:          make(map[uint32]*op),
		functions:    make(map[ids.FunctionHash]*millracev1.Function),
		reservations: make(map[lifecycle.ReservationID]ledger.ReservationID),
		executors:    make(map[string]bool),
	}
	w.sessions = c.Sessions(session.Config{Timeout: c.SchedulerTimeout, Outbox: w.outbox, Tell: func(e session.Event) { w.post(e) }, Receive: w.receive, Log: c.Log})
	w.peers = peers.New(peers.Config{Name: c.Registration.GetName(), Store: c.Store, Path: c.Path, MemoryWait: c.MemoryWait, BorrowWait: c.BorrowWait, Go: c.Go, Tell: w.tell, Log: c.Log})
	w.writes = writes.New(writes.Config{Store: c.Store, MemoryWait: c.MemoryWait, Tell: func(x *writes.Write) { w.post(x) }, Log: c.Log})
	can := w.peers.Capabilities()
	w.stats = stats.New(stats.Config{Store: c.Store, Peers: w.peers, Executors: c.Executors, Times: &w.times, GPUHealth: c.GPUHealth, Traffic: c.Traffic, RSS: c.RSS})
	w.nearby = newNearby(can.Lend, c.Native.InPlace())
	c.Lifecycle.Leases, c.Lifecycle.ReadsInPlace, c.Lifecycle.MemoryWait = can.Borrow != nil, w.nearby.lender != nil, c.MemoryWait
	w.machine = lifecycle.New(c.Lifecycle)
	c.Store.OnShort(func(stuck bool) {
		if stuck {
			w.post(lifecycle.Short{})
		}
	})
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

// Connected reports whether the worker has a session with the scheduler now.
func (w *Worker) Connected() bool { return w.sessions.Connected() }

// Receiver returns the interface through which clients write objects to this worker.
func (w *Worker) Receiver() transfer.Receiver { return w.writes }

// DescribeMemory describes the contents of the worker's memory; see package stats.
func (w *Worker) DescribeMemory(limit int, task ids.TaskID) *millracev1.DescribeMemoryResponse {
	return w.stats.Memory(limit, task)
}

// PostResults passes results of executors to the worker.
func (w *Worker) PostResults(results []executor.Result) { w.post(results) }

// Unmapped records that a peer's memory is no longer mapped here. The scheduler is told only if the
// peer is dead.
func (w *Worker) Unmapped(at transfer.Peer, dead bool) {
	if dead {
		w.post(unmapped{at.Worker})
	}
}

// Types that are posted to the inbox, besides []*native.Run, []executor.Result and events of
// package lifecycle.
type (
	// unmapped says that the memory of a dead peer is no longer mapped here.
	unmapped struct{ peer ids.WorkerID }
	// reservationResult is the outcome of a reservation that was not ready at once.
	reservationResult struct {
		ref         lifecycle.Ref
		reservation lifecycle.ReservationID
		store.ReservationResult
	}
	// gone says that the store has given up an object.
	gone struct{ object ledger.ObjectID }
)

// Run runs the worker until the context ends, the scheduler stops or drains the worker, or the
// scheduler is unreachable for too long. It returns nil if the worker has left properly.
func (w *Worker) Run(ctx context.Context) error {
	work, cancel := context.WithCancel(context.WithoutCancel(ctx))
	w.Begin(work)
	sessionDone := make(chan struct{})
	go func() {
		defer close(sessionDone)
		w.sessions.Run(work)
	}()
	err := w.own(ctx)
	if w.leaving {
		// The scheduler ends the session when it has received the last message. Cancelling the
		// session earlier would discard data that is not on the wire yet.
		select {
		case <-sessionDone:
		case <-time.After(lifecycle.Farewell):
		}
	}
	cancel()
	w.outbox.Close()
	<-sessionDone
	w.config.Native.Close()
	w.peers.Wait()
	w.settleEnded()
	w.endLeft()
	return err
}

// endLeft ends the leases that are left when the worker has stopped: the lenders may still expect
// their end. Those of attempts in processes are left to EndLoans.
func (w *Worker) endLeft() {
	w.endAnswers()
	// order-free: each lease is ended independently.
	for _, a := range w.attempts {
		if !w.inProcess(a) {
			a.endLoans()
		}
	}
}

// Fail ends the worker at once: Run returns the error.
func (w *Worker) Fail(err error) { w.post(session.Failed{Err: err}) }

// own is the owner goroutine. While it sleeps, other goroutines may be the owner; see combine.go.
func (w *Worker) own(ctx context.Context) error {
	beats := time.NewTicker(lifecycle.Beat)
	defer beats.Stop()
	// The ticker runs only while the machine has attempts: an idle worker costs nothing.
	ticks := time.NewTicker(lifecycle.Tick)
	defer ticks.Stop()
	ticking := true
	done, drain := ctx.Done(), w.config.Drain
	var graceEnds <-chan time.Time
	if w.config.Alive != nil {
		w.config.Alive() // before the registration, so that a worker which is known is also watched
	}
	for why := Woken; ; {
		next := w.Turn(why)
		if next.Stopped {
			break
		}
		switch {
		case next.Ticks && !ticking:
			ticks.Reset(lifecycle.Tick)
		case !next.Ticks:
			ticks.Stop()
		}
		ticking = next.Ticks
		if w.Waiting() {
			w.wakeOwner() // events that arrived while this goroutine held the lock were left to it
		}
		select {
		case <-w.wake:
			why = Woken
		case <-ticks.C:
			why = TickDue
		case <-beats.C:
			why = BeatDue
		case <-done:
			done, why = nil, StopOrdered
		case <-drain:
			drain, why = nil, DrainOrdered
			graceEnds = time.After(w.config.DrainGrace)
		case <-graceEnds:
			graceEnds, why = nil, GraceOver
		}
	}
	if errors.Is(w.stopped, errLeft) {
		return nil
	}
	return w.stopped
}

func (w *Worker) beaten() {
	w.config.Store.Tick(time.Now())
	w.config.Store.Trim(ledger.KeepBytes)
	w.outbox.Stats(w.stats.Beat())
	w.step(lifecycle.Beaten{})
	if w.config.Alive != nil {
		w.config.Alive()
	}
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
	case session.Message:
		if x.Session == w.session {
			w.scheduler(x.Response)
		}
	case session.Opening:
		w.session = x.Session
		x.Reply <- w.open()
	case session.Failed:
		if w.stopped == nil {
			w.stopped = x.Err
		}
	case session.Alone:
		w.step(lifecycle.Disconnected{})
		if w.asked && x.Since >= lifecycle.AloneGrace && w.machine.Len() == 0 && !w.peers.Rescuing() && w.stopped == nil {
			w.leave("the scheduler is away, and nothing runs")
		}
	case []*native.Run:
		for _, r := range x {
			w.nativeEnded(r)
		}
	case []executor.Result:
		for i := range x {
			w.executorEnded(&x[i])
		}
	case completed:
		for i := range x {
			w.step(made(&x[i]))
		}
	case requested:
		for _, ask := range x.requests {
			w.step(w.ask(x.subscriber, ask))
		}
	case left:
		w.step(lifecycle.Unasked{By: x.subscriber, All: true})
	case borrowed:
		w.lent(x)
	case *writes.Write:
		if report := w.writes.Committed(x, w.renewing != nil, w.runs(x.ID.Task)); report != nil {
			w.outbox.Object(report)
		}
	case *session.Renewal:
		w.renew(x)
	case reservationResult:
		w.reservationTold(x)
	case peers.Gained:
		w.rescued(x)
	case peers.Rescued:
		if report := w.peers.Ended(x); report != nil {
			w.outbox.Rescue(report)
		}
	case unmapped:
		w.outbox.Rescue(&workerv1.RescueReport{WorkerId: uint32(x.peer), Unmapped: true})
	case gone:
		if x.object.Item == 0 { // otherwise the scheduler does not know of it
			w.outbox.Object(reportOf(x.object, 0, workerv1.ObjectEvent_OBJECT_EVENT_LOST))
		}
	case peers.Outcomes:
		for _, e := range x.Events {
			w.step(e)
		}
		w.peers.Usable(x)
	case lifecycle.Event:
		w.step(x)
	default:
		panic(fmt.Sprintf("loop: posted %T", x))
	}
}
