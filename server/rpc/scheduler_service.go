package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	pb "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/access"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/sched"
	"github.com/millrace/millrace/server/schedapi"
)

// The version of the API that is served.
const (
	apiMajor   = 1
	apiMinor   = 0
	apiVersion = "v1.0"
)

type schedulerService struct {
	pb.UnimplementedSchedulerServiceServer
	*Server
}

func (s *schedulerService) OpenClient(ctx context.Context, r *pb.OpenClientRequest) (*pb.OpenClientResponse, error) {
	if err := checkVersion(r.GetApiVersion()); err != nil {
		return nil, err
	}
	client, err := s.scheduler.OpenClient(ctx, schedapi.ClientSpec{
		Name: r.GetName(), Namespace: namespaceOf(r.GetNamespace()), Origin: r.GetOrigin(), Worker: r.GetWorker(), TTL: r.GetLeaseTtl().AsDuration(),
		Owner: access.Caller(ctx).Token,
	})
	if err != nil {
		return nil, err
	}
	cluster, err := s.cluster(ctx)
	if err != nil {
		return nil, err
	}
	return &pb.OpenClientResponse{Client: clientTo(client), Cluster: cluster}, nil
}

// checkVersion refuses clients that are built for a newer API, because they may use features that
// do not exist yet.
func checkVersion(version string) error {
	if version == "" {
		return nil
	}
	majorText, minorText, _ := strings.Cut(strings.TrimPrefix(version, "v"), ".")
	major, err := strconv.ParseUint(majorText, 10, 16)
	if err != nil {
		return invalid("api_version", fmt.Sprintf("%q is no version: write it as %q", version, apiVersion))
	}
	minor, err := strconv.ParseUint(minorText, 10, 16)
	if err != nil && minorText != "" {
		return invalid("api_version", fmt.Sprintf("%q is no version: write it as %q", version, apiVersion))
	}
	if major != apiMajor || minor > apiMinor {
		return &schedapi.Error{Kind: schedapi.ErrVersionTooNew, Object: version, Message: fmt.Sprintf(
			"the client was built for API %s, the scheduler speaks %s: upgrade the scheduler, or use an older client", version, apiVersion),
			Metadata: map[string]string{"scheduler": apiVersion}}
	}
	return nil
}

func (s *schedulerService) RenewClient(ctx context.Context, r *pb.RenewClientRequest) (*pb.RenewClientResponse, error) {
	return &pb.RenewClientResponse{}, s.scheduler.RenewClient(ctx, ids.ClientID(r.GetClientId()))
}

func (s *schedulerService) CloseClient(ctx context.Context, r *pb.CloseClientRequest) (*pb.CloseClientResponse, error) {
	return &pb.CloseClientResponse{}, s.scheduler.CloseClient(ctx, ids.ClientID(r.GetClientId()))
}

func (s *schedulerService) Submit(stream grpc.ClientStreamingServer[pb.SubmitRequest, pb.SubmitResponse]) error {
	whole := newSubmission(s.scheduler.NativeOps())
	bytes := int64(0)
	defer func() { s.submitting.Add(-bytes) }()
	for first := true; ; first = false {
		part, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err // The submission is incomplete: none of it is kept.
		}
		if first {
			whole.begin(part.GetHeader())
		} else if part.GetHeader() != nil {
			return invalid("header", "it is set again: only the first chunk of a submission carries it")
		}
		more := chunkBytes(part)
		if err := s.room(bytes, more); err != nil {
			return err
		}
		bytes += more
		if err := whole.add(part); err != nil {
			return err
		}
		if hasTemplates(part) {
			more, err := s.addTemplates(stream.Context(), whole, part, bytes)
			bytes += more
			if err != nil {
				return err
			}
		}
	}
	if whole.result.Graph.Namespace == "" {
		whole.begin(nil) // Not even one chunk arrived.
	}
	answer, err := s.submit(stream.Context(), whole)
	if err != nil {
		return err
	}
	return stream.SendAndClose(answer)
}

func (s *schedulerService) SubmitBatch(ctx context.Context, r *pb.SubmitRequest) (*pb.SubmitResponse, error) {
	whole := newSubmission(s.scheduler.NativeOps())
	whole.begin(r.GetHeader())
	if err := whole.add(r); err != nil {
		return nil, err
	}
	if hasTemplates(r) {
		bytes, err := s.addTemplates(ctx, whole, r, 0)
		defer s.submitting.Add(-bytes)
		if err != nil {
			return nil, err
		}
	}
	return s.submit(ctx, whole)
}

