package rpc

import (
	"slices"
	"time"

	"google.golang.org/grpc"

	pb "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/server/copies"
	"github.com/millrace/millrace/server/sched"
	"github.com/millrace/millrace/server/schedapi"
)

// rebalanceEvery is the time between two responses of a rebalance.
const rebalanceEvery = 500 * time.Millisecond

// Rebalance sends the plan, then the progress, and ends with the rebalance. It ends the rebalance
// if the client goes away.
func (s *schedulerService) Rebalance(r *pb.RebalanceRequest, stream grpc.ServerStreamingServer[pb.RebalanceResponse]) error {
	ctx := stream.Context()
	snapshot, err := s.scheduler.Snapshot(ctx)
	if err != nil {
		return err
	}
	order := sched.RebalanceOrdered{DryRun: r.GetDryRun()}
	for _, ref := range r.GetWorkers() {
		worker, err := findWorker(snapshot, "workers", ref)
		if err != nil {
			return err
		}
		if !slices.Contains(order.Workers, worker.ID) {
			order.Workers = append(order.Workers, worker.ID)
		}
	}
	rebalance, info, err := s.scheduler.Rebalance(ctx, order)
	if err != nil {
		return err
	}
	if !info.Done {
		defer rebalance.Stop(ctx)
	}
	ticker := time.NewTicker(rebalanceEvery)
	defer ticker.Stop()
	for {
		if err := stream.Send(rebalanceTo(&info)); err != nil || info.Done {
			return err
		}
		select {
		case <-rebalance.Ended():
		case <-ticker.C:
		case <-s.scheduler.Draining():
			return &schedapi.Error{Kind: schedapi.ErrDraining, Message: "the scheduler is stopping: what has moved stays moved; order a rebalance of the rest when it is back"}
		case <-ctx.Done():
			return ctx.Err()
		}
		if info, err = rebalance.Info(ctx); err != nil {
			return err
		}
	}
}

func rebalanceTo(info *copies.RebalanceInfo) *pb.RebalanceResponse {
	response := &pb.RebalanceResponse{
		PlannedObjects: info.PlannedObjects, PlannedBytes: info.PlannedBytes, MovedObjects: info.MovedObjects, MovedBytes: info.MovedBytes,
		FailedObjects: info.FailedObjects, FailedBytes: info.FailedBytes, Done: info.Done,
	}
	for _, f := range info.Failures {
		response.Failures = append(response.Failures, &pb.FailedMove{
			TaskId: uint64(f.Task), Key: f.Key, Namespace: f.Namespace, Bytes: f.Bytes,
			SourceWorkerId: uint32(f.From), TargetWorkerId: uint32(f.To), Reason: f.Reason,
		})
	}
	for _, w := range info.Workers {
		response.Workers = append(response.Workers, &pb.RebalancedWorker{
			WorkerId: uint32(w.Worker), Name: w.Name, InitialBytes: w.InitialBytes, Bytes: w.HeldBytes, PlannedBytes: w.PlannedBytes,
			StayingBytes: w.StayingBytes, MemoryLimitBytes: w.MemoryBytes,
		})
	}
	return response
}
