package copies

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/millrace/millrace/internal/ids"
)

// A worker that is drained gets no new tasks, gives back the tasks that it has not begun, and
// finishes those that run. Meanwhile other workers copy the wanted objects that only it has
// (copy.go), and confirm that they keep them. A drain has one of two origins:
//
//   - The worker's process was told to stop (WorkerDraining). It leaves as soon as nothing can be
//     handed over any more, with EffectLeave.
//   - An operator ordered it (DrainOrdered). The worker is DRAINED when it has no task and no
//     wanted object that no active worker keeps. If objects cannot be copied, it stays DRAINING,
//     and DrainInfo says which and why. DRAINED is not for ever: if the other copy of an object is
//     lost, the worker is DRAINING again. An order to retire or to restart ends the process when it
//     is DRAINED, or after a given time.
//
// An operator's order is about the worker's name. It holds for later incarnations, so that a worker
// that dies during its drain does not take tasks again, until it is undone or fulfilled.

// DrainPurpose is the reason why a worker is drained, and says what follows.
type DrainPurpose uint8

// Purposes; the values equal those of the API.
const (
	// DrainStop: its process was told to stop, and leaves by itself.
	DrainStop DrainPurpose = 1
	// DrainKeep: its process stays.
	DrainKeep DrainPurpose = 2
	// DrainRetire: its process ends for good.
	DrainRetire DrainPurpose = 3
	// DrainRestart: its process ends, and its supervisor starts the next one.
	DrainRestart DrainPurpose = 4
)

// String returns the purpose for people.
func (p DrainPurpose) String() string {
	names := [...]string{"none", "stop", "keep", "retire", "restart"}
	if int(p) < len(names) {
		return names[p]
	}
	return "unknown"
}

const (
	// drainEvery is the shortest time between two checks of a drain. Each object of the worker adds
	// a microsecond, because a check visits all of them.
	drainEvery = 10 * time.Millisecond
	// stayingKept bounds the objects that a DrainInfo lists.
	stayingKept = 20
	// ordersKept bounds the names with orders. The oldest order is dropped first.
	ordersKept = 4096
	// retireMemory is how long an order to retire waits for the next incarnation of a worker that
	// died before it was fulfilled. After that, the name may be used for a new worker.
	retireMemory = 5 * time.Minute
)

// drainOrder is an operator's order about a worker's name.
type drainOrder struct {
	number uint64
	// worker is the incarnation that had the name when the order was given.
	worker       ids.WorkerID
	purpose      DrainPurpose
	reason       string
	since, until time.Time // until is zero if the process may not end before it is drained
	// lost is when the last incarnation was lost; zero while one is registered.
	lost time.Time
}

// drain is the drain of one worker incarnation.
type drain struct {
	drainOrder
	// copies are the objects that are being copied or still have to be copied. keepers are the
	// active workers that were asked to keep the other objects.
	copies  map[ids.TaskID]*copying
	keepers map[ids.TaskID]keeper
	// announced means that EffectLeave, EffectRetire or EffectRestart was sent in this session.
	announced bool
	// checked is the time of the last check. due is the time of the next one; zero: none is due.
	checked, due time.Time
	info         DrainInfo
}

// keeper is a worker that has an object and was told to keep it. Without that it may drop an object
// that it got as a copy. confirmed means that it has answered.
type keeper struct {
	worker    ids.WorkerID
	confirmed bool
}

// DrainInfo is a snapshot of a drain, as of its last check.
type DrainInfo struct {
	Purpose DrainPurpose
	Reason  string
	Since   time.Time
	// Until is when the process ends even if it is not drained; zero: never.
	Until time.Time
	// Copied are objects that other workers have copied since the drain began.
	CopiedObjects, CopiedBytes uint64
	// Remaining are wanted objects that no active worker keeps. Staying are those of them that no
	// worker can take now; List has the first 20 of these.
	RemainingObjects, RemainingBytes uint64
	StayingObjects, StayingBytes     uint64
	Staying                          []StayingObject
}

