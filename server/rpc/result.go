package rpc

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/sched"
	"github.com/millrace/millrace/server/schedapi"
)

// GetResult is for people and small programs: it is the only call that decodes a result.
func (s *schedulerService) GetResult(ctx context.Context, r *pb.GetResultRequest) (*pb.GetResultResponse, error) {
	var info sched.TaskInfo
	var update sched.Update
	err := s.read(ctx, func(reader schedapi.Reader) (err error) {
		if info, err = find(reader, r.GetTask()); err == nil {
			update, _ = reader.UpdateOf(info.Task)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	if r.GetWait() != nil && (info.State < sched.TaskSucceeded || info.State == sched.TaskReleased || info.State == sched.TaskRescuing) {
		limited, cancel := context.WithTimeout(ctx, r.GetWait().AsDuration())
		defer cancel()
		update, err = s.scheduler.Await(limited, info.Namespace, info.Key)
		if err != nil && errors.Is(limited.Err(), context.DeadlineExceeded) && ctx.Err() == nil {
			return nil, notReady(&info, fmt.Sprintf("it did not end within %v", r.GetWait().AsDuration()))
		}
		if err != nil {
			return nil, err
		}
	}
	if update.State == sched.TaskSucceeded && update.Inline == nil {
		update.Inline = s.valueAtWorker(ctx, &update)
	}
	return resultOf(&info, &update)
}

// askedTime limits the wait for the worker.
const askedTime = 5 * time.Second

// valueAtWorker reads a small result without frames from a worker that holds it, by the token of
// the caller. Such a result is usually held by the scheduler, but not after a restart, or if all of
// them together are too large. nil: it is none, or no worker gives it.
func (s *schedulerService) valueAtWorker(ctx context.Context, update *sched.Update) []byte {
	if update.OutputBytes > uint64(s.scheduler.Cluster().InlineResultBytes) {
		return nil
	}
	ref := &pb.ObjectRef{TaskId: uint64(update.Task)}
	var holders []ids.WorkerID
	if err := s.scheduler.Read(ctx, func(reader schedapi.Reader) {
		var replica sched.Replica
		replica, _, holders = reader.ReplicasOf(update.Task, nil)
		ref.Generation = uint32(replica.Generation)
	}); err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, askedTime)
	defer cancel()
	if caller, ok := metadata.FromIncomingContext(ctx); ok {
		ctx = metadata.NewOutgoingContext(ctx, metadata.MD{"authorization": caller.Get("authorization")})
	}
	workers := s.scheduler.LastSnapshot()
	for _, holder := range holders {
		if worker := workers.Worker(holder); worker != nil && worker.State != schedapi.WorkerLost {
			if value, err := readValue(ctx, worker.DataAddress, ref); err == nil {
				return value
			}
		}
	}
	return nil
}

// readValue reads an object without frames.
func readValue(ctx context.Context, address string, ref *pb.ObjectRef) ([]byte, error) {
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy())
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	objects, err := pb.NewDataServiceClient(conn).ReadObjects(ctx, &pb.ReadObjectsRequest{Objects: []*pb.ObjectRef{ref}})
	if err != nil {
		return nil, err
	}
	first, err := objects.Recv()
	if err != nil {
		return nil, err
	}
	if first.GetHead() == nil || len(first.GetHead().GetFrameBytes()) > 0 {
		return nil, errors.New("no value without frames")
	}
	return first.GetHead().GetHeader(), nil
}

func resultOf(info *sched.TaskInfo, update *sched.Update) (*pb.GetResultResponse, error) {
	switch update.State {
	case sched.TaskSucceeded:
		if update.Inline == nil {
			return nil, &schedapi.Error{Kind: schedapi.ErrResultNotInline, Object: info.Key, Message: fmt.Sprintf(
				"the result of task %q (%d bytes) is not held by the scheduler: fetch it from a worker (LocateObjects, then DataService.ReadObjects), or submit a task that reduces it",
				info.Key, update.OutputBytes)}
		}
	case sched.TaskFailed, sched.TaskCancelled:
		failure := &schedapi.Error{Kind: schedapi.ErrTaskFailed, Object: info.Key, Message: fmt.Sprintf("task %q failed", info.Key)}
		if update.State == sched.TaskCancelled {
			failure.Kind, failure.Message = schedapi.ErrTaskCancelled, fmt.Sprintf("task %q was cancelled", info.Key)
		}
		if e := update.Err; e != nil {
			failure.Message += ": " + e.Message
			failure.Metadata = map[string]string{"task_reason": e.Reason, "origin_key": e.OriginKey, "worker": e.Worker}
			if e.Reason == "OBJECT_LOST" {
				failure.Kind = schedapi.ErrObjectLost
			}
		}
		return nil, failure
	case sched.TaskReleased:
		return nil, notReady(info, "its result was released: set wait to compute it again, or hold it when it is submitted")
	case sched.TaskWaiting, sched.TaskReady, sched.TaskAssigned, sched.TaskRunning, sched.TaskRescuing:
		return nil, notReady(info, "set wait, or see ExplainTask for why it is not done")
	}
	value := &pb.Value{}
	if err := proto.Unmarshal(update.Inline, value); err != nil {
		return nil, fmt.Errorf("the inline result of task %q is no Value: %w", info.Key, err)
	}
	readable, err := valueJSON(value)
	if err != nil && !errors.Is(err, errNotShown) {
		return nil, fmt.Errorf("the result of task %q: %w", info.Key, err)
	}
	return &pb.GetResultResponse{Value: value, Json: readable}, nil
}

func notReady(info *sched.TaskInfo, why string) error {
	return &schedapi.Error{Kind: schedapi.ErrResultNotReady, Object: info.Key, Message: fmt.Sprintf(
		"task %q has no result yet (%s): %s", info.Key, pb.TaskState(info.State), why),
		Metadata: map[string]string{"state": pb.TaskState(info.State).String()}}
}
