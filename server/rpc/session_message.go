package rpc

import (
	"fmt"
	"slices"
	"time"

	"github.com/dustin/go-humanize"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/gen/go/millrace/v1"
	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/internal/text"
	"github.com/millrace/millrace/server/functions"
	"github.com/millrace/millrace/server/members"
	"github.com/millrace/millrace/server/sched"
	"github.com/millrace/millrace/server/schedapi"
)

// SessionMessage builds the messages to one worker and reuses their memory. That is safe because
// Send has serialized a message when it returns.
type SessionMessage struct {
	message     workerv1.SessionResponse
	assignments arena[workerv1.Assignment]
	inputs      arena[workerv1.Input]
	refs        arena[workerv1.AttemptRef]
	replicas    arena[workerv1.Replica]
	inputLists  []*workerv1.Input
	holders     []uint32
}

// arena hands out elements that do not move until reset.
type arena[T any] struct {
	blocks [][]T
	used   int
}

const (
	arenaBlock = 256
	// arenaKept bounds the blocks that are kept for the next message.
	arenaKept = 64
)

func (s *arena[T]) reset() {
	s.used = 0
	if len(s.blocks) > arenaKept {
		clear(s.blocks[arenaKept:])
		s.blocks = s.blocks[:arenaKept]
	}
}

func (s *arena[T]) next() *T {
	block, i := s.used/arenaBlock, s.used%arenaBlock
	if block == len(s.blocks) {
		s.blocks = append(s.blocks, make([]T, arenaBlock))
	}
	s.used++
	return &s.blocks[block][i]
}

// messageBytes is the approximate size at which a message ends and the rest goes into another one.
const messageBytes = 16 << 20

// unsendable is called with the reason for each assignment that no message can carry.
type unsendable func(task ids.TaskID, attempt ids.Attempt, reason string)

// Send sends an outbound in the order that schedapi.Outbound states, nearly always as one message,
// and as several if it is large. An assignment that is larger than a message, or that cannot be
// serialized, is given to refuse instead: sending it would break the session, and so would every
// repetition.
func (m *SessionMessage) Send(o *schedapi.Outbound, send func(*workerv1.SessionResponse) error, refuse unsendable) error {
	s := splitter{message: m, send: send, refuse: refuse, part: *o}
	s.empty()
	split(&s, o.Dropped, &s.part.Dropped, fixedBytes[ids.FunctionHash])
	split(&s, o.Ops, &s.part.Ops, func(op *schedapi.OpDefinition) int { return itemBytes + len(op.Op.Name) })
	split(&s, o.Functions, &s.part.Functions, func(f *functions.Function) int { return itemBytes + len(f.Payload) })
	split(&s, o.Peers, &s.part.Peers, func(p *members.Peer) int { return itemBytes + len(p.Address) + len(p.Name) })
	split(&s, o.Accepted, &s.part.Accepted, fixedBytes[sched.Replica])
	split(&s, o.Keeps, &s.part.Keeps, fixedBytes[sched.Replica])
	s.assignments(o)
	split(&s, o.FreedSlots, &s.part.FreedSlots, fixedBytes[sched.TaskRef]) // after the assignments
	split(&s, o.Retractions, &s.part.Retractions, fixedBytes[sched.TaskRef])
	split(&s, o.Cancellations, &s.part.Cancellations, fixedBytes[sched.TaskRef])
	split(&s, o.Releases, &s.part.Releases, fixedBytes[sched.Replica])
	split(&s, o.NextUses, &s.part.NextUses, fixedBytes[sched.NextUse])
	split(&s, shortRescues(o.Rescues), &s.part.Rescues, func(r *schedapi.Rescue) int {
		return 2*itemBytes + len(r.Dead.Address) + len(r.Dead.Name) + itemBytes*len(r.Objects)
	})
	s.part.Drained = o.Drained
	s.part.Leave, s.part.StopReason, s.part.Reregister = o.Leave, text.Valid(o.StopReason), o.Reregister
	if !s.part.Empty() { // It is empty if all assignments were refused.
		s.flush()
	}
	return s.err
}

const (
	// itemBytes is an upper bound for the size of any item of a message without its texts and
	// lists.
	itemBytes = 64
	// holderBytes is the largest size of a worker's number.
	holderBytes = 5
)

func fixedBytes[T any](*T) int { return itemBytes }

// assignmentBytes is an upper bound for the size of an assignment in a message.
func assignmentBytes(o *schedapi.Outbound, a *schedapi.Assignment) int {
	bytes := 2*itemBytes + len(o.Arguments(a)) + len(a.Key) + len(a.Namespace)
	for name := range a.Resources {
		bytes += itemBytes + len(name)
	}
	inputs := o.Inputs(a)
	for i := range inputs {
		bytes += itemBytes + len(inputs[i].Inline) + holderBytes*len(inputs[i].Holders)
	}
	return bytes
}

