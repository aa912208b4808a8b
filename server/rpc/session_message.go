package rpc

import (
	pb "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/front"
	"github.com/millrace/millrace/server/sched"
)

// sessionMessage builds messages to one worker in memory that is used again: Send has serialised a message when it
// returns.
type sessionMessage struct {
	message     pb.SessionResponse
	assignments slab[pb.Assignment]
	inputs      slab[pb.Input]
	refs        slab[pb.TaskRef]
	replicas    slab[pb.Replica]
	inputLists  []*pb.Input
	holders     []uint32
}

// slab hands out elements that stay where they are until reset.
type slab[T any] struct {
	blocks [][]T
	used   int
}

const (
	slabBlock = 256
	// slabKept bounds the blocks that are kept for the next message.
	slabKept = 64
)

func (s *slab[T]) reset() {
	s.used = 0
	if len(s.blocks) > slabKept {
		clear(s.blocks[slabKept:])
		s.blocks = s.blocks[:slabKept]
	}
}

func (s *slab[T]) next() *T {
	block, i := s.used/slabBlock, s.used%slabBlock
	if block == len(s.blocks) {
		s.blocks = append(s.blocks, make([]T, slabBlock))
	}
	s.used++
	return &s.blocks[block][i]
}

// messageBytes is about how large a message gets before the rest goes into a further one.
const messageBytes = 16 << 20

// send sends an outbound, in as many messages as its functions and arguments need; nearly always that is one.
func (m *sessionMessage) send(o *front.Outbound, send func(*pb.SessionResponse) error) error {
	bytes := 0
	functions, assignments := o.Functions, o.Assignments
	defer func() { o.Functions, o.Assignments = functions, assignments }()
	for i := range functions {
		if bytes += len(functions[i].Payload); bytes > messageBytes {
			// Ahead of everything that needs them.
			if err := send(&pb.SessionResponse{Functions: convertAll(o.Functions[:1], functionTo)}); err != nil {
				return err
			}
			bytes -= len(o.Functions[0].Payload)
			o.Functions = o.Functions[1:]
		}
	}
	for first, i := 0, 0; i < len(assignments); i++ {
		size := len(o.Arguments(&assignments[i]))
		for _, input := range o.Inputs(&assignments[i]) {
			size += len(input.Inline)
		}
		if bytes += size; bytes > messageBytes && i > first {
			head := *o
			head.Assignments = assignments[first:i]
			head.Retractions, head.Cancellations, head.Releases, head.NextUses, head.Rescues = nil, nil, nil, nil, nil
			head.Drain, head.StopReason, head.Reregister = false, "", false
			if err := send(m.build(&head)); err != nil {
				return err
			}
			o.Ops, o.Functions, o.Peers, o.Assignments = nil, nil, nil, assignments[i:]
			first, bytes = i, size
		}
	}
	return send(m.build(o))
}

func functionTo(f front.Function) *pb.Function {
	return &pb.Function{Hash: f.Hash[:], Payload: f.Payload}
}

// build converts an outbound. The message is valid until the next build.
func (m *sessionMessage) build(o *front.Outbound) *pb.SessionResponse {
	m.assignments.reset()
	m.inputs.reset()
	m.refs.reset()
	m.replicas.reset()
	m.inputLists, m.holders = m.inputLists[:0], m.holders[:0]
	message := &m.message
	message.Ops = convertAll(o.Ops, func(op front.OpDefinition) *pb.OpDefinition {
		return &pb.OpDefinition{OpId: uint32(op.ID), Op: opTo(op.Op)}
	})
	message.Functions = convertAll(o.Functions, functionTo)
	message.Peers = convertAll(o.Peers, func(p front.Peer) *pb.Peer {
		return &pb.Peer{WorkerId: uint32(p.Worker), DataAddress: p.Address, Name: p.Name, Near: p.Near}
	})
	message.Assignments = message.Assignments[:0]
	for i := range o.Assignments {
		message.Assignments = append(message.Assignments, m.assignment(o, &o.Assignments[i]))
	}
	message.Retractions = m.taskRefs(message.Retractions[:0], o.Retractions)
	message.Cancellations = m.taskRefs(message.Cancellations[:0], o.Cancellations)
	message.Releases = message.Releases[:0]
	for _, r := range o.Releases {
		replica := m.replicas.next()
		replica.TaskId, replica.Generation, replica.Bytes = uint64(r.Task), uint32(r.Generation), r.Bytes
		message.Releases = append(message.Releases, replica)
	}
	message.NextUses = convertAll(o.NextUses, func(u sched.NextUse) *pb.NextUse {
		return &pb.NextUse{TaskId: uint64(u.Task), Generation: uint32(u.Generation), Rank: u.Rank}
	})
	message.Rescues = convertAll(o.Rescues, rescueTo)
	message.Drain, message.StopReason, message.Reregister = o.Drain, o.StopReason, o.Reregister
	return message
}

func rescueTo(r front.Rescue) *pb.Rescue {
	return &pb.Rescue{
		WorkerId: uint32(r.Dead.Worker), Incarnation: r.Incarnation, DataAddress: r.Dead.Address, Name: r.Dead.Name,
		Objects: convertAll(r.Objects, func(o sched.Replica) *pb.Replica {
			return &pb.Replica{TaskId: uint64(o.Task), Generation: uint32(o.Generation), Bytes: o.Bytes}
		}),
	}
}

func (m *sessionMessage) assignment(o *front.Outbound, a *front.Assignment) *pb.Assignment {
	into := m.assignments.next()
	into.TaskId = uint64(a.Task)
	into.Attempt = uint32(a.Attempt)
	into.OpId = uint32(a.Op)
	into.Arguments = o.Arguments(a)
	into.Rank = a.Rank
	into.TimeoutMillis = uint64(a.Timeout.Milliseconds())
	into.Key = a.Key
	into.Slots = a.Slots
	into.ExpectedOutputBytes = a.ExpectedOutputBytes
	into.Namespace = a.Namespace
	into.Resources = a.Resources
	first := len(m.inputLists)
	inputs := o.Inputs(a)
	for i := range inputs {
		m.inputLists = append(m.inputLists, m.input(&inputs[i]))
	}
	into.Inputs = m.inputLists[first:len(m.inputLists):len(m.inputLists)]
	return into
}

func (m *sessionMessage) input(i *sched.AssignedInput) *pb.Input {
	into := m.inputs.next()
	into.TaskId = uint64(i.Task)
	into.Generation = uint32(i.Generation)
	into.Bytes = i.Bytes
	into.InlineResult = i.Inline
	into.Pending = i.Pending
	into.RelayWorkerId = number[uint32, ids.WorkerID](i.Relay)
	into.Relayed = i.Relayed
	first := len(m.holders)
	for _, holder := range i.Holders {
		m.holders = append(m.holders, number[uint32, ids.WorkerID](holder))
	}
	into.Holders = m.holders[first:len(m.holders):len(m.holders)]
	return into
}

func (m *sessionMessage) taskRefs(into []*pb.TaskRef, refs []sched.TaskRef) []*pb.TaskRef {
	for _, r := range refs {
		ref := m.refs.next()
		ref.TaskId, ref.Attempt = uint64(r.Task), uint32(r.Attempt)
		into = append(into, ref)
	}
	return into
}
