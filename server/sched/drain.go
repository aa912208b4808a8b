package sched

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/millrace/millrace/internal/ids"
)

// A worker that is drained gets no new tasks, gives back the tasks that it has not begun, and
// finishes those that run. Meanwhile other workers copy the wanted objects that only it has
// (copy.go), and confirm that they keep them. A drain has one of two origins:
//
//   - The worker's process was told to stop (WorkerDraining). It leaves as soon as nothing can be
//     handed over any more, with EffectDrained.
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
	// announced means that EffectDrained, EffectRetire or EffectRestart was sent in this session.
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

// workerDraining begins the drain of a worker whose process was told to stop.
func (m *Machine) workerDraining(ev WorkerDraining) {
	w := m.workerOf(ev.Worker)
	if w == nil || w.state == WorkerStateDisconnected || w.drain != nil && w.drain.purpose == DrainStop {
		return
	}
	m.beginDrain(w, drainOrder{purpose: DrainStop, reason: "its process was told to stop", since: m.now})
}

// drainOrdered begins the drains that an operator orders, all or none.
func (m *Machine) drainOrdered(ev DrainOrdered) *Error {
	for _, id := range ev.Workers {
		w := m.workerOf(id)
		switch {
		case w == nil:
			return &Error{Kind: ErrUnknownWorker, Object: id.String(), Message: fmt.Sprintf("there is no worker %s, or it is lost: see the list of workers", id)}
		case ev.Purpose == DrainRestart && !w.supervised:
			return &Error{Kind: ErrNotSupervised, Object: w.name, Message: fmt.Sprintf(
				"worker %s (%s) runs without a supervisor, so nothing would start it again: retire it and start it by hand, or run it by `millrace worker`, which supervises it", w.name, w.id)}
		}
		if err := w.mayOrder(); err != nil {
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
		w := m.workerOf(id)
		m.keepOrder(w.name, order)
		m.beginDrain(w, order)
	}
	return nil
}

// mayOrder returns an error if the worker is about to end, so that no order can change it.
func (w *worker) mayOrder() *Error {
	if w.drain == nil || w.drain.purpose != DrainStop && !w.drain.announced {
		return nil
	}
	return &Error{Kind: ErrWorkerLeaving, Object: w.name, Message: fmt.Sprintf("worker %s (%s) leaves already: %s", w.name, w.id,
		cmp.Or(w.drain.reason, "an operator has ordered it"))}
}

// drainUndone ends drains that operators ordered, all or none. Workers that are not drained stay as
// they are.
func (m *Machine) drainUndone(ev DrainUndone) *Error {
	for _, name := range ev.Names {
		w := m.workerNamed(name)
		if w == nil && m.drainOrders[name] == nil {
			return &Error{Kind: ErrUnknownWorker, Object: name, Message: fmt.Sprintf("there is no worker %q that is not lost, and no order to drain one of that name: see the list of workers", name)}
		}
		if w != nil {
			if err := w.mayOrder(); err != nil {
				return err
			}
		}
	}
	for _, name := range ev.Names {
		delete(m.drainOrders, name)
		if w := m.workerNamed(name); w != nil && w.drain != nil {
			m.endDrain(w)
			if w.state != WorkerStateDisconnected {
				m.setWorkerState(w, WorkerStateActive)
			}
		}
	}
	return nil
}

// workerNamed returns the newest worker of a name that is not lost, or nil.
func (m *Machine) workerNamed(name string) *worker {
	for _, w := range slices.Backward(m.order) {
		if w.name == name {
			return w
		}
	}
	return nil
}

// keepOrder stores an operator's order for the later incarnations of a name.
func (m *Machine) keepOrder(name string, order drainOrder) {
	if m.drainOrders[name] == nil && len(m.drainOrders) >= ordersKept {
		oldest := ""
		for _, other := range sortedKeys(m.drainOrders) {
			if oldest == "" || m.drainOrders[other].since.Before(m.drainOrders[oldest].since) {
				oldest = other
			}
		}
		delete(m.drainOrders, oldest)
	}
	m.drainOrders[name] = &order
}

// resumeDrain applies an operator's order to a worker that has registered.
func (m *Machine) resumeDrain(w *worker) {
	order := m.drainOrders[w.name]
	if order != nil && order.purpose == DrainRetire && !order.lost.IsZero() && m.now.Sub(order.lost) > retireMemory {
		delete(m.drainOrders, w.name)
		order = nil
	}
	if order == nil {
		if w.drain != nil {
			m.endDrain(w) // a process that still wants to stop says so again
		}
		return
	}
	order.lost = time.Time{}
	m.beginDrain(w, *order)
}

// drainLost ends the drain of a worker that is lost. If left, it ended as it should.
func (m *Machine) drainLost(w *worker, left bool) {
	if w.drain != nil {
		m.endDrain(w)
	}
	if order := m.drainOrders[w.name]; order != nil {
		if order.purpose == DrainRestart || order.purpose == DrainRetire && left {
			delete(m.drainOrders, w.name)
			return
		}
		order.lost = m.now
	}
}

// beginDrain begins a drain, or continues one for another purpose. The step ends with a check.
func (m *Machine) beginDrain(w *worker, order drainOrder) {
	if w.drain == nil {
		w.drain = &drain{copies: make(map[ids.TaskID]*copying), keepers: make(map[ids.TaskID]keeper)}
		m.draining++
	}
	d := w.drain
	d.drainOrder, d.announced = order, false
	d.info = DrainInfo{Purpose: d.purpose, Reason: d.reason, Since: d.since, Until: d.until, CopiedObjects: d.info.CopiedObjects, CopiedBytes: d.info.CopiedBytes}
	m.workerChanged(w)
	m.recheckDrains = true
	if !d.until.IsZero() {
		m.arm(timer{at: d.until, kind: timerDrain, id: uint64(w.id)})
	}
	if w.state == WorkerStateDisconnected {
		return
	}
	if w.state == WorkerStateActive {
		m.setWorkerState(w, WorkerStateDraining)
	}
	for _, r := range m.underWay(w) {
		if _, t := m.at(r.Task); t.state == TaskAssigned {
			m.retract(w, r.Task, t)
		}
	}
}

// endDrain forgets a drain and stops its copies. The caller sets the worker's state.
func (m *Machine) endDrain(w *worker) {
	for _, id := range sortedKeys(w.drain.copies) {
		m.stopCopy(w.drain.copies[id])
	}
	w.drain = nil
	m.draining--
	m.workerChanged(w)
}

func (m *Machine) setWorkerState(w *worker, state WorkerState) {
	if w.state == state {
		return
	}
	if w.state == WorkerStateActive || state == WorkerStateActive {
		m.workersChanged()
	}
	w.state = state
	m.workerChanged(w)
}

// workersChanged must be called when the set of active workers changes.
func (m *Machine) workersChanged() {
	m.workerVersion++
	m.recheckDrains = m.recheckDrains || m.draining > 0
	if m.rebalance != nil {
		m.rebalance.again, m.recheckMoves = true, true
	}
}

// workerChanged makes the step end with one EffectWorkerChanged for the worker.
func (m *Machine) workerChanged(w *worker) {
	if !slices.Contains(m.changedWorkers, w.id) {
		m.changedWorkers = append(m.changedWorkers, w.id)
	}
}

func (m *Machine) flushWorkers() {
	for _, id := range m.changedWorkers {
		if m.workerOf(id) != nil {
			m.emit(Effect{Kind: EffectWorkerChanged, Worker: id})
		}
	}
	m.changedWorkers = m.changedWorkers[:0]
}

// checkDrainSoon makes a drain be checked at its next possible time.
func (m *Machine) checkDrainSoon(w *worker) {
	if w.drain != nil {
		m.checkDrainAt(w, w.drain.checked.Add(drainEvery+time.Duration(w.objects.count)*time.Microsecond))
	}
}

func (m *Machine) checkDrainAt(w *worker, at time.Time) {
	if at.Before(m.now) {
		at = m.now
	}
	if d := w.drain; d.due.IsZero() || d.due.After(at) {
		d.due = at
		m.arm(timer{at: at, kind: timerDrain, id: uint64(w.id)})
	}
}

// checkWaitingDrains makes the drains be checked that wait for room at other workers.
func (m *Machine) checkWaitingDrains() {
	if m.draining == 0 {
		return
	}
	for _, w := range m.order {
		if w.drain != nil && w.drain.info.RemainingObjects > 0 {
			m.checkDrainSoon(w)
		}
	}
}

// checkDrainsOf makes the drains of the workers that hold an object be checked, after its replicas
// have changed. A drained worker that alone has the object now is draining again.
func (m *Machine) checkDrainsOf(id ids.TaskID, b *block, t *task) {
	if m.draining == 0 {
		return
	}
	for l := t.replicas; l != 0; l = b.links[l].next {
		w := m.workers[b.links[l].value]
		if w.drain == nil {
			continue
		}
		if !m.kept(w, id, b, t) {
			m.secure(w, id, b, t)
			if w.state == WorkerStateDrained {
				m.setWorkerState(w, WorkerStateDraining)
			}
		}
		m.checkDrainSoon(w)
	}
}

// drainDue handles the timers of a drain.
func (m *Machine) drainDue(id ids.WorkerID) {
	w := m.workerOf(id)
	if w == nil || w.drain == nil {
		return
	}
	if d := w.drain; !d.due.IsZero() && !d.due.After(m.now) || !d.until.IsZero() && !d.until.After(m.now) {
		m.checkDrain(w)
	}
}

// checkDrain orders the copies that are missing, and decides whether the worker is drained.
func (m *Machine) checkDrain(w *worker) {
	d := w.drain
	if d == nil || w.state == WorkerStateDisconnected {
		return
	}
	if d.announced {
		// It is about to end. Its drain was complete; since then, the holder of another copy may
		// have begun to drain. That one hands the objects over.
		if w.state == WorkerStateDrained && !m.allKept(w) {
			m.setWorkerState(w, WorkerStateDraining)
		}
		return
	}
	d.checked, d.due = m.now, time.Time{}
	before := d.info
	d.info.RemainingObjects, d.info.RemainingBytes, d.info.StayingObjects, d.info.StayingBytes, d.info.Staying = 0, 0, 0, 0, nil
	hopeless := m.copyAway(w)
	switch {
	case d.purpose == DrainStop:
		if w.assigned == 0 && d.info.RemainingObjects == hopeless {
			d.announced = true
			m.emit(Effect{Kind: EffectDrained, Worker: w.id})
		}
	case w.assigned == 0 && d.info.RemainingObjects == 0:
		m.setWorkerState(w, WorkerStateDrained)
		m.endWorker(w)
	default:
		m.setWorkerState(w, WorkerStateDraining)
		if !d.until.IsZero() && !d.until.After(m.now) {
			m.endWorker(w)
		}
	}
	if !d.info.equal(&before) {
		m.workerChanged(w)
	}
}

// endWorker tells a worker to end its process if that is the purpose of its drain.
func (m *Machine) endWorker(w *worker) {
	kind := EffectRetire
	switch w.drain.purpose {
	case DrainStop, DrainKeep:
		return
	case DrainRetire:
	case DrainRestart:
		kind = EffectRestart
	}
	w.drain.announced = true
	m.emit(Effect{Kind: kind, Worker: w.id})
}

// copyAway orders the copies that a drain still needs. It counts the objects that remain, and
// returns the number of those that no worker can ever take, as far as is known.
func (m *Machine) copyAway(w *worker) (hopeless uint64) {
	d := w.drain
	var again time.Time
	targets := m.copyTargets()
	for _, id := range w.objects.members(nil) {
		b, t := m.at(id)
		c := d.copies[id]
		if c != nil && m.underCopy(c) && t.holders == 0 && t.unfinished == 1 {
			m.stopCopy(c) // only the copy itself still needs the object
			delete(d.copies, id)
			continue
		}
		if !m.isolated(id, b, t) {
			if c != nil {
				if c.task != 0 && t.state == TaskSucceeded {
					d.info.CopiedObjects++
					d.info.CopiedBytes += t.output
				}
				m.stopCopy(c)
				delete(d.copies, id)
			}
			if !m.kept(w, id, b, t) {
				d.info.RemainingObjects++
				d.info.RemainingBytes += t.output
				m.secure(w, id, b, t)
			}
			continue
		}
		d.info.RemainingObjects++
		d.info.RemainingBytes += t.output
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
				m.stays(d, id, b, t, fmt.Sprintf("%d copies failed, %s", c.tries, c.why))
				if again.IsZero() || c.again.Before(again) {
					again = c.again
				}
				hopeless++
				continue
			}
			c.tries = 0
		}
		to, why, ever := takeRoom(targets, t.output)
		switch {
		case to != nil:
			m.copyTo(to, c, b, t, "copies for the drain of "+w.name)
		case why != "":
			m.stays(d, id, b, t, why)
			if !ever {
				hopeless++
			}
		}
	}
	if !again.IsZero() {
		m.checkDrainAt(w, again)
	}
	// order-free: each entry is examined alone.
	for id := range d.keepers {
		if !w.objects.has(id) {
			delete(d.keepers, id)
		}
	}
	// The objects of these copies were released, or are gone from the worker.
	for _, id := range sortedKeys(d.copies) {
		if !w.objects.has(id) {
			m.stopCopy(d.copies[id])
			delete(d.copies, id)
		}
	}
	return hopeless
}

