// Package loop is a Loop: it owns a worker's lifecycle machine and the clock, communicates with the
// scheduler, and connects store, native slots, paths and executors with each other.
//
// One goroutine at a time, the owner, steps the machine. Events from elsewhere (a message, an ended
// run, a fetched object) are posted to its inbox. Messages for the scheduler go to the outbox,
// which the session sends as fast as the stream takes them. Both are batches of what has
// accumulated: nothing waits until a batch is full.
package loop

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/memory/ledger"
	"github.com/millrace/millrace/worker/device"
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

// Self returns the worker's number, 0 before it is registered.
func (w *Worker) Self() ids.WorkerID { return ids.WorkerID(w.self.Load()) }

// Facts that are posted to the inbox.
type (
	// gone: the store has given up an object.
	gone struct{ object ledger.ObjectID }
	// unmapped: the memory of a dead peer is no longer mapped here.
	unmapped struct{ peer ids.WorkerID }
)
