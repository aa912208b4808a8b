package schedapi

import (
	"time"

	"github.com/millrace/millrace/internal/ids"
)

// Severity says how much an event matters.
type Severity string

// Severities.
const (
	SeverityInfo    Severity = "info"
	SeverityWarning Severity = "warning"
	SeverityError   Severity = "error"
)

// EventKind is the kind of an Event.
type EventKind string

// Kinds of events.
const (
	EventRegistered   EventKind = "worker-registered"
	EventReturned     EventKind = "worker-returned"
	EventDisconnected EventKind = "worker-disconnected"
	EventLost         EventKind = "worker-lost"
	EventLeft         EventKind = "worker-left"
	EventExecutorDied EventKind = "executor-died"
	EventSpillFailed  EventKind = "spill-failed"
	EventSpillMended  EventKind = "spill-mended"
	EventDevice       EventKind = "device-error"
	EventDrain        EventKind = "drain"
	EventUndrain      EventKind = "undrain"
	EventEnding       EventKind = "worker-ending"
	EventRebalance    EventKind = "rebalance"
	EventRescueFailed EventKind = "rescue-failed"
	EventGraphFailed  EventKind = "graph-failed"
	EventTooLarge     EventKind = "attempt-too-large"
	EventClientLost   EventKind = "client-lost"
	EventStandstill   EventKind = "standstill"
	EventRestarted    EventKind = "scheduler-restarted"
	EventUnrestored   EventKind = "graph-not-restored"
	EventShutdown     EventKind = "shutdown"
)

// Event is something that happened in the cluster, for people.
type Event struct {
	// Number counts from 1 while the scheduler lives.
	Number   uint64
	Time     time.Time
	Kind     EventKind
	Severity Severity
	// Worker is the name of the worker and Graph the graph that it is about; empty and 0: none.
	Worker string
	Graph  ids.GraphID
	Text   string
}