func (m *Machine) stays(d *drain, id ids.TaskID, b *block, t *task, why string) {
	d.info.StayingObjects++
	d.info.StayingBytes += t.output
	if len(d.info.Staying) < stayingKept {
		d.info.Staying = append(d.info.Staying, StayingObject{
			Task: id, Key: string(b.keyOf(t)), Namespace: m.graphs[t.graph].ns.name, Bytes: t.output, Reason: why,
		})
	}
}

// activeHolder reports whether an active worker has an object.
func (m *Machine) activeHolder(id ids.WorkerID, object ids.TaskID) bool {
	w := m.workerOf(id)
	return w != nil && w.state == WorkerStateActive && w.objects.has(object)
}

// isolated reports whether an object is wanted and has no replica on an active worker. An object
// that the scheduler holds inline is not isolated.
func (m *Machine) isolated(id ids.TaskID, b *block, t *task) bool {
	if t.state != TaskSucceeded || !t.wanted() || b.inlineOf(uint64(id&blockMask)) != nil {
		return false
	}
	for l := t.replicas; l != 0; l = b.links[l].next {
		if m.workers[b.links[l].value].state == WorkerStateActive {
			return false
		}
	}
	return true
}

// kept reports whether a draining worker's object is safe: it is not wanted, the scheduler holds it
// inline, or an active worker has confirmed that it keeps it.
func (m *Machine) kept(w *worker, id ids.TaskID, b *block, t *task) bool {
	if t.state != TaskSucceeded || !t.wanted() || b.inlineOf(uint64(id&blockMask)) != nil {
		return true
	}
	k, asked := w.drain.keepers[id]
	if !asked || !k.confirmed {
		return false
	}
	return m.activeHolder(k.worker, id)
}

