package front

import (
	"context"
	"slices"
	"time"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/sched"
)

// Registration introduces a worker incarnation.
type Registration struct {
	// Worker is what the machine needs to know; its number is chosen by the loop.
	Worker sched.WorkerRegistered
	// Life of the scheduler that the inventory and the running attempts are from; 0: it does not say.
	Life        uint64
	PID         int64
	DataAddress string
	Device      uint8
	GPU         GPU
	Version     string
	NativeOps   []string
}

// Session is one worker's link. Report may be called by one goroutine and Take by another.
type Session interface {
	Worker() ids.WorkerID
	// Report tells what the worker said. The slices in it belong to the scheduler from then on.
	Report(context.Context, Inbound) error
	// Wake yields whenever there may be something to Take.
	Wake() <-chan struct{}
	// Take exchanges what is to be sent for an empty outbound, in which the caller gives back what it took before. It
	// returns false if there was nothing.
	Take(*Outbound) bool
	// Done is closed when the scheduler has ended the session; what can still be taken should be sent before the link
	// is closed.
	Done() <-chan struct{}
	// Undeliverable says that an attempt cannot be sent, and why: its task fails, TOO_LARGE.
	Undeliverable(task ids.TaskID, attempt ids.Attempt, reason string)
	// Disconnect says that the link broke.
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

// RescueReport is what a worker could not copy out of the memory of a dead one, or that it does not have it mapped any more.
type RescueReport struct {
	Dead     ids.WorkerID
	Failed   []sched.Replica
	Reason   string
	Unmapped bool
}

// WorkerStats is the state of a worker process, as it reports it.
type WorkerStats struct {
	MemoryUsedBytes   uint64
	RSSBytes          uint64
	BytesIn           uint64
	BytesOut          uint64
	ExecutorDeaths    uint64
	LastExecutorDeath string
	// MemoryPressure asks for NextUses.
	MemoryPressure bool
	// Spilled are the bytes on disk, SpillFailure is why nothing is written there.
	SpilledBytes, SpillWrittenBytes, SpillReadBytes uint64
	SpillFailure                                    string
	// Lanes is nil if nothing of them has changed.
	Lanes []Lane
	// GPU is nil where it is not told.
	GPU *GPUHealth
}

// Lane is one path by which a worker fetches from a peer.
type Lane struct {
	Peer           ids.WorkerID
	PeerName       string
	Path           string
	State          uint8 // value of the API's LaneState
	Why            string
	BytesPerSecond float64
	Latency        time.Duration
	// Bytes that came, in Succeeded fetches besides Failed ones.
	Bytes, Succeeded, Failed uint64
	// Transport is what carries the bytes, empty where the path has no choice.
	Transport string
}

// LaneOpen is the state of lanes that are taken.
const LaneOpen = 2

// Outbound is what a worker is to be told, in the order of the fields. The slices with lower-case names are the memory
// that the others refer to.
type Outbound struct {
	Ops           []OpDefinition
	Functions     []Function
	Peers         []Peer
	Assignments   []Assignment
	Retractions   []sched.TaskRef
	Cancellations []sched.TaskRef
	Releases      []sched.Replica
	NextUses      []sched.NextUse
	Rescues       []Rescue
	// Accepted are objects that clients wrote to the worker and that count from now on.
	Accepted []sched.Replica
	// Dropped are functions that no task refers to any more. They are told before the functions of the same outbound: one that is
	// dropped and needed again is in both.
	Dropped []ids.FunctionHash
	Drain   bool
	// Drained answers Inbound.Draining: nothing that is wanted is there alone.
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

// Peer says how to reach a worker. An empty address: it is gone.
type Peer struct {
	Worker  ids.WorkerID
	Address string
	Name    string
	// Near: it has a GPU of the same host as the worker that is told, which has one, too.
	Near bool
}

// Rescue orders copies of objects out of the memory of a dead worker, whose Peer has the address that it had.
type Rescue struct {
	Dead        Peer
	Incarnation string
	Objects     []sched.Replica
}

// Assignment is one attempt to run. Its inputs and arguments lie in the outbound.
type Assignment struct {
	Task                ids.TaskID
	Attempt             ids.Attempt
	Op                  ids.OpID
	Slots               uint32
	Rank                uint64
	Timeout             time.Duration
	ExpectedOutputBytes uint64
	Key                 string
	Namespace           string
	Resources           map[string]float64

	firstInput, inputs           uint32
	firstArgument, argumentBytes uint32
	// large are the arguments if they are too long to be copied.
	large []byte
}

// copiedBytes is the longest argument that is copied: the machine keeps longer ones where no other task's will ever be.
const copiedBytes = 4096

// Empty says that there is nothing to send.
func (o *Outbound) Empty() bool {
	return len(o.Ops)+len(o.Functions)+len(o.Peers)+len(o.Assignments)+len(o.Retractions)+len(o.Cancellations)+
		len(o.Releases)+len(o.NextUses)+len(o.Rescues)+len(o.Accepted)+len(o.Dropped) == 0 && !o.Drain && !o.Drained && o.StopReason == "" && !o.Reregister
}

// Reset forgets everything but the memory.
func (o *Outbound) Reset() {
	clear(o.Functions)
	clear(o.Assignments)
	clear(o.inputs)
	clear(o.Rescues)
	*o = Outbound{
		Ops: o.Ops[:0], Functions: o.Functions[:0], Peers: o.Peers[:0], Assignments: o.Assignments[:0],
		Retractions: o.Retractions[:0], Cancellations: o.Cancellations[:0], Releases: o.Releases[:0], NextUses: o.NextUses[:0], Rescues: o.Rescues[:0],
		Accepted: o.Accepted[:0], Dropped: o.Dropped[:0],
		inputs: o.inputs[:0], holders: o.holders[:0], arguments: o.arguments[:0],
	}
}

// Drop says that no task refers to a function any more, also if it is in the outbound itself: what would need it has ended.
func (o *Outbound) Drop(hash ids.FunctionHash) {
	o.Functions = slices.DeleteFunc(o.Functions, func(f Function) bool { return f.Hash == hash })
	o.Dropped = append(o.Dropped, hash)
}

// Assign copies an assignment, of which nothing is referred to afterwards but strings and inline results.
func (o *Outbound) Assign(a *sched.Assignment) {
	o.Assignments = append(o.Assignments, Assignment{
		Task: a.Task, Attempt: a.Attempt, Op: a.Op, Slots: a.Slots, Rank: a.Rank, Timeout: a.Timeout,
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
		// NB: appending may move the older holders; slices made before keep the memory that they were made of.
		input.Holders = o.holders[first:len(o.holders):len(o.holders)]
		o.inputs = append(o.inputs, input)
	}
}

// Inputs are the inputs of an assignment of this outbound.
func (o *Outbound) Inputs(a *Assignment) []sched.AssignedInput {
	return o.inputs[a.firstInput : a.firstInput+a.inputs]
}

// Arguments are the arguments of an assignment of this outbound.
func (o *Outbound) Arguments(a *Assignment) []byte {
	if a.large != nil {
		return a.large
	}
	return o.arguments[a.firstArgument : a.firstArgument+a.argumentBytes]
}

// Append moves what another outbound holds behind what this one holds.
func (o *Outbound) Append(from *Outbound) {
	inputs, arguments := uint32(len(o.inputs)), uint32(len(o.arguments))
	o.NextUses = append(o.NextUses, from.NextUses...)
	o.Rescues = append(o.Rescues, from.Rescues...)
	o.Accepted = append(o.Accepted, from.Accepted...)
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
	o.Releases = append(o.Releases, from.Releases...)
	o.Drain = o.Drain || from.Drain
	o.Drained = o.Drained || from.Drained
	o.Reregister = o.Reregister || from.Reregister
	if from.StopReason != "" {
		o.StopReason = from.StopReason
	}
	from.Reset()
}
