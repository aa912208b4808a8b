package schedapi

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/internal/text"
	"github.com/millrace/millrace/server/functions"
	"github.com/millrace/millrace/server/members"
	"github.com/millrace/millrace/server/sched"
)

// Registration introduces a worker incarnation.
type Registration struct {
	// Worker is the machine's part of the registration. The loop chooses its number.
	Worker sched.WorkerRegistered
	// Life of the scheduler that gave out the inventory and the running attempts; 0: unknown.
	Life        uint64
	PID         int64
	DataAddress string
	Device      uint8
	GPU         GPU
	Version     string
	NativeOps   []string
	// Functions are those that it has from earlier sessions.
	Functions []ids.FunctionHash
}

// Session is one worker's connection. One goroutine may call Report while another calls Take.
type Session interface {
	Worker() ids.WorkerID
	// Report passes on a message of the worker. The scheduler owns the slices in it from then on.
	Report(context.Context, Inbound) error
	// Wake yields whenever there may be messages to take.
	Wake() <-chan struct{}
	// Take swaps outbounds: the caller passes the one that it has sent, and gets the one to send
	// next. It returns false if there is nothing to send.
	Take(*Outbound) bool
	// Done is closed when the scheduler has ended the session. Messages that Take still returns
	// should be sent before the connection is closed.
	Done() <-chan struct{}
	// Undeliverable reports that an attempt cannot be sent, and why. Its task fails, TOO_LARGE.
	Undeliverable(task ids.TaskID, attempt ids.Attempt, reason string)
	// Disconnect reports that the connection broke.
	Disconnect()
}

// Inbound is one message of a worker.
type Inbound struct {
	Reports []sched.Report
	Gained  []sched.Stored
	Lost    []sched.Replica
	Stats   *WorkerStats
	Leaving bool
	// Draining: the worker was asked to stop, and waits for Outbound.Drained.
	Draining         bool
	MissingFunctions []ids.FunctionHash
	Rescues          []RescueReport
}

// RescueReport lists objects that a worker could not copy out of a dead worker's memory, or reports
// that it has unmapped that memory.
type RescueReport struct {
	Dead     ids.WorkerID
	Failed   []sched.Replica
	Reason   string
	Unmapped bool
}

// WorkerStats is the state of a worker process, as the worker reports it.
type WorkerStats struct {
	MemoryUsedBytes   uint64
	RSSBytes          uint64
	ReceivedBytes     uint64
	SentBytes         uint64
	ExecutorDeaths    uint64
	LastExecutorDeath string
	// MemoryEvictableBytes are those of the used bytes that can leave the memory to make room.
	MemoryEvictableBytes uint64
	// MemoryPressure asks for Outbound.NextUses.
	MemoryPressure bool
	// The Spilled bytes are on disk now. SpillFailure is the reason why the worker cannot write
	// there.
	SpilledBytes, SpillWrittenBytes, SpillReadBytes uint64
	SpillFailure                                    string
	// Tiers are those of its memory, from the slab down.
	Tiers []Tier
	// Routes is nil if no route has changed since the last report.
	Routes []Route
	// GPU is nil if its state is unknown.
	GPU *GPUHealth
	// Network are the devices by which the worker reaches its peers.
	Network []NetworkDevice
}

// NetworkDevice is what a network device of a worker's host carries, for all programs: bytes since
// its driver was loaded, and bytes per second. Nil: it is not known.
type NetworkDevice struct {
	Name                     string
	ReceivedBytes, SentBytes *uint64
	ReceivedRate, SentRate   *float64
}

// Tier is one tier of a worker's memory. Of its used bytes, Object bytes belong to objects; of
// these, a tier below has the clean ones as well, and the evictable ones could leave. LargestFree
// is the largest free piece. Written and read bytes are counted since the worker started. Failure
// is the reason why nothing is written there at present; empty: it works.
type Tier struct {
	Name                                    string
	SizeBytes, UsedBytes                    uint64
	ObjectBytes, CleanBytes, EvictableBytes uint64
	LeavingBytes, ComingBytes               uint64
	LargestFreeBytes                        uint64
	WrittenBytes, ReadBytes                 uint64
	Failure                                 string
}

// Route is one path by which a worker fetches from a peer.
type Route struct {
	Peer     ids.WorkerID
	PeerName string
	Path     TransferPath
	State    RouteState
	// Reason is why the path is not used, or the error of its last failure; for people.
	Reason         string
	BytesPerSecond float64
	Latency        time.Duration
	// Bytes that arrived, by Succeeded fetches; Failed counts the others.
	Bytes, Succeeded, Failed uint64
	// Transport carries the bytes; empty if the path has no choice of transports, or is not
	// connected. Staged names the ends at which they go through host memory: "", "source", "reader"
	// or "both". ConnectBytesPerSecond was timed when the path connected. ConnectionReason is why
	// the connection is not a better one; for people.
	Transport, Staged     string
	ConnectionReason      string
	ConnectBytesPerSecond float64
}

