package sched

import "github.com/millrace/millrace/internal/ids"

// trouble records the problems of a task; most tasks have none.
type trouble struct {
	retries, deaths uint32
	// early counts the kills of workers that prepared the task.
	early uint32
	// reschedules counts the runs whose function asked to run again.
	reschedules uint32
	// kills are deaths for an outside reason.
	kills uint32
	// streak counts the kills, of any workers, at which only this task was running, since the last
	// kill of a worker that did not have it. lastKill is the number of the last kill of a worker
	// that had it. See suspect.
	streak   uint32
	lastKill uint64
	// unreachable counts consecutive attempts that could not fetch their inputs.
	unreachable uint32
	// causes has the causes of the deaths, oldest first.
	causes []string
	// avoid is a worker that the next attempt should not use; 0: none.
	avoid ids.WorkerID
	// sourceFailures counts the failed fetches of this task's object, by worker, in the order of
	// the first failures.
	sourceFailures []sourceFailure
	// inputFailures counts the failed fetches of this task's inputs, by source, reader and input.
	inputFailures []inputFailure
}

func (tr *trouble) row(id ids.TaskID) *TaskTroubled {
	return &TaskTroubled{Task: id, Retries: tr.retries, Deaths: tr.deaths, Kills: tr.kills, Early: tr.early,
		Reschedules: tr.reschedules, Causes: tr.causes[:len(tr.causes):len(tr.causes)]}
}

// durable reports whether a restart must know of the trouble.
func (tr *trouble) durable() bool {
	return tr.retries+tr.deaths+tr.kills+tr.early+tr.reschedules > 0
}

// sourceFailure counts the failed fetches of an object from one worker.
type sourceFailure struct {
	worker ids.WorkerID
	times  int
}

// inputFailure counts a task's failed fetches of one input from the worker source at the worker
// reader.
type inputFailure struct {
	source, reader ids.WorkerID
	input          ids.TaskID
	times          int
}

// sourceFailuresAt returns the number of failed fetches of the task's object from a worker.
func (tr *trouble) sourceFailuresAt(at ids.WorkerID) int {
	for _, u := range tr.sourceFailures {
		if u.worker == at {
			return u.times
		}
	}
	return 0
}

// inputFailuresAt returns the number of the task's failed fetches of an input from source at
// reader.
func (tr *trouble) inputFailuresAt(source, reader ids.WorkerID, input ids.TaskID) int {
	for _, p := range tr.inputFailures {
		if p.source == source && p.reader == reader && p.input == input {
			return p.times
		}
	}
	return 0
}

func (m *Machine) troubleOf(id ids.TaskID, t *task) *trouble {
	if t.flags&flagTrouble == 0 {
		t.flags |= flagTrouble
		m.trouble[id] = new(trouble)
	}
	return m.trouble[id]
}

// troubleIf returns the task's trouble record, or nil.
func (m *Machine) troubleIf(id ids.TaskID, t *task) *trouble {
	if t.flags&flagTrouble == 0 {
		return nil
	}
	return m.trouble[id]
}

// clearTrouble removes the error, the last output, the library and the trouble record of a task.
func (m *Machine) clearTrouble(id ids.TaskID, t *task) {
	delete(m.linalg, id)
	m.dropError(id)
	m.dropTail(id)
	if t.flags&flagTrouble != 0 {
		t.flags &^= flagTrouble
		if m.trouble[id].durable() {
			m.putTrouble(id, new(trouble))
		}
		delete(m.trouble, id)
	}
}