// StayingObject is an object that only a draining worker has, and why no other one copies it.
type StayingObject struct {
	Task           ids.TaskID
	Key, Namespace string
	Bytes          uint64
	Reason         string
}

// equal reports whether two checks of one drain had the same result.
func (d *DrainInfo) equal(other *DrainInfo) bool {
	return d.CopiedObjects == other.CopiedObjects && d.RemainingObjects == other.RemainingObjects && d.RemainingBytes == other.RemainingBytes &&
		d.StayingObjects == other.StayingObjects && d.StayingBytes == other.StayingBytes && slices.Equal(d.Staying, other.Staying)
}

// workerDraining begins the drain of a worker whose process was told to stop. A worker that may
// leave already asks again if it has got an object since, by a rescue.
func (m *Machine) workerDraining(ev WorkerDraining) {
	w, known := m.tables.Worker(ev.Worker)
	if !known || w.State == WorkerStateDisconnected {
		return
	}
	order := drainOrder{purpose: DrainStop, reason: "its process was told to stop", since: m.now}
	if d := m.drains[ev.Worker]; d != nil && d.purpose == DrainStop {
		if !d.announced {
			return
		}
		order = d.drainOrder
	}
	m.beginDrain(w, order)
}

// drainOrdered begins the drains that an operator orders, all or none.
func (m *Machine) drainOrdered(ev DrainOrdered) *Error {
	for _, id := range ev.Workers {
		w, known := m.tables.Worker(id)
		switch {
		case !known:
			return &Error{Kind: ErrUnknownWorker, Object: id.String(), Message: fmt.Sprintf("there is no worker %s, or it is lost: see the list of workers", id)}
		case ev.Purpose == DrainRestart && !w.Supervised:
			return &Error{Kind: ErrNotSupervised, Object: w.Name, Message: fmt.Sprintf(
				"worker %s (%s) runs without a supervisor, so nothing would start it again: retire it and start it by hand, or run it by `millrace worker`, which supervises it", w.Name, w.ID)}
		}
		if err := m.mayOrder(w); err != nil {
			return err
		}
	}
	order := drainOrder{purpose: ev.Purpose, reason: ev.Reason, since: m.now}
	if ev.Timeout > 0 && ev.Purpose != DrainKeep {
		order.until = m.now.Add(ev.Timeout)
	}
	// The drains are checked at the end of the step, so that none of these workers copies the
	// objects of another one.
	for _, id := range ev.Workers {
		w, _ := m.tables.Worker(id)
		order.worker = id
		m.keepOrder(w.Name, order)
		m.beginDrain(w, order)
	}
	return nil
}

// mayOrder returns an error if the worker is about to end, so that no order can change it.
func (m *Machine) mayOrder(w Worker) *Error {
	d := m.drains[w.ID]
	if d == nil || d.purpose != DrainStop && !d.announced {
		return nil
	}
	return &Error{Kind: ErrWorkerLeaving, Object: w.Name, Message: fmt.Sprintf("worker %s (%s) leaves already: %s", w.Name, w.ID,
		cmp.Or(d.reason, "an operator has ordered it"))}
}

// drainUndone ends drains that operators ordered, all or none. Workers that are not drained stay as
// they are. If a process was told to stop meanwhile, it goes on stopping: only its later
// incarnations are used again.
func (m *Machine) drainUndone(ev DrainUndone) *Error {
	for _, name := range ev.Names {
		w, known := m.workerNamed(name)
		if !known && m.drainOrders[name] == nil {
			return &Error{Kind: ErrUnknownWorker, Object: name, Message: fmt.Sprintf("there is no worker %q that is not lost, and no order to drain one of that name: see the list of workers", name)}
		}
		if err := m.mayOrder(w); known && err != nil && !(m.drainOrders[name] != nil && m.stops(w.ID)) {
			return err
		}
	}
	for _, name := range ev.Names {
		m.dropOrder(name)
		if w, known := m.workerNamed(name); known && m.drains[w.ID] != nil && !m.stops(w.ID) {
			m.endDrain(w.ID)
			if w.State != WorkerStateDisconnected {
				m.setState(w, WorkerStateActive)
			}
		}
	}
	return nil
}

