package sched

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/copies"
)

// This machine owns that of copies (server/copies): it tells it facts, carries out its effects, and
// lets it read its tables (copytables.go).

// tell steps the machine of copies.
func (m *Machine) tell(ev copies.Event) { m.carryOut(m.copier.Step(m.now, ev, nil)) }

// carryOut carries out effects of the machine of copies, in order.
func (m *Machine) carryOut(effects []copies.Effect) {
	for _, e := range effects {
		switch e.Kind {
		case copies.EffectRescue:
			_, t := m.at(e.Object)
			m.emit(Effect{Kind: EffectRescue, Worker: e.Worker, Dead: e.Dead, Task: e.Object, Attempt: ids.Attempt(t.attempt)})
		case copies.EffectGiveUp:
			_, t := m.at(e.Object)
			m.setState(e.Object, t, TaskReleased)
			m.recover([]ids.TaskID{e.Object})
		case copies.EffectUnmap:
			m.emit(Effect{Kind: EffectUnmap, Worker: e.Worker, Dead: e.Dead})
		case copies.EffectCopy:
			m.copyTo(e)
		case copies.EffectDropCopy:
			_, t := m.at(e.Object)
			m.copied = append(m.copied, m.graphs[t.graph].id)
		case copies.EffectKeep:
			_, t := m.at(e.Object)
			m.emitTo(EffectKeep, m.workerOf(e.Worker), e.Object, t.attempt)
		case copies.EffectDrop:
			_, t := m.at(e.Object)
			w := m.workerOf(e.Worker)
			m.emitTo(EffectRelease, w, e.Object, t.attempt)
			m.removeReplica(e.Object, w)
		case copies.EffectState:
			w := m.workerOf(e.Worker)
			if w.state == WorkerStateActive || e.State == WorkerStateActive {
				m.workerVersion++
			}
			w.state = e.State
			m.workerChanged(e.Worker)
		case copies.EffectWorkerChanged:
			m.workerChanged(e.Worker)
		case copies.EffectRetract:
			m.retractAll(m.workerOf(e.Worker))
		case copies.EffectLeave:
			m.emit(Effect{Kind: EffectDrained, Worker: e.Worker})
		case copies.EffectRetire:
			m.emit(Effect{Kind: EffectRetire, Worker: e.Worker})
		case copies.EffectRestart:
			m.emit(Effect{Kind: EffectRestart, Worker: e.Worker})
		case copies.EffectOrder:
			m.changedOrders = append(m.changedOrders, *e.Order)
			if m.config.Facts && len(m.changedOrders) == 1 {
				m.emit(Effect{Kind: EffectOrdersChanged})
			}
		case copies.EffectRebalanceEnded:
			m.emit(Effect{Kind: EffectRebalanceEnded})
		case copies.EffectContinue:
			m.tell(copies.Continued{})
		case copies.EffectWake:
			m.arm(timer{at: e.At, kind: timerCopies, wake: e.Wake.Kind, id: uint64(e.Wake.Worker)})
		}
	}
}

// copyOp is an op that does nothing. After it has run, its inputs are at its worker.
const copyOp = "core.replicate"

// copyKey begins the keys of tasks that the machine makes for copies.
const copyKey = "millrace.copy/"

func isCopyKey(key []byte) bool { return bytes.HasPrefix(key, []byte(copyKey)) }

// copyTo makes a worker fetch an object by a new task. The task is assigned at once even if the
// worker is busy: only the fetch matters, and inputs are fetched while other tasks run.
func (m *Machine) copyTo(e copies.Effect) {
	b, t := m.at(e.Object)
	result, err := m.submit(GraphSubmitted{
		Namespace: m.graphs[t.graph].ns.name, Name: e.Why,
		Ops:     []OpSpec{{Kind: OpNative, Name: copyOp}},
		Options: []Options{{Workers: []WorkerSelector{{Worker: e.Worker}}, Priority: math.MaxInt16}},
		Tasks:   []TaskSpec{{Key: fmt.Sprintf("%s%d", copyKey, e.Copy), Options: 1, Inputs: []string{string(b.keyOf(t))}, Hold: true}},
	})
	if err != nil {
		m.tell(copies.CopyRefused{Copy: e.Copy, Why: err.Message})
		return
	}
	id := result.Tasks[0]
	m.tell(copies.CopyBegan{Copy: e.Copy, Task: id, Worker: e.Worker})
	if b, t := m.at(id); t.state == TaskReady {
		m.assign(id, b, t, m.workerOf(e.Worker))
	}
}

// dropCopied drops the graphs of copies that have ended or are not wanted. The result of a copy is
// not wanted: only the replica of its input is. A client that holds the copy all the same gets its
// cancellation, because the copy could wait for ever for a worker that is lost.
func (m *Machine) dropCopied() {
	for _, id := range m.copied {
		g := m.graphOf(id)
		if g == nil || g.dropped {
			continue
		}
		m.dropGraph(g)
		m.eachTask(g, func(id ids.TaskID, _ *block, t *task) bool {
			if t.state.active() && t.wanted() {
				m.endings = append(m.endings, unwantedCopy(id))
			}
			return true
		})
	}
	m.copied = m.copied[:0]
}

