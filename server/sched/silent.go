package sched

import (
	"slices"

	"github.com/millrace/millrace/internal/ids"
)

// A function can stop its whole worker (SIGSTOP, a C library that never returns while it holds the
// runtime); then the worker falls silent. When the scheduler loses a worker because of silence, it
// does not know whether the worker hangs or only its network is broken. The worker's supervisor
// knows, and kills a worker that hangs some seconds later. Until then the machine remembers the
// tasks that the worker was running. If the worker was killed, that counts like any other kill (see
// suspect). If it comes back, the network was the cause.

// maxSilent bounds the lost workers that the machine remembers.
const maxSilent = 1024

// suspects are the tasks that a worker was running, as far as is known, when it fell silent.
type suspects struct {
	worker string
	tasks  []ids.TaskID
	// alone means that only one task can have been running.
	alone bool
	// counted means that the tasks were already blamed when the worker was lost.
	counted bool
}

// silent has the suspects of lost workers that may still be alive, by incarnation. order lists the
// same incarnations, oldest first.
type silent struct {
	by    map[string]suspects
	order []string
}

func (s *silent) add(incarnation string, x suspects) {
	if len(x.tasks) == 0 {
		return
	}
	if s.by == nil {
		s.by = make(map[string]suspects)
	}
	s.drop(incarnation)
	s.by[incarnation] = x
	s.order = append(s.order, incarnation)
	if len(s.order) > maxSilent {
		s.drop(s.order[0])
	}
}

func (s *silent) drop(incarnation string) (x suspects, known bool) {
	if x, known = s.by[incarnation]; known {
		delete(s.by, incarnation)
		s.order = slices.DeleteFunc(s.order, func(i string) bool { return i == incarnation })
	}
	return x, known
}

// silentEnded blames the tasks of a lost worker if its process has now been killed.
func (m *Machine) silentEnded(ev WorkerEnded) {
	x, known := m.silent.drop(ev.Incarnation)
	if !known || !ev.Killed {
		return
	}
	m.kills++
	for _, id := range x.tasks {
		b, t := m.lookup(id)
		if t == nil || !t.state.active() {
			continue
		}
		if !x.counted && ev.Calls.Known && !slices.ContainsFunc(ev.Calls.Attempts, func(r TaskRef) bool { return r.Task == id }) && m.ops[t.op].spec.Kind != OpNative {
			continue // its function had not begun
		}
		m.suspect(id, t, x.alone, x.counted)
		tr := m.troubleOf(id, t)
		if !x.counted {
			tr.kills++
			tr.causes = append(tr.causes, "worker "+x.worker+": "+ev.Cause)
			m.putTrouble(id, tr)
		}
		if !m.poisonous(tr) {
			continue
		}
		if t.state.assigned() {
			w := m.workers[t.worker-1]
			m.abandonAttempt(id, b, t)
			m.emitTo(EffectCancel, w, id, t.attempt)
		}
		m.poison(id, b, t, x.worker, "WORKER_DIED")
	}
}