// stops reports whether a worker's process was told to stop.
func (m *Machine) stops(worker ids.WorkerID) bool {
	d := m.drains[worker]
	return d != nil && d.purpose == DrainStop
}

// workerNamed returns the newest worker of a name that is not lost; false: there is none.
func (m *Machine) workerNamed(name string) (Worker, bool) {
	for _, w := range slices.Backward(m.tables.Workers()) {
		if w.Name == name {
			return w, true
		}
	}
	return Worker{}, false
}

// keepOrder stores an operator's order for the later incarnations of a name.
func (m *Machine) keepOrder(name string, order drainOrder) {
	if m.drainOrders[name] == nil && len(m.drainOrders) >= ordersKept {
		oldest := ""
		for _, other := range slices.Sorted(maps.Keys(m.drainOrders)) {
			if oldest == "" || m.drainOrders[other].since.Before(m.drainOrders[oldest].since) {
				oldest = other
			}
		}
		m.dropOrder(oldest)
	}
	m.orderNumber++
	order.number = m.orderNumber
	m.drainOrders[name] = &order
	m.putOrder(name)
}

// resumeDrain applies an operator's order to a worker that has registered.
func (m *Machine) resumeDrain(w Worker) {
	order := m.drainOrders[w.Name]
	if order != nil && !m.holds(order, w.ID) {
		m.dropOrder(w.Name)
		order = nil
	}
	if order == nil {
		if m.drains[w.ID] != nil {
			m.endDrain(w.ID) // a process that still wants to stop says so again
		}
		return
	}
	if !order.lost.IsZero() {
		if order.lost = (time.Time{}); order.purpose == DrainRetire {
			m.putOrder(w.Name)
		}
	}
	m.beginDrain(w, *order)
}

// holds reports whether an order about the name of a worker is still about that worker.
func (m *Machine) holds(order *drainOrder, worker ids.WorkerID) bool {
	forgotten := order.purpose == DrainRetire && !order.lost.IsZero() && m.now.Sub(order.lost) > retireMemory
	// A worker was restarted while the scheduler was, or its death was not known.
	fulfilled := order.purpose == DrainRestart && order.worker != worker
	return !forgotten && !fulfilled
}

// Ordered returns the drain that a worker resumes when it registers, which it has not done since
// the scheduler was started; false: none.
func (m *Machine) Ordered(worker ids.WorkerID, name string) (DrainInfo, bool) {
	order := m.drainOrders[name]
	if order == nil || !m.holds(order, worker) {
		return DrainInfo{}, false
	}
	return DrainInfo{Purpose: order.purpose, Reason: order.reason, Since: order.since, Until: order.until}, true
}

// drainLost ends the drain of a worker that is lost. If left, it ended as it should.
func (m *Machine) drainLost(w Worker, left bool) {
	if m.drains[w.ID] != nil {
		m.endDrain(w.ID)
	}
	if order := m.drainOrders[w.Name]; order != nil {
		if order.purpose == DrainRestart || order.purpose == DrainRetire && left {
			m.dropOrder(w.Name)
			return
		}
		if order.lost = m.now; order.purpose == DrainRetire {
			m.putOrder(w.Name)
		}
	}
}

// beginDrain begins a drain, or continues one for another purpose. The step ends with a check.
func (m *Machine) beginDrain(w Worker, order drainOrder) {
	d := m.drains[w.ID]
	if d == nil {
		d = &drain{copies: make(map[ids.TaskID]*copying), keepers: make(map[ids.TaskID]keeper)}
		m.drains[w.ID] = d
	}
	d.drainOrder, d.announced = order, false
	d.info = DrainInfo{Purpose: d.purpose, Reason: d.reason, Since: d.since, Until: d.until, CopiedObjects: d.info.CopiedObjects, CopiedBytes: d.info.CopiedBytes}
	m.workerChanged(w.ID)
	m.recheckDrains = true
	if !d.until.IsZero() {
		m.wake(d.until, Wake{Kind: WakeDrain, Worker: w.ID})
	}
	if w.State == WorkerStateDisconnected {
		return
	}
	if w.State == WorkerStateActive {
		m.setState(w, WorkerStateDraining)
	}
	m.emit(Effect{Kind: EffectRetract, Worker: w.ID})
}

