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
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/memory/ledger"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/worker/device"
	"github.com/millrace/millrace/worker/executor"
	"github.com/millrace/millrace/worker/inbox"
	"github.com/millrace/millrace/worker/lifecycle"
	"github.com/millrace/millrace/worker/native"
	"github.com/millrace/millrace/worker/peers"
	"github.com/millrace/millrace/worker/session"
	"github.com/millrace/millrace/worker/stats"
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
	// self is the worker's number, 0 before it is registered. life identifies the run of the
	// scheduler that assigned the number, 0 if that scheduler has no such number.
	self  atomic.Uint32
	life  uint64
	times native.TimeBook
	inbox *inbox.Inbox

	// owning is held by the owner. It stays locked when the worker has stopped.
	owning sync.Mutex

	// All fields below belong to the owner, but for the deferred work of native. First its parts:
	// none of them knows the worker.
	functions     functions
	reservations  reservations
	leases        leases
	finder        finder
	subscriptions subscriptions
	native        nativeRuns
	runners       runners
	reports       reports

	// ticking: Turn is called once per Tick.
	ticking  bool
	attempts map[lifecycle.Ref]*attempt
	// session is the last session. Messages of earlier ones are dropped.
	session uint64
	ops     map[uint32]*op
	// executors are the kinds of executors that the worker has.
	executors map[string]bool
	// inPlace says how operations read inputs at peers, nil if the path or the device cannot.
	inPlace device.InPlace
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
	// nil otherwise.
	renewing *session.Renewal
	// renewedSince is the time when renewing began.
	renewedSince time.Time
}

// errLeft is the reason why a worker stops that has left properly.
var errLeft = errors.New("left")

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
	w.stats = stats.New(stats.Config{Store: c.Store, Peers: w.peers, Executors: c.Executors, NativeTimes: w.times.Read, GPUHealth: c.GPUHealth, NetworkDevices: c.NetworkDevices, Traffic: c.Traffic, RSS: c.RSS})
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

// Self returns the worker's number, 0 before it is registered.
func (w *Worker) Self() ids.WorkerID { return ids.WorkerID(w.self.Load()) }

// Connected reports whether the worker has a session with the scheduler now.
func (w *Worker) Connected() bool { return w.sessions.Connected() }

// Receiver returns the interface through which clients write objects to this worker.
func (w *Worker) Receiver() transfer.Receiver { return w.writes }

// Stats describes what the worker has in use.
func (w *Worker) Stats() *stats.Stats { return w.stats }

// PostResults passes results of executors to the worker.
func (w *Worker) PostResults(results []executor.Result) { w.inbox.Post(results) }

// Facts that are posted to the inbox.
type (
	// gone: the store has given up an object.
	gone struct{ object ledger.ObjectID }
	// unmapped: the memory of a dead peer is no longer mapped here.
	unmapped struct{ peer ids.WorkerID }
)

// Unmapped records that a peer's memory is no longer mapped here. The scheduler is told only if the
// peer is dead.
func (w *Worker) Unmapped(at transfer.Peer, dead bool) {
	if dead {
		w.inbox.Post(unmapped{at.Worker})
	}
}

// Fail ends the worker at once: Run returns the error.
func (w *Worker) Fail(err error) { w.inbox.Post(session.Failed{Err: err}) }
