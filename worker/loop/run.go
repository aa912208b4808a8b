package loop

import (
	"cmp"
	"context"
	"errors"
	"time"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/memory/ledger"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/worker/executor"
	"github.com/millrace/millrace/worker/inbox"
	"github.com/millrace/millrace/worker/lifecycle"
	"github.com/millrace/millrace/worker/peers"
	"github.com/millrace/millrace/worker/session"
	"github.com/millrace/millrace/worker/stats"
	"github.com/millrace/millrace/worker/writes"
)

// New returns a worker that is not running yet.
func New(c Config) *Worker {
	c.SchedulerTimeout = cmp.Or(max(c.SchedulerTimeout, 0), lifecycle.DefaultSchedulerTimeout)
	c.MemoryWait = cmp.Or(max(c.MemoryWait, 0), lifecycle.DefaultMemoryWait)
	c.BorrowWait = cmp.Or(max(c.BorrowWait, 0), lifecycle.DefaultBorrowWait)
	c.Lifecycle.Slots = int(c.Registration.GetSlots())
	c.Lifecycle.Resources = c.Registration.GetResources()
	w := &Worker{
		config: c, log: c.Log, outbox: session.NewOutbox(), inbox: inbox.New(),
		attempts: make(map[lifecycle.Ref]*attempt), ops: make(map[uint32]*op), executors: make(map[string]bool),
	}
	w.sessions = c.Sessions(session.Config{Timeout: c.SchedulerTimeout, Outbox: w.outbox, Tell: func(e session.Event) { w.inbox.Post(e) }, Receive: w.receive, Log: c.Log})
	w.peers = peers.New(peers.Config{Name: c.Registration.GetName(), Store: c.Store, Path: c.Path, MemoryWait: c.MemoryWait, BorrowWait: c.BorrowWait, Go: c.Go, Tell: w.tell, Log: c.Log})
	w.writes = writes.New(writes.Config{Store: c.Store, MemoryWait: c.MemoryWait, Tell: func(x *writes.Write) { w.inbox.Post(x) }, Log: c.Log})
	w.stats = stats.New(stats.Config{Store: c.Store, Peers: w.peers, Executors: c.Executors, NativeTimes: w.times.Read, GPUHealth: c.GPUHealth, Traffic: c.Traffic, RSS: c.RSS})
	w.furnish()
	c.Lifecycle.Leases, c.Lifecycle.ReadsInPlace, c.Lifecycle.MemoryWait = w.peers.Capabilities().Borrow != nil, w.inPlace != nil, c.MemoryWait
	w.machine = lifecycle.New(c.Lifecycle)
	c.Store.OnShort(func(stuck bool) {
		if stuck {
			w.inbox.Post(lifecycle.Short{})
		}
	})
	c.Store.OnGone(func(id ledger.ObjectID, _ error) { w.inbox.Post(gone{id}) })
	if c.Executors != nil {
		for _, kind := range c.Executors.Kinds() {
			w.executors[kind] = true
		}
	}
	return w
}

// furnish gives the parts of the worker what they need of each other and of its configuration.
func (w *Worker) furnish() {
	c, post := &w.config, w.inbox.Post
	if w.peers.Capabilities().Lend != nil {
		w.inPlace = c.Native.InPlace()
	}
	w.functions = functions{known: make(map[ids.FunctionHash]*millracev1.Function), executors: c.Executors}
	w.reservations = reservations{store: c.Store, wait: c.MemoryWait, post: post, ids: make(map[lifecycle.ReservationID]ledger.ReservationID)}
	w.leases = leases{peers: w.peers, executors: c.Executors, native: c.Native, store: c.Store, post: post, log: c.Log}
	w.finder = finder{store: c.Store, peers: w.peers, leases: &w.leases, native: c.Native, reservations: &w.reservations, log: c.Log}
	w.subscriptions = subscriptions{notifier: c.Notifier, peers: w.peers, store: c.Store}
	w.native.slots, w.native.store, w.native.peers, w.native.outbox, w.native.times = c.Native, c.Store, w.peers, w.outbox, &w.times
	w.runners = runners{native: &w.native, executors: c.Executors, functions: &w.functions, reservations: &w.reservations}
	w.reports = reports{worker: c.Registration.GetName(), logs: c.Logs}
}

// Connected reports whether the worker has a session with the scheduler now.
func (w *Worker) Connected() bool { return w.sessions.Connected() }

// Receiver returns the interface through which clients write objects to this worker.
func (w *Worker) Receiver() transfer.Receiver { return w.writes }

// Stats describes what the worker has in use.
func (w *Worker) Stats() *stats.Stats { return w.stats }

// PostResults passes results of executors to the worker.
func (w *Worker) PostResults(results []executor.Result) { w.inbox.Post(results) }

// Unmapped records that a peer's memory is no longer mapped here. The scheduler is told only if the
// peer is dead.
func (w *Worker) Unmapped(at transfer.Peer, dead bool) {
	if dead {
		w.inbox.Post(unmapped{at.Worker})
	}
}

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
	w.native.settle()
	w.endLeft()
	return err
}

// endLeft ends the leases that are left when the worker has stopped: the lenders may still expect
// their end. Those of attempts in processes are left to EndLoans.
func (w *Worker) endLeft() {
	w.endAnswers()
	// order-free: each lease is ended independently.
	for _, a := range w.attempts {
		if state, _ := w.machine.State(a.ref); state != lifecycle.Running || !a.inProcess() {
			a.endLoans()
		}
	}
}

// Fail ends the worker at once: Run returns the error.
func (w *Worker) Fail(err error) { w.inbox.Post(session.Failed{Err: err}) }

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
		if w.inbox.Waiting() {
			w.inbox.WakeOwner() // events that arrived while this goroutine held the lock were left to it
		}
		select {
		case <-w.inbox.Woken():
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

// endAnswers ends the leases that came too late: the worker has stopped. REQUIRES: no more are
// requested.
func (w *Worker) endAnswers() {
	for _, x := range w.inbox.Take() {
		if late, is := x.(borrowed); is {
			late.attempt.loans = late.loans
			late.attempt.endLoans()
		}
	}
}

// EndLoans ends the leases of attempts that ran in processes when the worker stopped. REQUIRES: Run
// has returned, and these processes have ended: until then they may read what is leased.
func (w *Worker) EndLoans() {
	// order-free: each lease is ended independently.
	for _, a := range w.attempts {
		a.endLoans()
	}
}