// endDrain forgets a drain and stops its copies. The caller sets the worker's state.
func (m *Machine) endDrain(worker ids.WorkerID) {
	d := m.drains[worker]
	for _, id := range slices.Sorted(maps.Keys(d.copies)) {
		m.stopCopy(d.copies[id])
	}
	delete(m.drains, worker)
	m.workerChanged(worker)
}

// setState changes the state of a worker, once in a step at most.
func (m *Machine) setState(w Worker, state WorkerState) {
	if w.State == state {
		return
	}
	if w.State == WorkerStateActive || state == WorkerStateActive {
		m.workersChanged()
	}
	m.emit(Effect{Kind: EffectState, Worker: w.ID, State: state})
}

// workersChanged must be called when the set of active workers changes.
func (m *Machine) workersChanged() {
	m.recheckDrains = m.recheckDrains || len(m.drains) > 0
	if m.rebalance != nil {
		m.rebalance.again, m.recheckMoves = true, true
	}
}

func (m *Machine) workerChanged(worker ids.WorkerID) {
	m.emit(Effect{Kind: EffectWorkerChanged, Worker: worker})
}

// Drain returns the drain of a worker, as of its last check; false: it is not drained. The list in
// it must not be changed.
func (m *Machine) Drain(worker ids.WorkerID) (DrainInfo, bool) {
	if d := m.drains[worker]; d != nil {
		return d.info, true
	}
	return DrainInfo{}, false
}

// checkDrainSoon makes the drain that a worker may have be checked at its next possible time.
func (m *Machine) checkDrainSoon(worker ids.WorkerID) {
	if d := m.drains[worker]; d != nil {
		w, _ := m.tables.Worker(worker)
		m.checkDrainAt(worker, d, d.checked.Add(drainEvery+time.Duration(w.Objects)*time.Microsecond))
	}
}

func (m *Machine) checkDrainAt(worker ids.WorkerID, d *drain, at time.Time) {
	if at.Before(m.now) {
		at = m.now
	}
	if d.due.IsZero() || d.due.After(at) {
		d.due = at
		m.wake(at, Wake{Kind: WakeDrain, Worker: worker})
	}
}

// checkWaitingDrains makes the drains be checked that wait for room at other workers.
func (m *Machine) checkWaitingDrains() {
	if len(m.drains) == 0 {
		return
	}
	for _, worker := range slices.Sorted(maps.Keys(m.drains)) {
		if m.drains[worker].info.RemainingObjects > 0 {
			m.checkDrainSoon(worker)
		}
	}
}

// checkDrainsOf makes the drains of the workers that hold an object be checked, after its replicas
// have changed. A drained worker that alone has the object now is draining again.
func (m *Machine) checkDrainsOf(id ids.TaskID) {
	if len(m.drains) == 0 {
		return
	}
	o, _ := m.tables.Object(id)
	for _, worker := range m.tables.Holders(id, nil) {
		d := m.drains[worker]
		if d == nil {
			continue
		}
		if !m.kept(d, id, &o) {
			m.secure(d, id)
			if w, _ := m.tables.Worker(worker); w.State == WorkerStateDrained {
				m.setState(w, WorkerStateDraining)
			}
		}
		m.checkDrainSoon(worker)
	}
}

// drainDue handles the deadlines of a drain.
func (m *Machine) drainDue(worker ids.WorkerID) {
	d := m.drains[worker]
	if d == nil {
		return
	}
	if !d.due.IsZero() && !d.due.After(m.now) || !d.until.IsZero() && !d.until.After(m.now) {
		m.checkDrain(worker)
	}
}