func (m *Machine) allKept(w *worker) bool {
	return !slices.ContainsFunc(w.objects.members(nil), func(id ids.TaskID) bool {
		b, t := m.at(id)
		return !m.kept(w, id, b, t)
	})
}

// secure asks an active worker that has a draining worker's object to keep it, if there is one that
// was not asked yet.
func (m *Machine) secure(w *worker, id ids.TaskID, b *block, t *task) {
	if k := w.drain.keepers[id]; k.worker != 0 && m.activeHolder(k.worker, id) {
		return
	}
	if _, at := m.holdersOf(b, t); at != nil {
		m.keepAt(at, id, t)
		w.drain.keepers[id] = keeper{worker: at.id}
	} else {
		delete(w.drain.keepers, id)
	}
}

// holdersOf returns the oldest holder of an object, and the oldest one among the active workers;
// nil if there is none.
func (m *Machine) holdersOf(b *block, t *task) (oldest, active *worker) {
	for l := t.replicas; l != 0; l = b.links[l].next {
		oldest = m.workers[b.links[l].value] // it comes last
		if oldest.state == WorkerStateActive {
			active = oldest
		}
	}
	return oldest, active
}

// askToKeep asks holders of an object to keep it, after another holder has lost it. The oldest
// holder most likely does so anyway, because it made the object; the others may have copies, which
// they may drop. If the oldest one is not active, an active one keeps the object, too, because the
// oldest one may not be back.
func (m *Machine) askToKeep(id ids.TaskID, b *block, t *task) {
	oldest, active := m.holdersOf(b, t)
	m.keepAt(oldest, id, t)
	m.keepAt(active, id, t)
}