func (s *schedulerService) submit(ctx context.Context, whole *submission) (*pb.SubmitResponse, error) {
	if answer := whole.early(); answer != nil {
		if !whole.templated.defined {
			return answer, nil
		}
		return answer, s.scheduler.Recorded(ctx)
	}
	submission, err := whole.end()
	if err != nil {
		return nil, err
	}
	arrived := time.Time{}
	if s.config.Traces != nil {
		arrived = time.Now()
	}
	accepted, err := s.scheduler.Submit(ctx, submission)
	if err == nil && len(accepted.MissingFunctions) > 0 && whole.bring(&submission, accepted.MissingFunctions) {
		accepted, err = s.scheduler.Submit(ctx, submission)
	}
	if err != nil {
		return nil, err
	}
	if s.config.Traces != nil && len(accepted.MissingFunctions) == 0 {
		header := func(name string) string { return strings.Join(metadata.ValueFromIncomingContext(ctx, name), ",") }
		s.config.Traces.Submitted(accepted.Graph, &submission.Graph, arrived, header("traceparent"), header("tracestate"))
	}
	return &pb.SubmitResponse{
		GraphId: uint64(accepted.Graph), TaskIds: convertAll(whole.listed(accepted.Tasks), number[uint64, ids.TaskID]),
		JoinedTasks: accepted.Joined, Revision: accepted.Revision, MissingFunctions: hashesTo(accepted.MissingFunctions),
		FailedTaskIds: convertAll(accepted.Failed, number[uint64, ids.TaskID]), TemplateHashes: whole.hashes(),
		InstanceTaskIds: whole.ranges(accepted.Tasks),
	}, nil
}

func hashesTo(hashes []ids.FunctionHash) [][]byte {
	var converted [][]byte
	for _, hash := range hashes {
		converted = append(converted, hash[:])
	}
	return converted
}

func taskSetFrom(s *pb.TaskSet) schedapi.TaskSet {
	return schedapi.TaskSet{Tasks: convertAll(s.GetIds(), number[ids.TaskID, uint64]), Keys: s.GetKeys(), Namespace: s.GetNamespace()}
}

func (s *schedulerService) HoldTasks(ctx context.Context, r *pb.HoldTasksRequest) (*pb.HoldTasksResponse, error) {
	tasks, err := s.scheduler.Hold(ctx, ids.ClientID(r.GetClientId()), taskSetFrom(r.GetTasks()))
	if err != nil {
		return nil, err
	}
	return &pb.HoldTasksResponse{TaskIds: convertAll(tasks, number[uint64, ids.TaskID])}, nil
}

func (s *schedulerService) ReleaseTasks(ctx context.Context, r *pb.ReleaseTasksRequest) (*pb.ReleaseTasksResponse, error) {
	return &pb.ReleaseTasksResponse{}, s.scheduler.Release(ctx, ids.ClientID(r.GetClientId()), taskSetFrom(r.GetTasks()))
}

func (s *schedulerService) CancelTasks(ctx context.Context, r *pb.CancelTasksRequest) (*pb.CancelTasksResponse, error) {
	cancelled, err := s.scheduler.Cancel(ctx, sched.TasksCancelled{
		Client: ids.ClientID(r.GetClientId()), Graphs: convertAll(r.GetGraphIds(), number[ids.GraphID, uint64]),
		Reason: r.GetReason(), Force: r.GetForce(),
	}, taskSetFrom(r.GetTasks()))
	if err != nil {
		return nil, err
	}
	return &pb.CancelTasksResponse{CancelledTasks: cancelled.Tasks, UnknownTaskIds: convertAll(cancelled.Unknown, number[uint64, ids.TaskID])}, nil
}

func (s *schedulerService) RetryTasks(ctx context.Context, r *pb.RetryTasksRequest) (*pb.RetryTasksResponse, error) {
	retried, err := s.scheduler.Retry(ctx, ids.ClientID(r.GetClientId()), taskSetFrom(r.GetTasks()),
		convertAll(r.GetGraphIds(), number[ids.GraphID, uint64]))
	if err != nil {
		return nil, err
	}
	return &pb.RetryTasksResponse{RetriedTasks: retried}, nil
}

func (s *schedulerService) ReleaseGraph(ctx context.Context, r *pb.ReleaseGraphRequest) (*pb.ReleaseGraphResponse, error) {
	return &pb.ReleaseGraphResponse{}, s.scheduler.ReleaseGraph(ctx, sched.GraphReleased{
		Graph: ids.GraphID(r.GetGraphId()), Cancel: r.GetCancel(),
	})
}

func (s *schedulerService) PublishDataset(ctx context.Context, r *pb.PublishDatasetRequest) (*pb.PublishDatasetResponse, error) {
	spec, err := datasetFrom(r)
	if err != nil {
		return nil, err
	}
	dataset, err := s.scheduler.Publish(ctx, spec)
	if err != nil {
		return nil, err
	}
	return &pb.PublishDatasetResponse{Dataset: datasetTo(dataset)}, nil
}

func (s *schedulerService) UnpublishDataset(ctx context.Context, r *pb.UnpublishDatasetRequest) (*pb.UnpublishDatasetResponse, error) {
	return &pb.UnpublishDatasetResponse{}, s.scheduler.Unpublish(ctx, namespaceOf(r.GetNamespace()), r.GetName())
}

func (s *schedulerService) Shutdown(ctx context.Context, r *pb.ShutdownRequest) (*pb.ShutdownResponse, error) {
	return &pb.ShutdownResponse{}, s.scheduler.Shutdown(ctx, r.GetReason())
}
