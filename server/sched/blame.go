package sched

import (
	"fmt"
	"strings"

	"github.com/millrace/millrace/internal/ids"
)

// outsideFactor is the number of outside deaths that count as much as one other death. They count
// at all because a function may also kill its worker by a signal.
const outsideFactor = 4

// suspect records the kill of a worker that had the task. The sender of a kill is not known, and it
// is seldom a task; so blame counts a kill as a quarter of a death. There is one pattern that makes
// the task the likely cause: each of the last killed workers had it, and some of them were running
// only this task (alone). streak counts the latter.
//
//   - The kill of a worker without the task, or of one that was running others beside it (ran, not
//     alone), starts the count again: people and the system also kill such workers.
//   - The kill of a worker that had the task only in its queue, as far as is known, changes
//     nothing: reports of the tasks before it may have been lost with the worker.
//   - An orderly end does not count, and a task that succeeds is no suspect any more.
func (m *Machine) suspect(id ids.TaskID, t *task, alone, ran bool) {
	tr := m.troubleIf(id, t)
	if tr == nil && !alone {
		return
	}
	tr = m.troubleOf(id, t)
	inRow := tr.streak > 0 && tr.lastKill == m.kills-1
	switch {
	case alone && inRow:
		tr.streak++
	case alone:
		tr.streak = 1
	case ran || !inRow:
		tr.streak = 0
	}
	tr.lastKill = m.kills
}

// blame counts a death at which the task was running. If that was one too many, it fails the task
// and returns true.
func (m *Machine) blame(id ids.TaskID, b *block, t *task, cause string, w *worker, reason string, outside bool) bool {
	tr := m.troubleOf(id, t)
	if outside {
		tr.kills++
	} else {
		tr.deaths++
	}
	tr.causes = append(tr.causes, cause)
	tr.avoid = w.id
	m.putTrouble(id, tr)
	if !m.poisonous(tr) {
		return false
	}
	m.poison(id, b, t, w.name, reason)
	return true
}

// maxEarlyKills is the number of kills of a worker, while it prepared the task, at which the task
// fails. Such a kill is no fault of the task. But the bytes of a task may contain code that kills
// the worker when they are loaded, and that must end as well.
const maxEarlyKills = 100

// noteKilledEarly counts a kill of the worker while it prepared the task. If that was one too many,
// it fails the task and returns true.
func (m *Machine) noteKilledEarly(id ids.TaskID, b *block, t *task, cause string, w *worker) bool {
	tr := m.troubleOf(id, t)
	tr.early++
	m.putTrouble(id, tr)
	if tr.early < maxEarlyKills {
		return false
	}
	tr.causes = append(tr.causes, fmt.Sprintf("%s, as %d times before the task had begun", cause, tr.early))
	m.poison(id, b, t, w.name, "WORKER_DIED")
	return true
}

// poisonous reports whether a task was running at too many deaths.
func (m *Machine) poisonous(tr *trouble) bool {
	most := m.config.MaxWorkerDeaths
	return tr.deaths >= most || tr.kills >= outsideFactor*most || tr.streak >= most
}

// poison fails a task because of the deaths at which it was running. REQUIRES: no worker has it.
func (m *Machine) poison(id ids.TaskID, b *block, t *task, worker, reason string) {
	key, tr := string(b.keyOf(t)), m.trouble[id]
	m.end(id, b, t, TaskFailed, &TaskError{
		Reason: "POISON_TASK",
		Message: fmt.Sprintf("task %s was running at %d deaths and is not tried again (%s): %s; look into the causes, then retry the task",
			key, len(tr.causes), reason, joinCauses(tr.causes)),
		OriginKey: key,
		Worker:    worker,
		Attempt:   ids.Attempt(t.attempt),
		Attempts:  tr.retries + uint32(len(tr.causes)),
		LogTail:   m.tails[id].text,
	})
}

// joinCauses lists causes by number. Only the last cause that has several lines (such as the stack
// of a crash) is shown in full; of each other one only the first line. The same function mostly
// crashes in the same place.
func joinCauses(causes []string) string {
	full := len(causes) - 1
	for full > 0 && !strings.Contains(causes[full], "\n") {
		full--
	}
	var b strings.Builder
	for i, c := range causes {
		if i > 0 {
			b.WriteString("; ")
		}
		if i != full {
			c, _, _ = strings.Cut(c, "\n")
		}
		fmt.Fprintf(&b, "%d. %s", i+1, c)
	}
	return b.String()
}
