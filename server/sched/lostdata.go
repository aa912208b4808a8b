package sched

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/millrace/millrace/internal/ids"
)

// Scattered data cannot be computed again. A lost worker is not always dead: its connection may
// have broken, or its machine may have stood still. So the scheduler waits for bytes that only that
// worker had: the task is WAITING again, in the same generation, and so are the tasks that need it,
// until the worker is back with the bytes or Config.DataGrace is over. If the worker's process is
// known to have ended, the scheduler does not wait.

// lostData is scattered data that was on a lost worker.
type lostData struct {
	name, incarnation, cause string
	// until is the time at which the bytes are given up. It is not in the future if the worker is
	// known to be dead.
	until time.Time
}

// noteLostData records the scattered data of a worker that is being lost. REQUIRES: the worker's
// replicas are still recorded.
func (m *Machine) noteLostData(w *worker, cause string, gone bool) {
	s := lostData{name: w.name, incarnation: w.incarnation, cause: cause, until: m.now}
	if !gone && m.config.DataGrace > 0 {
		s.until = m.now.Add(m.config.DataGrace)
	}
	noted := false
	for _, id := range w.objects.members(nil) {
		if _, t := m.at(id); m.ops[t.op].spec.Kind == OpData {
			m.lostData[id] = s
			noted = true
		}
	}
	if noted {
		m.arm(timer{at: s.until, kind: timerLostData})
	}
}

// dataAwaited reports whether the machine still waits for the bytes of a task.
func (m *Machine) dataAwaited(id ids.TaskID) bool {
	return len(m.lostData) > 0 && m.lostData[id].until.After(m.now)
}

// dataLost reports whether the bytes of a task were lost, and may come back.
func (m *Machine) dataLost(id ids.TaskID) bool {
	_, lost := m.lostData[id]
	return lost
}

// forgetLostData removes the record of a task's lost data: the bytes are there, or are not awaited
// any more.
func (m *Machine) forgetLostData(id ids.TaskID) {
	if len(m.lostData) > 0 {
		delete(m.lostData, id)
	}
}

// lostDataDue gives up the bytes whose waiting time is over.
func (m *Machine) lostDataDue() {
	for _, id := range slices.Sorted(maps.Keys(m.lostData)) {
		if s := m.lostData[id]; !s.until.After(m.now) {
			m.giveUpData(id, &s)
		}
	}
}

func (m *Machine) giveUpData(id ids.TaskID, s *lostData) {
	b, t := m.lookup(id)
	switch {
	case t != nil && t.state == TaskWaiting && t.attempt > 0:
		m.end(id, b, t, TaskFailed, m.objectLost(id, b, t))
	case t != nil && t.state == TaskRescuing:
		return // still needed as the cause in case the rescue fails
	}
	delete(m.lostData, id)
}

// whereLost is a text that says where the bytes of a task were lost; empty if that is not known.
func (m *Machine) whereLost(id ids.TaskID) string {
	s, ok := m.lostData[id]
	if !ok {
		return ""
	}
	return fmt.Sprintf(" (worker %s had them: %s)", s.name, s.cause)
}