// checkDrain orders the copies that are missing, and decides whether the worker is drained.
func (m *Machine) checkDrain(worker ids.WorkerID) {
	d := m.drains[worker]
	w, _ := m.tables.Worker(worker)
	if d == nil || w.State == WorkerStateDisconnected {
		return
	}
	if d.announced {
		// It is about to end. Its drain was complete; since then, the holder of another copy may
		// have begun to drain. That one hands the objects over.
		if w.State == WorkerStateDrained && !m.allKept(w.ID, d) {
			m.setState(w, WorkerStateDraining)
		}
		return
	}
	d.checked, d.due = m.now, time.Time{}
	before := d.info
	d.info.RemainingObjects, d.info.RemainingBytes, d.info.StayingObjects, d.info.StayingBytes, d.info.Staying = 0, 0, 0, 0, nil
	hopeless := m.copyAway(w, d)
	switch {
	case d.purpose == DrainStop:
		if w.Assigned == 0 && d.info.RemainingObjects == hopeless {
			d.announced = true
			m.emit(Effect{Kind: EffectLeave, Worker: w.ID})
		}
	case w.Assigned == 0 && d.info.RemainingObjects == 0:
		m.setState(w, WorkerStateDrained)
		m.endWorker(w.ID, d)
	default:
		m.setState(w, WorkerStateDraining)
		if !d.until.IsZero() && !d.until.After(m.now) {
			m.endWorker(w.ID, d)
		}
	}
	if !d.info.equal(&before) {
		m.workerChanged(w.ID)
	}
}

// endWorker tells a worker to end its process if that is the purpose of its drain.
func (m *Machine) endWorker(worker ids.WorkerID, d *drain) {
	kind := EffectRetire
	switch d.purpose {
	case DrainStop, DrainKeep:
		return
	case DrainRetire:
	case DrainRestart:
		kind = EffectRestart
	}
	d.announced = true
	m.emit(Effect{Kind: kind, Worker: worker})
}

// copyAway orders the copies that a drain still needs. It counts the objects that remain, and
// returns the number of those that no worker can ever take, as far as is known.
func (m *Machine) copyAway(w Worker, d *drain) (hopeless uint64) {
	var again time.Time
	targets := m.copyTargets()
	held := m.tables.Objects(w.ID)
	for _, id := range held {
		o, _ := m.tables.Object(id)
		c := d.copies[id]
		if c != nil && m.underCopy(c) && o.neededByOneTask() {
			m.stopCopy(c) // only the copy itself still needs the object
			delete(d.copies, id)
			continue
		}
		if m.neededByStopped(id, &o) {
			delete(d.copies, id) // It was stopped in the check of another drain, or by a rebalance.
			continue
		}
		if !m.isolated(id, &o) {
			if c != nil {
				if c.task != 0 && o.State == ObjectStored {
					d.info.CopiedObjects++
					d.info.CopiedBytes += o.Bytes
				}
				m.stopCopy(c)
				delete(d.copies, id)
			}
			if !m.kept(d, id, &o) {
				d.info.RemainingObjects++
				d.info.RemainingBytes += o.Bytes
				m.secure(d, id)
			}
			continue
		}
		d.info.RemainingObjects++
		d.info.RemainingBytes += o.Bytes
		if c == nil {
			c = &copying{object: id}
			d.copies[id] = c
		}
		m.abandonCopy(c)
		if other := m.copyOf[id]; other != nil && m.underCopy(other) {
			continue // this drain's own copy, or one for another drain
		}
		if c.tries >= maxCopyTries {
			if c.again.After(m.now) {
				m.stays(d, id, &o, fmt.Sprintf("%d copies failed, %s", c.tries, c.why))
				if again.IsZero() || c.again.Before(again) {
					again = c.again
				}
				hopeless++
				continue
			}
			c.tries = 0
		}
		to, why, ever := takeRoom(targets, o.Bytes)
		switch {
		case to != nil:
			m.copyTo(to.ID, c, "copies for the drain of "+w.Name)
		case why != "":
			m.stays(d, id, &o, why)
			if !ever {
				hopeless++
			}
		}
	}
	if !again.IsZero() {
		m.checkDrainAt(w.ID, d, again)
	}
	// order-free: each entry is examined alone.
	for id := range d.keepers {
		if !m.tables.Holds(w.ID, id) {
			delete(d.keepers, id)
		}
	}
	// The objects of these copies were released, or are gone from the worker.
	for _, id := range slices.Sorted(maps.Keys(d.copies)) {
		if !m.tables.Holds(w.ID, id) {
			m.stopCopy(d.copies[id])
			delete(d.copies, id)
		}
	}
	return hopeless
}