// rescuedAtOnce bounds the objects in one Rescue. More objects of one dead worker are sent in
// several.
const rescuedAtOnce = messageBytes / itemBytes / 2

func shortRescues(rescues []schedapi.Rescue) []schedapi.Rescue {
	if !slices.ContainsFunc(rescues, func(r schedapi.Rescue) bool { return len(r.Objects) > rescuedAtOnce }) {
		return rescues
	}
	var short []schedapi.Rescue
	for _, r := range rescues {
		for objects := range slices.Chunk(r.Objects, rescuedAtOnce) {
			r.Objects = objects
			short = append(short, r)
		}
	}
	return short
}

// splitter sends an outbound in parts. The parts share the memory of the whole.
type splitter struct {
	message *SessionMessage
	part    schedapi.Outbound
	bytes   int // approximate size of the part
	send    func(*workerv1.SessionResponse) error
	refuse  unsendable
	err     error // the first error of send
}

// empty removes all items from the part.
func (s *splitter) empty() {
	p := &s.part
	p.Ops, p.Functions, p.Peers, p.Assignments, p.Retractions = nil, nil, nil, nil, nil
	p.Cancellations, p.Releases, p.NextUses, p.Rescues = nil, nil, nil, nil
	p.Dropped, p.Accepted, p.Keeps, p.FreedSlots = nil, nil, nil, nil
	p.Leave, p.Drained, p.StopReason, p.Reregister = nil, false, "", false
	s.bytes = 0
}

// flush sends the part, unless sending has failed before.
func (s *splitter) flush() {
	if s.err == nil {
		message := s.message.build(&s.part)
		s.err = s.send(message)
		if code := status.Code(s.err); code == codes.Internal || code == codes.ResourceExhausted {
			// The failed send has ended the stream. The same message must not be sent again on the
			// next one.
			for i, a := range message.GetAssignments() {
				if why := unsendableReason(a); why != "" {
					s.refuse(s.part.Assignments[i].Task, s.part.Assignments[i].Attempt, why)
				}
			}
		}
	}
	s.empty()
}

// split adds a list to the part, and sends the part each time it is full.
func split[T any](s *splitter, list []T, into *[]T, size func(*T) int) {
	first := 0
	for i := range list {
		bytes := size(&list[i])
		if s.bytes > 0 && s.bytes+bytes > messageBytes {
			*into = list[first:i]
			s.flush()
			first = i
		}
		s.bytes += bytes
	}
	*into = list[first:]
}

// assignments is split for assignments. It refuses those that no message can carry.
func (s *splitter) assignments(o *schedapi.Outbound) {
	all, first := o.Assignments, 0
	flush := func(until int) {
		s.part.Assignments = all[first:until]
		if !s.part.Empty() {
			s.flush()
		}
		first = until
	}
	for i := range all {
		bytes := assignmentBytes(o, &all[i])
		if s.bytes > 0 && s.bytes+bytes > messageBytes {
			flush(i)
		}
		if s.bytes += bytes; bytes < MaxMessageBytes {
			continue
		}
		// By the rough count it may be too large: it is sent alone, if it can be sent at all.
		s.part.Assignments = all[i : i+1]
		if why := unsendableReason(s.message.build(&s.part).GetAssignments()[0]); why != "" {
			s.refuse(all[i].Task, all[i].Attempt, why)
			s.empty()
			first = i + 1
		}
	}
	s.part.Assignments = all[first:]
}

// unsendableReason returns the reason why an assignment cannot be sent; empty if it can.
func unsendableReason(a *workerv1.Assignment) string {
	if bytes := proto.Size(a); bytes > MaxMessageBytes-itemBytes {
		return fmt.Sprintf("its assignment has %s (%d inputs, %s of arguments), a message at most %s: pass large arguments as data of their own, and sum up many inputs in steps",
			humanize.IBytes(uint64(bytes)), len(a.GetInputs()), humanize.IBytes(uint64(len(a.GetArguments()))), humanize.IBytes(MaxMessageBytes))
	}
	if _, err := proto.Marshal(a); err != nil {
		return fmt.Sprintf("its assignment cannot be serialised: %v", err)
	}
	return ""
}

func functionTo(f functions.Function) *pb.Function {
	return &pb.Function{Hash: f.Hash[:], Payload: f.Payload, Language: f.Language}
}

