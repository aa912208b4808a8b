// Package copies is a Machine: it decides where copies of objects must be. It has the objects of
// dead workers copied out of their memory (rescue.go), and those of drained workers to others
// (drain.go), evens out what workers hold when a client orders it (rebalance.go, moveplan.go), and
// has workers keep what would be lost with them (keep.go).
//
// It belongs to the machine of tasks (server/sched), which has the tables of objects and workers.
// That machine tells this one facts, carries out the effects in their order before it does anything
// else, and lets this one read its tables. This machine never changes them.
//
//	a worker:          ACTIVE ──ordered──> DRAINING ⇄ DRAINED ──> told to end
//	                      ^──────undone───────┴──────────┘
//	a copy:            wanted ──EffectCopy──> under way ──> has arrived
//	                      ^──CopyEnded, CopyRefused─┘  (after 3 failures: in 30 s)
//	a moved object:    planned ──> copied ──> kept by the receiver ──> dropped at the source
//	                      └───────────┴──> failed: it stays, a new copy is dropped
//	a rescued object:  ordered from a survivor ⇄ ordered from the next one
//	                      │ RescueEnded             │ no survivor, or the deadline
//	                   has a copy, or is unwanted  given up
package copies

import (
	"maps"
	"slices"
	"time"

	"github.com/millrace/millrace/internal/ids"
)

// Config sets up a machine.
type Config struct {
	// RescueTimeout is how long the copy of a dead worker's objects may take, beside the time that
	// their bytes need. Negative: nothing is rescued.
	RescueTimeout time.Duration
	// BytesPerSecond is the rate at which a worker makes room in its memory.
	BytesPerSecond float64
}

// Machine knows which copies are ordered. It is not safe for concurrent use.
type Machine struct {
	config Config
	tables Tables
	now    time.Time
	out    []Effect

	// rescues has the rescues by dead worker, rescuing the objects that survivors are to copy.
	rescues  map[ids.WorkerID]*rescue
	rescuing map[ids.TaskID]rescuing
	// copies has the copies that are under way, by their tasks, and copyOf the same by object.
	copies, copyOf map[ids.TaskID]*copying
	// ordered has the copies that were ordered in this step, by number. copyNumber is the last one.
	ordered    map[uint64]*copying
	copyNumber uint64
	// stopped are copies that were stopped, by object: their last tasks. Until the owner has ended
	// such a task, its tables say that it needs the object. From mostStopped of them on, those are
	// removed whose tasks have ended.
	stopped     map[ids.TaskID]ids.TaskID
	mostStopped int
	// keeps are the objects that workers were asked to keep (EffectKeep), and have not answered.
	// The request is repeated when a worker opens a session: asked are then those from before.
	keeps orders
	asked []ids.TaskID
	// dropped are wanted objects that workers were told to drop in this session, because another
	// one keeps them. A report of one may be older than the order, so the worker is asked whether
	// it has the object.
	dropped orders
	// drains has the drains by worker. drainOrders are the orders of operators, by the worker's
	// name, and orderNumber is the last number of one.
	drains      map[ids.WorkerID]*drain
	drainOrders map[string]*drainOrder
	orderNumber uint64
	// rebalance is the rebalance in progress; nil: none. rebalanced is the last one that has ended,
	// and rebalances counts them.
	rebalance  *rebalance
	rebalanced RebalanceInfo
	rebalances uint64
	movesArmed bool

	// recheckDrains and recheckMoves mean that all drains, or all moves, are looked at before the
	// owner's step ends. unchecked are the drains that are left of it.
	recheckDrains, recheckMoves bool
	unchecked                   []ids.WorkerID
	// concluding means that the rebalance ends or goes on when the effects are carried out.
	concluding bool

	totals Totals
	// holders and taken are scratch values of one step. taken are bytes that the moves of this step
	// take at their receivers.
	holders []ids.WorkerID
	taken   map[ids.WorkerID]uint64
}

// Totals has sums over the life of a machine.
type Totals struct {
	// Stale counts the answers that were dropped because another order had replaced theirs.
	Stale uint64
	// Moved counts objects that a rebalance has moved.
	Moved uint64
}

// New returns a machine that orders no copies. It reads the tables within its steps.
func New(config Config, tables Tables) *Machine {
	return &Machine{
		config: config, tables: tables,
		rescues: make(map[ids.WorkerID]*rescue), rescuing: make(map[ids.TaskID]rescuing),
		copies: make(map[ids.TaskID]*copying), copyOf: make(map[ids.TaskID]*copying), ordered: make(map[uint64]*copying),
		stopped: make(map[ids.TaskID]ids.TaskID),
		keeps:   make(orders), dropped: make(orders),
		drains: make(map[ids.WorkerID]*drain), drainOrders: make(map[string]*drainOrder),
		taken: make(map[ids.WorkerID]uint64),
	}
}