// Lane describes how the bytes travel: "ucx (rc_mlx5, staged at both ends)".
func (r *Route) Lane() string { return r.Path.String() + text.Lane(r.Transport, r.Staged) }

// TransferPath is a way by which objects travel from one worker to another.
type TransferPath uint8

// Paths; the values equal those of the API.
const (
	PathIPC    TransferPath = 1
	PathPinned TransferPath = 2
	PathBorrow TransferPath = 3
	PathUCX    TransferPath = 4
	PathGRPC   TransferPath = 5
)

// String returns the name of the path in settings and texts.
func (p TransferPath) String() string {
	switch p {
	case PathIPC:
		return "ipc"
	case PathPinned:
		return "pinned"
	case PathBorrow:
		return "borrow"
	case PathUCX:
		return "ucx"
	case PathGRPC:
		return "grpc"
	}
	return "an unknown path"
}

// RouteState is whether a worker uses a route.
type RouteState uint8

// States of routes; the values equal those of the API.
const (
	RouteUntried     RouteState = 1
	RouteOpen        RouteState = 2
	RouteFailed      RouteState = 3
	RouteUnreachable RouteState = 4
)

// Leave is an operator's order to a worker to end its process.
type Leave struct {
	// Restart: the supervisor starts the process again.
	Restart bool
	Reason  string
}

// Outbound holds the messages to one worker, which are sent in the order of the fields. Dropped,
// Accepted and FreedSlots are exceptions: Dropped is sent first, Accepted before Assignments and
// FreedSlots after them. The unexported
// slices are the memory that the exported ones refer to.
type Outbound struct {
	Ops           []OpDefinition
	Functions     []functions.Function
	Peers         []members.Peer
	Assignments   []Assignment
	Retractions   []sched.TaskRef
	Cancellations []sched.TaskRef
	Releases      []sched.Replica
	NextUses      []sched.NextUse
	Rescues       []Rescue
	// FreedSlots are attempts that wait for other tasks; Assignments can run in their slots.
	FreedSlots []sched.TaskRef
	// Accepted are objects that clients wrote to the worker and that are valid from now on.
	Accepted []sched.Replica
	// Keeps are objects that the worker may not drop to make room.
	Keeps []sched.Replica
	// Dropped are functions that no task refers to any more. They are sent before Functions: a
	// function that is dropped and needed again is in both.
	Dropped []ids.FunctionHash
	// Leave is not nil if the worker is to end its process now.
	Leave *Leave
	// Drained answers Inbound.Draining: the worker has no needed object of which it holds the only
	// copy.
	Drained    bool
	StopReason string
	Reregister bool

	inputs    []sched.AssignedInput
	holders   []ids.WorkerID
	arguments []byte
}

// OpDefinition gives an op its number in a session.
type OpDefinition struct {
	ID ids.OpID
	Op sched.OpSpec
}

// Rescue orders copies of objects out of the memory of a dead worker. Dead has its last address.
type Rescue struct {
	Dead        members.Peer
	Incarnation string
	Objects     []sched.Replica
}

// Assignment is one attempt to run. The outbound owns the memory of its inputs and arguments.
type Assignment struct {
	Task                ids.TaskID
	Attempt             ids.Attempt
	Op                  ids.OpID
	Slots               uint32
	Priority            int32
	Rank                uint64
	Timeout             time.Duration
	ExpectedOutputBytes uint64
	Key                 string
	Namespace           string
	Resources           map[string]float64

	firstInput, inputs           uint32
	firstArgument, argumentBytes uint32
	// large is used in place of a copy if the arguments are longer than copiedBytes.
	large []byte
}

// copiedBytes is the length of the longest arguments that are copied. The machine keeps longer ones
// in memory that it never uses for another task, so they can be referred to.
const copiedBytes = 4096

// Empty reports whether there is nothing to send.
func (o *Outbound) Empty() bool {
	return len(o.Ops)+len(o.Functions)+len(o.Peers)+len(o.Assignments)+len(o.Retractions)+len(o.Cancellations)+
		len(o.Releases)+len(o.NextUses)+len(o.Rescues)+len(o.Accepted)+len(o.Keeps)+len(o.Dropped)+len(o.FreedSlots) == 0 && o.Leave == nil && !o.Drained && o.StopReason == "" && !o.Reregister
}

