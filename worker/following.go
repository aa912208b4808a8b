package worker

import (
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/edge"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/worker/tasklog"
)

// followPause is the shortest time between two batches to one follower. With the size of a batch,
// it bounds the rate.
const followPause = 20 * time.Millisecond

// following serves FollowLogs.
type following struct {
	logs  *tasklog.Logs
	pause time.Duration
}

func (s following) serve(request *millracev1.FollowLogsRequest, stream grpc.ServerStreamingServer[millracev1.FollowLogsResponse]) error {
	filter := tasklog.Filter{Namespace: request.GetNamespace(), After: request.GetAfterPosition(), Within: request.GetWithin().AsDuration(), Whole: request.GetUntilNow()}
	filter.Tasks, filter.Keys = make(map[ids.TaskID]bool), make(map[string]bool)
	for _, id := range request.GetTaskIds() {
		filter.Tasks[ids.TaskID(id)] = true
	}
	for _, key := range request.GetKeys() {
		filter.Keys[key] = true
	}
	follower, err := s.logs.Follow(filter)
	if err != nil {
		return edge.Refusal(codes.ResourceExhausted, "TOO_MANY_FOLLOWERS", err.Error(), nil)
	}
	defer follower.Close()
	for {
		chunks, position, more, changed := follower.Next()
		if len(chunks) > 0 {
			if err := stream.Send(batchOf(chunks, position)); err != nil {
				return err
			}
			if request.GetUntilNow() && !more {
				return nil
			}
			if !pause(stream, s.pause) {
				return nil
			}
		}
		if more {
			continue
		}
		if changed == nil || request.GetUntilNow() {
			return nil
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return nil
		}
	}
}

// pause waits. It returns false if the stream has ended.
func pause(stream grpc.ServerStream, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-stream.Context().Done():
		return false
	}
}

func batchOf(chunks []tasklog.Chunk, position uint64) *millracev1.FollowLogsResponse {
	batch := &millracev1.FollowLogsResponse{Position: position, Outputs: make([]*millracev1.TaskOutput, len(chunks))}
	for i, c := range chunks {
		batch.Outputs[i] = &millracev1.TaskOutput{
			TaskId: uint64(c.Task), Attempt: uint32(c.Attempt), Key: c.Key, Namespace: c.Namespace,
			Offset: c.Offset, SkippedBytes: c.Skipped, Stderr: c.Stderr, Bytes: uint64(c.Bytes), Text: c.Text,
		}
	}
	return batch
}