// keepAt asks a worker to keep an object, unless its answer is under way. If its connection is
// broken, it is asked when it is back.
func (m *Machine) keepAt(w *worker, id ids.TaskID, t *task) {
	if w != nil && w.keeps.add(id) {
		m.emitTo(EffectKeep, w, id, t.attempt)
	}
}

// askAgain forgets what a worker was asked to keep, when it opens a session: the request or the
// answer may have been lost. The drains ask again.
func (m *Machine) askAgain(at *worker) {
	for _, w := range m.order {
		if w.drain == nil {
			continue
		}
		// order-free: each entry is examined alone.
		for id, k := range w.drain.keepers {
			if k.worker == at.id {
				delete(w.drain.keepers, id)
			}
		}
	}
}

// keepConfirmed handles the answer to EffectKeep: the worker keeps the object.
func (m *Machine) keepConfirmed(id ids.TaskID, b *block, t *task, at *worker) {
	if m.draining == 0 {
		return
	}
	for l := t.replicas; l != 0; l = b.links[l].next {
		w := m.workers[b.links[l].value]
		if w.drain == nil {
			continue
		}
		if k := w.drain.keepers[id]; k.worker == at.id && !k.confirmed {
			w.drain.keepers[id] = keeper{worker: at.id, confirmed: true}
			m.checkDrainSoon(w)
		}
	}
}

// checkDrains checks the drains after the set of active workers has changed.
func (m *Machine) checkDrains() {
	m.recheckDrains = false
	for _, w := range m.order {
		if w.drain != nil {
			m.checkDrain(w)
		}
	}
}
