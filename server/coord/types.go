package coord

import (
	"fmt"
	"strings"
	"time"

	"github.com/millrace/millrace/internal/ids"
)

// Value is a payload that the machine passes on unread. It never changes.
type Value struct {
	Data []byte
	// Keys are the tasks whose results are kept as long as the value is. Hold is the number under
	// which the caller keeps them, 0 if there are none: an EffectUnheld ends it.
	Keys []string
	Hold uint64
	// Tasks are the numbers of the tasks, in the order of Keys.
	Tasks []ids.TaskID
}

// size is the memory that the value counts for.
func (v *Value) size() uint64 {
	n := uint64(len(v.Data)) + 64
	for _, key := range v.Keys {
		n += uint64(len(key)) + 24
	}
	return n
}

// stored is a value with the number of places that it is in.
type stored struct {
	Value
	number    uint64
	namespace string
	places    int
	// durable means that it has a row.
	durable bool
}

func (m *Machine) store(namespace string, v Value) *stored {
	m.use(namespace, v.size())
	m.values++
	return &stored{Value: v, number: m.values, namespace: namespace, places: 1}
}

// unstore takes a value out of one place. After the last one, its results are not held any more.
func (m *Machine) unstore(v *stored) {
	if v.places--; v.places > 0 {
		return
	}
	m.giveBack(v.namespace, v.size())
	if v.durable {
		m.gone(ValueRow{Number: v.number, Value: Value{Hold: v.Hold}})
	}
	if v.Hold != 0 {
		m.emit(Effect{Kind: EffectUnheld, Hold: v.Hold})
	}
}

// Call is a call that may have to wait.
type Call struct {
	// Ticket names the call in its effect. It is not 0, and not used twice.
	Ticket uint64
	// Client is 0 for a call without a lease: it has no ID.
	Client    ids.ClientID
	Namespace string
	// ID names the call among those of the client, so that it can be repeated; empty: it cannot.
	ID string
	// Wait is the longest wait. Keep: after it, the call keeps its place for a while.
	Wait time.Duration
	Keep bool
	Ask  Ask
}

// Ask is one of Acquire, ReadVariable, AwaitEvent, PutInQueue, TakeFromQueue and ReadTopic. String
// describes it for error messages.
type Ask interface {
	fmt.Stringer
	// same reports whether a repeated call asks for the same thing.
	same(Ask) bool
}

// Acquire takes locks.
type Acquire struct {
	// Names are different from each other.
	Names []string
	// Limit is the number of holders that each may have; at least 1.
	Limit uint32
	// Needed is the number of locks that must be taken: 1 to the number of names.
	Needed int
}

// ReadVariable reads a variable as soon as it has a value.
type ReadVariable struct{ Name string }

// AwaitEvent waits until an event is set.
type AwaitEvent struct{ Name string }

// PutInQueue appends a value as soon as there is room.
type PutInQueue struct {
	Name string
	// MaxSize bounds the queue if nothing else has; 0: it does not.
	MaxSize uint32
	Value   Value
}

// TakeFromQueue takes values, at most Most, as soon as there is one.
type TakeFromQueue struct {
	Name string
	Most int
}

// ReadTopic reads messages, at most Most, after the one numbered After, as soon as there is one.
// Later: only those that come after this call.
type ReadTopic struct {
	Name  string
	After uint64
	Later bool
	Most  int
}

func (a Acquire) String() string {
	names := make([]string, 0, 4)
	for _, name := range a.Names[:min(3, len(a.Names))] {
		names = append(names, fmt.Sprintf("%q", name))
	}
	if more := len(a.Names) - len(names); more > 0 {
		names = append(names, fmt.Sprintf("%d more", more))
	}
	return "lock " + strings.Join(names, ", ")
}
func (a ReadVariable) String() string  { return fmt.Sprintf("variable %q", a.Name) }
func (a AwaitEvent) String() string    { return fmt.Sprintf("event %q", a.Name) }
func (a PutInQueue) String() string    { return fmt.Sprintf("put into queue %q", a.Name) }
func (a TakeFromQueue) String() string { return fmt.Sprintf("take from queue %q", a.Name) }
func (a ReadTopic) String() string     { return fmt.Sprintf("topic %q", a.Name) }

// Answer answers a call.
type Answer struct {
	// Met says that the call got what it asked for. Otherwise its wait is over.
	Met bool
	// Names are the locks that an Acquire has taken.
	Names []string
	// Fence is the number of an Acquire that was met: it is above those of all that had the locks
	// before.
	Fence uint64
	// Values are those of a variable or from a queue.
	Values []Value
	// Messages are those of a topic; Number is that of the last one, or of the topic's last one;
	// Missed counts those between After and the first one that the topic has dropped.
	Messages []Message
	Number   uint64
	Missed   uint64
}

// Message is one message of a topic.
type Message struct {
	Number uint64
	At     time.Time
	Value  Value
}

// EffectKind is the kind of an effect.
type EffectKind uint8

const (
	// EffectAnswered: the call with the Ticket has ended, by Answer or by Err.
	EffectAnswered EffectKind = iota + 1
	// EffectUnheld: the results that were kept under the number Hold are not needed any more.
	EffectUnheld
	// EffectChanged: Changes of durable rows, in order. Answers in the same step are true as soon
	// as these are durable.
	EffectChanged
)

// Effect is an order to the caller of the machine.
type Effect struct {
	Kind   EffectKind
	Ticket uint64
	Answer Answer
	Err    *Error
	Hold   uint64
	// Changes belong together: see Coordinated.
	Changes []Change
}

// ErrorKind classifies a refused call.
type ErrorKind uint8

// Kinds of errors. The adapter maps each to a status code and a reason.
const (
	ErrInvalidField ErrorKind = iota + 1
	// ErrRequestConflict: the id belongs to another call.
	ErrRequestConflict
	// ErrNotHeld: the client does not hold the lock.
	ErrNotHeld
	// ErrClosed: the lock or the queue was closed while the call waited.
	ErrClosed
	// ErrClientGone: the lease ended while the call waited.
	ErrClientGone
	// ErrFull: a limit of the machine is reached.
	ErrFull
)

// Error refuses a call; nothing changed.
type Error struct {
	Kind ErrorKind
	// Object is the name, client or field that the error is about.
	Object  string
	Message string
}

func (e *Error) Error() string { return e.Message }

func full(what, format string, args ...any) *Error {
	return &Error{Kind: ErrFull, Object: what, Message: what + ": " + fmt.Sprintf(format, args...)}
}