// Reset empties the outbound but keeps its memory for reuse.
func (o *Outbound) Reset() {
	clear(o.Functions)
	clear(o.Assignments)
	clear(o.inputs)
	clear(o.Rescues)
	*o = Outbound{
		Ops: o.Ops[:0], Functions: o.Functions[:0], Peers: o.Peers[:0], Assignments: o.Assignments[:0],
		Retractions: o.Retractions[:0], Cancellations: o.Cancellations[:0], Releases: o.Releases[:0], NextUses: o.NextUses[:0], Rescues: o.Rescues[:0],
		Accepted: o.Accepted[:0], Keeps: o.Keeps[:0], Dropped: o.Dropped[:0], FreedSlots: o.FreedSlots[:0],
		inputs: o.inputs[:0], holders: o.holders[:0], arguments: o.arguments[:0],
	}
}

// Drop adds the order to forget a function that no task refers to any more. If the function itself
// is in the outbound, it is removed: the tasks that needed it have ended.
func (o *Outbound) Drop(hash ids.FunctionHash) {
	o.Functions = slices.DeleteFunc(o.Functions, func(f functions.Function) bool { return f.Hash == hash })
	o.Dropped = append(o.Dropped, hash)
}

// Assign copies an assignment. Afterwards the outbound refers to no memory of it but the strings,
// inline results and long arguments.
func (o *Outbound) Assign(a *sched.Assignment) {
	o.Assignments = append(o.Assignments, Assignment{
		Task: a.Task, Attempt: a.Attempt, Op: a.Op, Slots: a.Slots, Priority: a.Priority, Rank: a.Rank, Timeout: a.Timeout,
		ExpectedOutputBytes: a.ExpectedOutputBytes, Key: a.Key, Namespace: a.Namespace, Resources: a.Resources,
		firstInput: uint32(len(o.inputs)), inputs: uint32(len(a.Inputs)),
		firstArgument: uint32(len(o.arguments)),
	})
	added := &o.Assignments[len(o.Assignments)-1]
	if len(a.Arguments) > copiedBytes {
		added.large = a.Arguments
	} else {
		added.argumentBytes = uint32(len(a.Arguments))
		o.arguments = append(o.arguments, a.Arguments...)
	}
	for _, input := range a.Inputs {
		first := len(o.holders)
		o.holders = append(o.holders, input.Holders...)
		// NB: append may move the older holders. Slices of the old array stay valid, because they
		// keep that array.
		input.Holders = o.holders[first:len(o.holders):len(o.holders)]
		o.inputs = append(o.inputs, input)
	}
}

// Inputs returns the inputs of an assignment of this outbound.
func (o *Outbound) Inputs(a *Assignment) []sched.AssignedInput {
	return o.inputs[a.firstInput : a.firstInput+a.inputs]
}

// Arguments returns the arguments of an assignment of this outbound.
func (o *Outbound) Arguments(a *Assignment) []byte {
	if a.large != nil {
		return a.large
	}
	return o.arguments[a.firstArgument : a.firstArgument+a.argumentBytes]
}

// Append moves the contents of another outbound to the end of this one.
func (o *Outbound) Append(from *Outbound) {
	inputs, arguments := uint32(len(o.inputs)), uint32(len(o.arguments))
	o.NextUses = append(o.NextUses, from.NextUses...)
	o.Rescues = append(o.Rescues, from.Rescues...)
	o.Accepted = append(o.Accepted, from.Accepted...)
	o.Keeps = append(o.Keeps, from.Keeps...)
	o.Ops = append(o.Ops, from.Ops...)
	for _, hash := range from.Dropped {
		o.Drop(hash)
	}
	o.Functions = append(o.Functions, from.Functions...)
	o.Peers = append(o.Peers, from.Peers...)
	for _, a := range from.Assignments {
		a.firstInput += inputs
		a.firstArgument += arguments
		o.Assignments = append(o.Assignments, a)
	}
	o.arguments = append(o.arguments, from.arguments...)
	for _, input := range from.inputs {
		first := len(o.holders)
		o.holders = append(o.holders, input.Holders...)
		input.Holders = o.holders[first:len(o.holders):len(o.holders)]
		o.inputs = append(o.inputs, input)
	}
	o.Retractions = append(o.Retractions, from.Retractions...)
	o.Cancellations = append(o.Cancellations, from.Cancellations...)
	o.FreedSlots = append(o.FreedSlots, from.FreedSlots...)
	o.Releases = append(o.Releases, from.Releases...)
	o.Leave = cmp.Or(from.Leave, o.Leave)
	o.Drained = o.Drained || from.Drained
	o.Reregister = o.Reregister || from.Reregister
	if from.StopReason != "" {
		o.StopReason = from.StopReason
	}
	from.Reset()
}