// Step handles an event. The effects are appended to out and returned. REQUIRES: those of the step
// before are carried out.
func (m *Machine) Step(now time.Time, event Event, out []Effect) []Effect {
	m.begin(now, out)
	switch event := event.(type) {
	case WorkerLost:
		w, _ := m.tables.Worker(event.Worker)
		m.drainLost(w, event.Left)
		m.rescueObjects(event)
	case WorkerRemoved:
		m.workerRemoved(event.Worker)
	case WorkersChanged:
		m.workersChanged()
	case WorkerMeasured:
		m.checkWaitingDrains()
	case SessionOpened:
		m.sessionOpened(event.Worker)
	case InventoryRead:
		m.inventoryRead(event.Worker)
	case WorkerReturned:
		m.repeatOrders(event.Worker)
		w, _ := m.tables.Worker(event.Worker)
		m.resumeDrain(w)
	case AttemptEnded:
		m.checkDrainSoon(event.Worker)
	case ObjectStoredAt:
		m.checkDrainsOf(event.Object)
	case ObjectReported:
		m.objectReported(event)
	case ObjectGone:
		m.objectGone(event)
	case KeeperLost:
		m.keeperLost(event.Object)
	case CopyBegan:
		m.copyBegan(event)
	case CopyRefused:
		m.copyRefused(event)
	case CopyEnded:
		m.copyEnded(event)
	case RescueEnded:
		m.endObjectRescue(event.Object)
	case RescueFailed:
		m.rescueFailed(event)
	case WorkerDraining:
		m.workerDraining(event)
	case RebalanceStopped:
		m.rebalanceStopped(event)
	case Continued:
		m.continued()
	case TimePassed:
		m.timePassed(event.Wake)
	}
	return m.end()
}

// OrderDrain handles the order of an operator to drain workers. On an error there are no effects.
func (m *Machine) OrderDrain(now time.Time, order DrainOrdered, out []Effect) ([]Effect, *Error) {
	m.begin(now, out)
	err := m.drainOrdered(order)
	return m.end(), err
}

// UndoDrain handles the order of an operator to use workers again. On an error there are no
// effects.
func (m *Machine) UndoDrain(now time.Time, order DrainUndone, out []Effect) ([]Effect, *Error) {
	m.begin(now, out)
	err := m.drainUndone(order)
	return m.end(), err
}

// OrderRebalance handles the order of a client to even out what workers hold. It returns the plan;
// the moves begin with the next Continued.
func (m *Machine) OrderRebalance(now time.Time, order RebalanceOrdered, out []Effect) (RebalanceInfo, []Effect, *Error) {
	m.begin(now, out)
	info, err := m.rebalanceOrdered(order)
	return info, m.end(), err
}

func (m *Machine) begin(now time.Time, out []Effect) { m.now, m.out = now, out }

func (m *Machine) end() []Effect {
	out := m.out
	m.out = nil
	return out
}

func (m *Machine) emit(e Effect) { m.out = append(m.out, e) }

// wake makes the owner step the machine with TimePassed at a time.
func (m *Machine) wake(at time.Time, wake Wake) {
	m.emit(Effect{Kind: EffectWake, At: at, Wake: wake})
}

func (m *Machine) timePassed(wake Wake) {
	switch wake.Kind {
	case WakeRescue:
		m.rescueDue(wake.Worker)
	case WakeDrain:
		m.drainDue(wake.Worker)
	case WakeMoves:
		m.movesArmed = false
		m.recheckMoves = m.rebalance != nil
	}
}

// Pending reports whether Continued must be told before the owner's step ends.
func (m *Machine) Pending() bool { return m.recheckDrains || m.recheckMoves }

// continued does what waits for the effects of the step before, or else what is pending.
func (m *Machine) continued() {
	switch {
	case len(m.unchecked) > 0:
		m.checkNextDrain()
	case m.concluding:
		m.concluded()
	case m.recheckDrains:
		m.recheckDrains = false
		if m.unchecked = slices.Sorted(maps.Keys(m.drains)); len(m.unchecked) > 0 {
			m.checkNextDrain()
		}
	case m.recheckMoves:
		m.checkMoves()
	}
}

// workerRemoved sets the deadline for the objects of a lost worker that were ordered from
// survivors.
func (m *Machine) workerRemoved(worker ids.WorkerID) {
	delete(m.keeps, worker)
	delete(m.dropped, worker)
	m.workersChanged()
	if r := m.rescues[worker]; r != nil {
		m.startRescue(r)
	}
	m.passOn(worker)
}

// Draining reports whether a worker is drained. Only then AttemptEnded and ObjectStoredAt have
// effects.
func (m *Machine) Draining() bool { return len(m.drains) > 0 }

// Watching reports whether ObjectReported and ObjectGone can have effects.
func (m *Machine) Watching() bool {
	return len(m.drains)+len(m.keeps)+len(m.dropped) > 0 || m.rebalance != nil
}

// Copying reports whether any task copies an object. Only then CopyEnded has effects.
func (m *Machine) Copying() bool { return len(m.copies) > 0 }

// Totals returns the sums over the life of the machine.
func (m *Machine) Totals() Totals { return m.totals }

// Rescuing returns the number of objects that survivors are to copy.
func (m *Machine) Rescuing() int { return len(m.rescuing) }
