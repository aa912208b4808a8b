package members

import (
	"time"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/sched"
)

// Session is the number of a connection of a worker, from 1. The loop chooses it and never uses it
// again.
type Session uint64

// Event is a fact that the machine is informed of, named in the past tense. Events of sessions that
// have ended have no effect.
type Event interface{ event() }

// Registered means that an incarnation has opened a session. Machine.Register returns the answer.
type Registered struct {
	Session Session
	// Worker is for the scheduling machine. This machine chooses its number.
	Worker sched.WorkerRegistered
	// Life of the scheduler that gave out the inventory and the running attempts; 0: unknown.
	Life        uint64
	PID         int64
	DataAddress string
	// Device is the kind of its memory, with the values of the API.
	Device uint8
}

// Disconnected means that the connection of a session broke.
type Disconnected struct{ Session Session }

// Left means that a worker has ended in an orderly way.
type Left struct{ Session Session }

// Measured is the state of a worker as it reports it.
type Measured struct {
	Session         Session
	MemoryUsedBytes uint64
	// Paths are the open paths by which it fetches, best first for each peer; nil: as before.
	Paths []Path
}

// Path is one way by which a worker fetches from a peer.
type Path struct {
	Peer ids.WorkerID
	// Maps means that the worker has the peer's slab mapped.
	Maps           bool
	BytesPerSecond float64 // 0: unknown
	Latency        time.Duration
}

// Died is the report of a supervisor that an incarnation has ended. An empty incarnation: the one
// that has the name now.
type Died struct {
	Name  string
	Death Death
	// Calls says which functions were running.
	Calls sched.Calls
}

// Ran adds the keys of the tasks that were assigned to a lost incarnation to the record of its
// death.
type Ran struct {
	Name, Incarnation string
	Keys              []string
}

// Unmapped means that a worker has unmapped the memory of a dead one.
type Unmapped struct {
	Session Session
	Dead    ids.WorkerID
}

// StoodStill means that the loop did not run for so long that messages of workers may still be
// unread. Their silence is no evidence of a failure, so all leases and graces begin anew.
type StoodStill struct{}

// TimePassed ends the leases and graces whose time is over. The loop sends it at
// Machine.NextDeadline.
type TimePassed struct {
	// Heard are the last messages of the sessions that Machine.Due lists.
	Heard []Heard
}

// Heard is the time of the last message in a session.
type Heard struct {
	Session Session
	At      time.Time
}

func (Registered) event()   {}
func (Disconnected) event() {}
func (Left) event()         {}
func (Measured) event()     {}
func (Died) event()         {}
func (Ran) event()          {}
func (Unmapped) event()     {}
func (StoodStill) event()   {}
func (TimePassed) event()   {}

// Death describes how one incarnation of a worker ended.
type Death struct {
	Incarnation string
	Cause       string
	ExitCode    int32
	Signal      string
	OutOfMemory bool
	// DeviceFault: the GPU itself failed, or a kernel wrote to memory that it must not write. The
	// GPU's memory must not be read any more.
	DeviceFault     bool
	LogTail         string
	Time            time.Time
	PID             int64
	MemoryUsedBytes uint64
	// Reaped says that the worker's supervisor saw it end: it cannot come back.
	Reaped bool
	// RunningKeys are the keys of tasks that were assigned to it; at most 16.
	RunningKeys []string
}

// EffectKind is the action that the loop must take.
type EffectKind uint8

// Kinds of effects. The loop must carry them out in order.
const (
	// EffectSchedule: give Event to the scheduling machine.
	EffectSchedule EffectKind = iota + 1
	// EffectEnded: end Session. Worker is the one that is disconnected now, 0 if it has another
	// session or is lost. If Stop is not empty, the worker must end its process, for that reason;
	// with Reregister it must register anew.
	EffectEnded
	// EffectPeer: send Peer in Session.
	EffectPeer
	// EffectDrop: order the worker of Session to drop Objects and Attempts, which are from another
	// life of the scheduler.
	EffectDrop
	// EffectLost: Worker is lost because of Cause. The scheduling machine learns it by a later
	// effect of the same step. Left: it has left by itself. Died: its death was recorded.
	EffectLost
	// EffectChanged: the state of Worker, or what is known of its name's deaths, has changed.
	EffectChanged
	// EffectUnmapped: no worker has the memory of the dead Peer mapped any more. Time is the time
	// since its death.
	EffectUnmapped
)

// Effect is one order to the loop, as a self-contained value.
type Effect struct {
	Kind       EffectKind
	Left, Died bool
	Reregister bool
	Worker     ids.WorkerID
	Session    Session
	Event      sched.Event
	Peer       Peer
	Cause      string
	Stop       string
	Objects    []sched.Replica
	Attempts   []sched.TaskRef
	Time       time.Duration
}

// Peer is a worker's address. An empty address: the worker is gone.
type Peer struct {
	Worker  ids.WorkerID
	Address string
	Name    string
	// SameHost: the peer and the receiver of this message both have a GPU of the same host.
	SameHost bool
	// Device is the kind of the peer's memory, with the values of the API.
	Device uint8
}

// Welcome is the answer to Registered.
type Welcome struct {
	Worker ids.WorkerID
	// Back means that the incarnation was a member already.
	Back bool
	// Foreign means that its objects and attempts are from another life of the scheduler.
	Foreign bool
}

// ErrorKind classifies refused registrations.
type ErrorKind uint8

// Kinds of errors.
const (
	// ErrDead: the incarnation was declared dead by its supervisor.
	ErrDead ErrorKind = iota + 1
	// ErrNameTaken: a live worker has the name.
	ErrNameTaken
)

// Error refuses a registration; nothing changed.
type Error struct {
	Kind ErrorKind
	// Object is the name of the worker.
	Object  string
	Message string
	// Metadata are details by name, for programs; may be nil.
	Metadata map[string]string
}

func (e *Error) Error() string { return e.Message }
