package sched

import (
	"fmt"
	"time"

	"github.com/millrace/millrace/internal/ids"
)

// cause is the kind of event that caused a transition.
type cause uint8

const (
	causeUnknown cause = iota
	causeSubmitted
	causeReported
	causeObjects
	causeReleased
	causeHeld
	causeCancelled
	causeRetried
	causeGraphReleased
	causePublished
	causeClient
	causeRegistered
	causeDisconnected
	causeLost
	causeMeasured
	causeTime
	causeRescueFailed
	causeOrdered
)

func (c cause) String() string {
	names := [...]string{"unknown", "submitted", "reported", "objects reported", "released", "held", "cancelled", "retried", "graph released",
		"published", "client lease", "worker registered", "worker disconnected", "worker lost", "measured", "time passed", "rescue failed", "ordered by an operator"}
	if int(c) < len(names) {
		return names[c]
	}
	return "unknown"
}

func causeOf(ev Event) cause {
	switch ev.(type) {
	case GraphSubmitted:
		return causeSubmitted
	case TasksReported:
		return causeReported
	case ObjectsReported:
		return causeObjects
	case TasksReleased:
		return causeReleased
	case TasksHeld:
		return causeHeld
	case TasksCancelled:
		return causeCancelled
	case TasksRetried:
		return causeRetried
	case GraphReleased:
		return causeGraphReleased
	case DatasetPublished, DatasetUnpublished:
		return causePublished
	case ClientOpened, ClientRenewed, ClientClosed:
		return causeClient
	case WorkerRegistered, WorkerDraining:
		return causeRegistered
	case DrainOrdered, DrainUndone, RebalanceOrdered, RebalanceStopped:
		return causeOrdered
	case WorkerDisconnected:
		return causeDisconnected
	case WorkerLost, WorkerEnded:
		return causeLost
	case WorkerMeasured, RatesMeasured:
		return causeMeasured
	case TimePassed:
		return causeTime
	case RescueFailed:
		return causeRescueFailed
	}
	return causeUnknown
}

// historyLength bounds the transitions that are kept, over all tasks.
const historyLength = 1 << 13

// history is a ring buffer of the latest transitions of all tasks.
type history struct {
	ring []transition
	next int
}

type transition struct {
	at       time.Time
	task     ids.TaskID
	worker   ids.WorkerID
	name     string // of the worker, which may be gone when the history is read
	attempt  uint32
	from, to TaskState
	cause    cause
}

func (s *history) add(m *Machine, id ids.TaskID, from, to TaskState, attempt, slot uint32) {
	tr := transition{at: m.now, task: id, attempt: attempt, from: from, to: to, cause: m.cause}
	if slot != 0 {
		tr.worker, tr.name = m.workers[slot-1].id, m.workers[slot-1].name
	}
	if len(s.ring) < historyLength {
		s.ring = append(s.ring, tr)
		return
	}
	s.ring[s.next] = tr
	if s.next++; s.next == historyLength {
		s.next = 0
	}
}

// History returns the latest transitions of a task, oldest first, with the event that caused each.
// Old entries are overwritten by transitions of other tasks.
func (m *Machine) History(id ids.TaskID) []string {
	var lines []string
	s := &m.history
	for i := range s.ring {
		tr := &s.ring[(s.next+i)%len(s.ring)]
		if tr.task != id {
			continue
		}
		line := fmt.Sprintf("%s %s → %s: %s", tr.at.UTC().Format("15:04:05.000000"), stateName(tr.from), stateName(tr.to), tr.cause)
		if tr.attempt != 0 {
			line += fmt.Sprintf(", attempt %d", tr.attempt)
		}
		if tr.worker != 0 {
			line += fmt.Sprintf(" on worker %s (%s)", tr.name, tr.worker)
		}
		lines = append(lines, line)
	}
	return lines
}

func stateName(s TaskState) string {
	names := [...]string{"NONE", "WAITING", "READY", "ASSIGNED", "RUNNING", "SUCCEEDED", "FAILED", "CANCELLED", "RELEASED", "RESCUING"}
	if int(s) < len(names) {
		return names[s]
	}
	return "UNKNOWN"
}

// String returns the state's name in the API, without its prefix.
func (s TaskState) String() string { return stateName(s) }
