package rpc

import (
	"context"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/copies"
	"github.com/millrace/millrace/server/sched"
	"github.com/millrace/millrace/server/schedapi"
)

func (s *schedulerService) DrainWorkers(ctx context.Context, r *pb.DrainWorkersRequest) (*pb.DrainWorkersResponse, error) {
	if !r.GetUndo() {
		workers, err := s.drain(ctx, r.GetWorkers(), copies.DrainKeep, r.GetReason(), 0)
		return &pb.DrainWorkersResponse{Workers: workers}, err
	}
	snapshot, err := s.scheduler.Snapshot(ctx)
	if err != nil {
		return nil, err
	}
	// An order outlives the worker, and even the row of the worker, so a name may be unknown here.
	var names []string
	for _, ref := range r.GetWorkers() {
		name := ref.GetName()
		if name == "" {
			worker, err := findWorker(snapshot, "workers", ref)
			if err != nil {
				return nil, err
			}
			name = worker.Name
		}
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	if err := s.scheduler.UndoDrains(ctx, names); err != nil {
		return nil, err
	}
	if snapshot, err = s.scheduler.Snapshot(ctx); err != nil {
		return nil, err
	}
	response := &pb.DrainWorkersResponse{}
	for _, name := range names {
		if worker := snapshot.WorkerByName(name); worker != nil && worker.State != schedapi.WorkerLost {
			response.Workers = append(response.Workers, workerTo(worker, pb.WorkerView_WORKER_VIEW_FULL))
		}
	}
	return response, nil
}

func (s *schedulerService) RetireWorkers(ctx context.Context, r *pb.RetireWorkersRequest) (*pb.RetireWorkersResponse, error) {
	workers, err := s.drain(ctx, r.GetWorkers(), copies.DrainRetire, r.GetReason(), timeoutOf(r.GetTimeout()))
	return &pb.RetireWorkersResponse{Workers: workers}, err
}

func (s *schedulerService) RestartWorkers(ctx context.Context, r *pb.RestartWorkersRequest) (*pb.RestartWorkersResponse, error) {
	workers, err := s.drain(ctx, r.GetWorkers(), copies.DrainRestart, r.GetReason(), timeoutOf(r.GetTimeout()))
	return &pb.RestartWorkersResponse{Workers: workers}, err
}

// timeoutOf returns a timeout that was validated; 0: none.
func timeoutOf(d *durationpb.Duration) time.Duration { return d.AsDuration() }

// drain orders the drain of workers and returns their rows.
func (s *schedulerService) drain(ctx context.Context, refs []*pb.WorkerRef, purpose copies.DrainPurpose, reason string, timeout time.Duration) ([]*pb.Worker, error) {
	snapshot, err := s.scheduler.Snapshot(ctx)
	if err != nil {
		return nil, err
	}
	event := sched.DrainOrdered{Purpose: purpose, Reason: reason, Timeout: timeout}
	for _, ref := range refs {
		worker, err := findWorker(snapshot, "workers", ref)
		if err != nil {
			return nil, err
		}
		if !slices.Contains(event.Workers, worker.ID) {
			event.Workers = append(event.Workers, worker.ID)
		}
	}
	numbers := slices.Clone(event.Workers) // the machine owns the others
	if err := s.scheduler.DrainWorkers(ctx, event); err != nil {
		return nil, err
	}
	if snapshot, err = s.scheduler.Snapshot(ctx); err != nil {
		return nil, err
	}
	return workersTo(snapshot, numbers), nil
}

func workersTo(snapshot schedapi.Snapshot, numbers []ids.WorkerID) []*pb.Worker {
	var workers []*pb.Worker
	for _, id := range numbers {
		if worker := snapshot.Worker(id); worker != nil {
			workers = append(workers, workerTo(worker, pb.WorkerView_WORKER_VIEW_FULL))
		}
	}
	return workers
}