func (m *Machine) stays(d *drain, id ids.TaskID, o *Object, why string) {
	d.info.StayingObjects++
	d.info.StayingBytes += o.Bytes
	if len(d.info.Staying) < stayingKept {
		key, namespace := m.tables.Key(id)
		d.info.Staying = append(d.info.Staying, StayingObject{Task: id, Key: key, Namespace: namespace, Bytes: o.Bytes, Reason: why})
	}
}

// activeHolder reports whether an active worker has an object.
func (m *Machine) activeHolder(id ids.WorkerID, object ids.TaskID) bool {
	w, _ := m.tables.Worker(id)
	return w.State == WorkerStateActive && m.tables.Holds(id, object)
}

// isolated reports whether an object is wanted and has no replica on an active worker. An object
// that the scheduler holds inline is not isolated.
func (m *Machine) isolated(id ids.TaskID, o *Object) bool {
	if o.State != ObjectStored || !o.Wanted || o.Inline {
		return false
	}
	_, active := m.holdersOf(id)
	return active == 0
}

// kept reports whether the object of a draining worker is safe: it is not wanted, the scheduler
// holds it inline, or an active worker has confirmed that it keeps it.
func (m *Machine) kept(d *drain, id ids.TaskID, o *Object) bool {
	if o.State != ObjectStored || !o.Wanted || o.Inline {
		return true
	}
	k, asked := d.keepers[id]
	if !asked || !k.confirmed {
		return false
	}
	return m.activeHolder(k.worker, id)
}

func (m *Machine) allKept(worker ids.WorkerID, d *drain) bool {
	return !slices.ContainsFunc(m.tables.Objects(worker), func(id ids.TaskID) bool {
		o, _ := m.tables.Object(id)
		return !m.kept(d, id, &o)
	})
}

// secure asks an active worker that has the object of a draining one to keep it, if there is one
// that was not asked yet.
func (m *Machine) secure(d *drain, id ids.TaskID) {
	if k := d.keepers[id]; k.worker != 0 && m.activeHolder(k.worker, id) {
		return
	}
	if _, at := m.holdersOf(id); at != 0 {
		m.keepAt(at, id)
		d.keepers[id] = keeper{worker: at}
	} else {
		delete(d.keepers, id)
	}
}

// keepConfirmed handles the answer to EffectKeep: the worker keeps the object.
func (m *Machine) keepConfirmed(id ids.TaskID, at ids.WorkerID) {
	if len(m.drains) == 0 {
		return
	}
	for _, worker := range m.tables.Holders(id, nil) {
		d := m.drains[worker]
		if d == nil {
			continue
		}
		if k := d.keepers[id]; k.worker == at && !k.confirmed {
			d.keepers[id] = keeper{worker: at, confirmed: true}
			m.checkDrainSoon(worker)
		}
	}
}

// checkNextDrain checks one of the drains after the set of active workers has changed. The next one
// is checked when the effects are carried out, because it counts the room that they take.
func (m *Machine) checkNextDrain() {
	worker := m.unchecked[0]
	m.unchecked = m.unchecked[1:]
	m.checkDrain(worker)
	if len(m.unchecked) > 0 {
		m.emit(Effect{Kind: EffectContinue})
	}
}