// unwantedCopy ends a copy that nobody needs.
func unwantedCopy(id ids.TaskID) ending {
	return ending{task: id, state: TaskCancelled, err: cancelError("the copy is not wanted any more")}
}

// retractAll asks a worker to give back all tasks that it has not begun.
func (m *Machine) retractAll(w *worker) {
	for _, r := range m.underWay(w) {
		if _, t := m.at(r.Task); t.state == TaskAssigned {
			m.retract(w, r.Task, t)
		}
	}
}

// workerChanged makes the step end with one EffectWorkerChanged for the worker.
func (m *Machine) workerChanged(id ids.WorkerID) {
	if !slices.Contains(m.changedWorkers, id) {
		m.changedWorkers = append(m.changedWorkers, id)
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

// replicaGone tells that a worker holds an object no more, after the tables have changed.
func (m *Machine) replicaGone(id ids.TaskID, w *worker, remains bool) {
	if m.copier.Watching() {
		m.tell(copies.ObjectGone{Object: id, Worker: w.id, Remains: remains})
	}
}

// drainOrdered begins the drains that an operator orders, all or none.
func (m *Machine) drainOrdered(ev DrainOrdered) *Error {
	effects, err := m.copier.OrderDrain(m.now, copies.DrainOrdered(ev), nil)
	m.carryOut(effects)
	return refusal(err)
}

// drainUndone ends drains that operators ordered, all or none.
func (m *Machine) drainUndone(ev DrainUndone) *Error {
	effects, err := m.copier.UndoDrain(m.now, copies.DrainUndone(ev), nil)
	m.carryOut(effects)
	return refusal(err)
}

// ChangedOrders returns the orders of operators to drain workers that the last step has changed. It
// must not be changed.
func (m *Machine) ChangedOrders() []copies.DrainOrderChanged { return m.changedOrders }

// Orders and LoadOrder are those of the machine of copies.
func (m *Machine) Orders(cursor uint64, put func(row any)) (next uint64, more bool) {
	return m.copier.Orders(cursor, put)
}

// LoadOrder is that of the machine of copies.
func (m *Machine) LoadOrder(now time.Time, c copies.DrainOrderChanged) { m.copier.LoadOrder(now, c) }

// rebalanceOrdered plans a rebalance, and begins it unless it is a dry run.
func (m *Machine) rebalanceOrdered(ev RebalanceOrdered) (copies.RebalanceInfo, *Error) {
	info, effects, err := m.copier.OrderRebalance(m.now, copies.RebalanceOrdered(ev), nil)
	m.carryOut(effects)
	return info, refusal(err)
}

// Rebalance returns the rebalance in progress, or the last one. Its number is 0 if there was none.
func (m *Machine) Rebalance() copies.RebalanceInfo { return m.copier.Rebalance() }

// refusal returns the error of a request that the machine of copies refuses, or nil.
func refusal(err *copies.Error) *Error {
	if err == nil {
		return nil
	}
	e := &Error{Object: err.Object, Message: err.Message}
	switch err.Kind {
	case copies.ErrUnknownWorker:
		e.Kind = ErrUnknownWorker
	case copies.ErrWorkerLeaving:
		e.Kind = ErrWorkerLeaving
	case copies.ErrNotSupervised:
		e.Kind = ErrNotSupervised
	case copies.ErrRebalanceRunning:
		e.Kind = ErrRebalanceRunning
	case copies.ErrWorkerNotActive:
		e.Kind = ErrWorkerNotActive
	case copies.ErrOneWorker:
		e.Kind = ErrInvalidField
	}
	return e
}

// orderRescues tells that a worker is lost, and carries out all effects but the orders to rescue
// its objects. It returns these, in the order of the objects.
func (m *Machine) orderRescues(ev copies.WorkerLost) []copies.Effect {
	effects := m.copier.Step(m.now, ev, nil)
	for i, e := range effects {
		if e.Kind == copies.EffectRescue {
			return effects[i:]
		}
		m.carryOut(effects[i : i+1])
	}
	return nil
}

// awaitRescue records that an object of a lost worker is to be copied out of its memory.
func (m *Machine) awaitRescue(id ids.TaskID, dead *worker) {
	b, t := m.at(id)
	dead.part(id, t)
	b.drop(&t.replicas, dead.slot)
	m.replicaGone(id, dead, false)
	m.withdraw(id, t, TaskRescuing)
	m.notify(id, b, t)
}

// rescued records the copy of an object that was lost with a worker, by any worker that made one.
func (m *Machine) rescued(id ids.TaskID, b *block, t *task, w *worker) {
	m.tell(copies.RescueEnded{Object: id})
	m.forgetLostData(id)
	w.gain(id, t)
	b.push(&t.replicas, w.slot)
	m.totals.Rescued++
	m.setState(id, t, TaskSucceeded)
	m.notify(id, b, t)
	m.arrived(t)
	if m.copier.Draining() {
		m.tell(copies.ObjectStoredAt{Object: id})
	}
	m.tell(copies.KeeperLost{Object: id}) // the worker may have had a copy already
}

// rescueFailed handles a survivor's report that it could not copy objects.
func (m *Machine) rescueFailed(ev RescueFailed) {
	for _, o := range ev.Objects {
		m.tell(copies.RescueFailed{Worker: ev.Worker, Dead: ev.Dead, Object: o.Task, Generation: o.Generation})
	}
}