// build converts an outbound. The message is valid until the next build.
func (m *SessionMessage) build(o *schedapi.Outbound) *workerv1.SessionResponse {
	m.assignments.reset()
	m.inputs.reset()
	m.refs.reset()
	m.replicas.reset()
	m.inputLists, m.holders = m.inputLists[:0], m.holders[:0]
	message := &m.message
	message.Ops = convertAll(o.Ops, func(op schedapi.OpDefinition) *workerv1.OpDefinition {
		return &workerv1.OpDefinition{OpId: uint32(op.ID), Op: opTo(op.Op)}
	})
	message.Functions = convertAll(o.Functions, functionTo)
	message.Peers = convertAll(o.Peers, func(p members.Peer) *workerv1.Peer {
		return &workerv1.Peer{WorkerId: uint32(p.Worker), DataAddress: p.Address, Name: p.Name, SameHost: p.SameHost, Device: pb.DeviceKind(p.Device)}
	})
	message.Assignments = message.Assignments[:0]
	for i := range o.Assignments {
		message.Assignments = append(message.Assignments, m.assignment(o, &o.Assignments[i]))
	}
	message.Retractions = m.taskRefs(message.Retractions[:0], o.Retractions)
	message.FreedSlots = m.taskRefs(message.FreedSlots[:0], o.FreedSlots)
	message.Cancellations = m.taskRefs(message.Cancellations[:0], o.Cancellations)
	message.Releases = message.Releases[:0]
	for _, r := range o.Releases {
		replica := m.replicas.next()
		replica.TaskId, replica.Generation, replica.Bytes = uint64(r.Task), uint32(r.Generation), r.Bytes
		message.Releases = append(message.Releases, replica)
	}
	message.DroppedFunctions = hashesTo(o.Dropped)
	message.AcceptedWrites = convertAll(o.Accepted, replicaTo)
	message.Keeps = convertAll(o.Keeps, replicaTo)
	message.NextUses = convertAll(o.NextUses, func(u sched.NextUse) *workerv1.NextUse {
		return &workerv1.NextUse{TaskId: uint64(u.Task), Generation: uint32(u.Generation), Rank: u.Rank}
	})
	message.Rescues = convertAll(o.Rescues, rescueTo)
	message.Drained, message.StopReason, message.Reregister = o.Drained, o.StopReason, o.Reregister
	message.Leave = nil
	if l := o.Leave; l != nil {
		message.Leave = &workerv1.Leave{Restart: l.Restart, Reason: text.Valid(l.Reason)}
	}
	return message
}

func rescueTo(r schedapi.Rescue) *workerv1.Rescue {
	return &workerv1.Rescue{
		WorkerId: uint32(r.Dead.Worker), Incarnation: r.Incarnation, DataAddress: r.Dead.Address, Name: r.Dead.Name,
		Objects: convertAll(r.Objects, replicaTo),
	}
}

func replicaTo(o sched.Replica) *workerv1.Replica {
	return &workerv1.Replica{TaskId: uint64(o.Task), Generation: uint32(o.Generation), Bytes: o.Bytes}
}

func (m *SessionMessage) assignment(o *schedapi.Outbound, a *schedapi.Assignment) *workerv1.Assignment {
	into := m.assignments.next()
	into.TaskId = uint64(a.Task)
	into.Attempt = uint32(a.Attempt)
	into.OpId = uint32(a.Op)
	into.Arguments = o.Arguments(a)
	into.Rank = a.Rank
	// 0 means no timeout
	into.TimeoutMillis = uint64((a.Timeout + time.Millisecond - 1) / time.Millisecond)
	into.Key = a.Key
	into.Slots = a.Slots
	into.ExpectedOutputBytes = a.ExpectedOutputBytes
	into.Namespace = a.Namespace
	into.Resources = a.Resources
	into.Priority = a.Priority
	first := len(m.inputLists)
	inputs := o.Inputs(a)
	for i := range inputs {
		m.inputLists = append(m.inputLists, m.input(&inputs[i]))
	}
	into.Inputs = m.inputLists[first:len(m.inputLists):len(m.inputLists)]
	return into
}

func (m *SessionMessage) input(i *sched.AssignedInput) *workerv1.Input {
	into := m.inputs.next()
	into.TaskId = uint64(i.Task)
	into.Generation = uint32(i.Generation)
	into.Bytes = i.Bytes
	into.InlineResult = i.Inline
	into.Pending = i.Pending
	into.UpstreamWorkerId = number[uint32, ids.WorkerID](i.Upstream)
	into.HasDownstream = i.Downstream
	into.Item, into.ItemCount = uint32(i.Item), i.Count
	first := len(m.holders)
	for _, holder := range i.Holders {
		m.holders = append(m.holders, number[uint32, ids.WorkerID](holder))
	}
	into.Holders = m.holders[first:len(m.holders):len(m.holders)]
	return into
}

func (m *SessionMessage) taskRefs(into []*workerv1.AttemptRef, refs []sched.TaskRef) []*workerv1.AttemptRef {
	for _, r := range refs {
		ref := m.refs.next()
		ref.TaskId, ref.Attempt = uint64(r.Task), uint32(r.Attempt)
		into = append(into, ref)
	}
	return into
}
