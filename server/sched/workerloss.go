package sched

import (
	"fmt"
	"maps"
	"slices"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/copies"
)

// workerLost removes a worker. Its attempts are queued again; a task that was running at too many
// deaths fails. Its objects, if wanted and without another replica, are rescued or computed again.
func (m *Machine) workerLost(ev WorkerLost) {
	w := m.workerOf(ev.Worker)
	if w == nil {
		return
	}
	cause := ev.Cause
	if cause == "" {
		cause = "lost"
	}
	refs := m.underWay(w)
	// Remove the replicas first, so that no attempt is sent again with an input that is gone.
	var lost []ids.TaskID
	if ev.DeviceFault {
		ev.Survivors = nil
	}
	m.noteLostData(w, cause, ev.Gone)
	rescued := m.orderRescues(copies.WorkerLost{Worker: w.id, Left: ev.Left, Survivors: ev.Survivors})
	for _, id := range w.objects.members(nil) {
		if len(rescued) > 0 && rescued[0].Object == id {
			m.carryOut(rescued[:1])
			rescued = rescued[1:]
			m.awaitRescue(id, w)
			continue
		}
		if m.removeReplica(id, w) {
			lost = append(lost, id)
		} else if _, t := m.at(id); t.replicas != 0 {
			m.tell(copies.KeeperLost{Object: id})
		}
	}
	blame := make([]bool, len(refs))
	any := false
	for i, r := range refs {
		_, t := m.at(r.Task)
		blame[i] = m.ran(r, t, ev.Calls) && !w.blocked.has(r.Task)
		any = any || blame[i]
	}
	mayHang := ev.Outside && !ev.Killed && !ev.Gone
	// A task may kill its worker before the report of its start arrives. If no task is known to
	// run, assume that the first ones of the queue ran. If it is known that none ran, only a worker
	// that crashed by itself is a reason to suspect them: they may do that while they are prepared.
	guess := !any && (!ev.Outside || (ev.Killed || mayHang) && !ev.Calls.Known)
	prepared := make([]bool, len(refs))
	for i := 0; i < len(refs) && i < int(w.slots); i++ {
		_, t := m.at(refs[i].Task)
		first := t.missing == 0 && !w.blocked.has(refs[i].Task)
		blame[i] = blame[i] || guess && first
		prepared[i] = first && !blame[i] && ev.Killed && ev.Calls.Known
	}
	blamed := 0
	for _, b := range blame {
		if b {
			blamed++
		}
	}
	alone := blamed == 1 && (any || len(refs) == 1)
	if ev.Killed && blamed > 0 {
		m.kills++
	}
	hung := suspects{worker: w.name, alone: alone, counted: any}
	for i, r := range refs {
		b, t := m.at(r.Task)
		m.abandonAttempt(r.Task, b, t)
		if blame[i] && mayHang {
			hung.tasks = append(hung.tasks, r.Task)
			blame[i] = any
		} else if ev.Killed && blamed > 0 {
			m.suspect(r.Task, t, blame[i] && alone, blame[i] && any)
		} else if blame[i] {
			m.suspect(r.Task, t, false, true)
		}
		if blame[i] && m.blame(r.Task, b, t, fmt.Sprintf("worker %s: %s", w.name, cause), w, "WORKER_DIED", ev.Outside) ||
			prepared[i] && m.noteKilledEarly(r.Task, b, t, fmt.Sprintf("worker %s: %s", w.name, cause), w) {
			continue
		}
		m.requeue(r.Task, b, t)
	}
	m.silent.add(w.incarnation, hung)
	delete(m.workerIndex, w.id)
	m.workers[w.slot] = nil
	m.freeWorkers = append(m.freeWorkers, w.slot)
	m.order = slices.DeleteFunc(m.order, func(o *worker) bool { return o == w })
	m.countNotifiers()
	m.workerVersion++
	m.forgetRates(w.id)
	m.recover(lost)
	m.tell(copies.WorkerRemoved{Worker: w.id})
}

// ran reports whether an attempt was running when its worker died. The functions of executor
// processes are known if the supervisor knows them; of others, the report of the start counts.
func (m *Machine) ran(r TaskRef, t *task, calls Calls) bool {
	if calls.Known && m.ops[t.op].spec.Kind != OpNative {
		return slices.Contains(calls.Attempts, r)
	}
	return t.state == TaskRunning
}

// workerEnded gives up the bytes of a lost worker whose process is now known to have ended.
func (m *Machine) workerEnded(ev WorkerEnded) {
	m.silentEnded(ev)
	for _, id := range slices.Sorted(maps.Keys(m.lostData)) {
		if s := m.lostData[id]; s.incarnation == ev.Incarnation && s.until.After(m.now) {
			s.until, s.cause = m.now, ev.Cause
			m.lostData[id] = s
			m.giveUpData(id, &s)
		}
	}
}
