package sched

import (
	"bytes"
	"fmt"
	"math"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/copies"
)

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
			m.replicaDropped(e.Object, w)
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

// isCopy reports whether the machine has made a task to copy an object.
func (m *Machine) isCopy(b *block, t *task) bool {
	return m.ops[t.op].spec.Name == copyOp && bytes.HasPrefix(b.keyOf(t), []byte(copyKey))
}

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
