package executor

import (
	"context"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

// describedProcesses is the number of processes that are described without a limit in the request.
const describedProcesses = 1000

// DescribeExecutors is part of ExecutorServiceServer.
func (s *Service) DescribeExecutors(_ context.Context, r *millracev1.DescribeExecutorsRequest) (*millracev1.DescribeExecutorsResponse, error) {
	limit := int(r.GetLimit())
	if limit == 0 {
		limit = describedProcesses
	}
	all := s.Pools.describe()
	response := &millracev1.DescribeExecutorsResponse{ProcessCount: uint32(len(all)), Processes: all[:min(limit, len(all))]}
	for _, x := range response.GetProcesses() {
		x.MemoryBytes = anonymousBytes(int(x.GetPid()))
	}
	return response, nil
}

// describe describes all processes but their memory.
func (p *Pools) describe() (all []*millracev1.ExecutorProcess) {
	for _, kind := range p.Kinds() {
		for _, s := range p.slots[kind] {
			if x := s.describe(); x != nil {
				all = append(all, x)
			}
		}
		for _, s := range p.spares[kind] {
			if x := s.describe(); x != nil {
				all = append(all, x)
			}
		}
	}
	return all
}

// describe describes the slot's process, nil if there is none.
func (s *slot) describe() *millracev1.ExecutorProcess {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.process
	if p == nil {
		return nil
	}
	x := p.identify()
	x.Slot, x.Language = proto.Uint32(uint32(s.index)), p.language
	x.State, x.StateTime = millracev1.ExecutorState_EXECUTOR_STATE_IDLE, timestamppb.New(p.idleSince)
	x.FinishedTasks, x.QueuedTasks = p.ended, uint32(len(s.queue))
	if q := s.atWork(p); q != nil {
		x.QueuedTasks--
		x.State = millracev1.ExecutorState_EXECUTOR_STATE_RUNNING
		if q.blocked {
			x.State = millracev1.ExecutorState_EXECUTOR_STATE_BLOCKED
		}
		begun := q.begun
		if begun.IsZero() {
			begun = time.Now() // The watcher has not seen it yet.
		}
		x.StateTime = timestamppb.New(begun)
		x.TaskId, x.Attempt = uint64(q.run.Ref.Task), uint32(q.run.Ref.Attempt)
		x.Key, x.Op = q.run.Key, q.run.Op.GetName()
	}
	return x
}

// describe describes the spare process, nil if there is none.
func (s *spare) describe() *millracev1.ExecutorProcess {
	s.mu.Lock()
	p := s.process
	s.mu.Unlock()
	if p == nil {
		return nil
	}
	x := p.identify()
	x.StateTime = x.GetCreateTime()
	select {
	case <-p.ready:
		x.State, x.Language = millracev1.ExecutorState_EXECUTOR_STATE_SPARE, p.language
	default:
		x.State = millracev1.ExecutorState_EXECUTOR_STATE_STARTING
	}
	return x
}

// identify tells what never changes of a process.
func (p *process) identify() *millracev1.ExecutorProcess {
	return &millracev1.ExecutorProcess{Kind: p.kind, Pid: int64(p.pid()), CreateTime: timestamppb.New(p.startedAt)}
}
