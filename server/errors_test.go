package server_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/gen/go/millrace/v1"
	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/server"
)

// An error reaches the client with its reason, however long the names in the request are.
func TestLongErrorsReachTheClient(t *testing.T) {
	c := start(t, server.Config{})
	ctx := timeout(t)
	c.join(c.conn, registration("w-0"), func(a *workerv1.Assignment) *workerv1.TaskReport {
		return &workerv1.TaskReport{TaskId: a.TaskId, Attempt: a.Attempt, Outcome: workerv1.TaskOutcome_TASK_OUTCOME_FAILED,
			Error: &pb.TaskError{Reason: "PYTHON_EXCEPTION", Message: strings.Repeat("😀", 100_000)}}
	})
	id := c.open(ctx)
	submit := func(tasks []*pb.TaskSpec) error {
		stream, err := c.client.Submit(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.Send(&pb.SubmitRequest{Header: &pb.SubmitHeader{ClientId: id}, Tasks: tasks}); err != nil {
			t.Fatal(err)
		}
		_, err = stream.CloseAndRecv()
		return err
	}
	emoji := func(i int) string { return strings.Repeat("😀", 1000) + fmt.Sprint(i) }
	ring := func(n int, key func(int) string) []*pb.TaskSpec {
		tasks := make([]*pb.TaskSpec, n)
		for i := range tasks {
			tasks[i] = &pb.TaskSpec{Key: key(i), Op: "bench.noop", Inputs: []string{key((i + 1) % n)}}
		}
		return tasks
	}
	noop := func(key string, inputs ...string) *pb.TaskSpec {
		return &pb.TaskSpec{Key: key, Op: "bench.noop", Inputs: inputs, Hold: true}
	}
	failing, err := c.client.SubmitBatch(ctx, &pb.SubmitRequest{Header: &pb.SubmitHeader{ClientId: id}, Tasks: []*pb.TaskSpec{noop(emoji(7))}})
	if err != nil {
		t.Fatal(err)
	}
	other := noop(emoji(7))
	other.PackedArguments = []byte("other")
	_, namespace := c.client.CancelTasks(ctx, &pb.CancelTasksRequest{Tasks: &pb.TaskSet{Namespace: strings.Repeat("n", 1<<20), Keys: []string{"k"}}})
	_, worker := c.client.GetWorker(ctx, &pb.GetWorkerRequest{Worker: workerNamed(strings.Repeat("w", 128))})
	_, key := c.client.GetTask(ctx, &pb.GetTaskRequest{Task: &pb.TaskRef{Task: &pb.TaskRef_Key{Key: emoji(1)}}})
	unknownOp := noop("o")
	unknownOp.Op = strings.Repeat("\n", 512)
	c.final(c.watch(ctx, &pb.WatchRequest{ClientId: id}), failing.GetTaskIds())
	_, failed := c.client.GetResult(ctx, &pb.GetResultRequest{Task: &pb.TaskRef{Task: &pb.TaskRef_Key{Key: emoji(7)}, Namespace: "default"}})
	for _, test := range []struct {
		name   string
		err    error
		reason string
		word   string
	}{
		{"cycle of 100,000", submit(ring(100_000, func(i int) string { return fmt.Sprintf("%0500d", i)[400:] })), "GRAPH_HAS_CYCLE", "circle"},
		{"cycle of emoji", submit(ring(100, func(i int) string { return emoji(1000 + i) })), "GRAPH_HAS_CYCLE", "circle"},
		{"duplicate of emoji", submit([]*pb.TaskSpec{noop(emoji(1)), noop(emoji(1), emoji(7))}), "DUPLICATE_KEY", ""},
		{"another body of emoji", submit([]*pb.TaskSpec{other}), "KEY_CONFLICT", "another key"},
		{"unknown input of emoji", submit([]*pb.TaskSpec{noop("a", emoji(1))}), "UNKNOWN_INPUT", ""},
		{"unknown op of newlines", submit([]*pb.TaskSpec{unknownOp}), "UNKNOWN_OP", "GetClusterInfo"},
		{"namespace of 1 MB", namespace, "INVALID_FIELD", "namespace"},
		{"worker", worker, "UNKNOWN_WORKER", "ListWorkers"},
		{"key of emoji", key, "UNKNOWN_TASK", "ListTasks"},
		{"failure of 400 KB", failed, "TASK_FAILED", "task"},
	} {
		t.Run(test.name, func(t *testing.T) {
			wantReason(t, test.err, test.reason, test.word)
			// Some clients accept 8 KiB of trailers: the message, with % escapes for non-ASCII
			// bytes, and the whole status in base64.
			whole := status.Convert(test.err).Proto()
			n := proto.Size(whole) * 4 / 3
			for _, b := range []byte(whole.GetMessage()) {
				if n++; b < ' ' || b > '~' || b == '%' {
					n += 2
				}
			}
			if n > 8<<10 {
				t.Errorf("a status takes %d bytes of trailers", n)
			}
		})
	}
}

// Errors that do not come from a method have a reason, too: of tokens, and of methods that the
// server does not have.
func TestErrorsOfNoMethodHaveReasons(t *testing.T) {
	c := start(t, server.Config{Tokens: map[string]server.Role{"good": server.RoleClient}})
	ctx := timeout(t)
	with := func(token string) context.Context {
		return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
	}
	call := func(ctx context.Context, method string) error {
		return c.conn.Invoke(ctx, method, new(pb.GetClusterInfoRequest), new(pb.GetClusterInfoResponse))
	}
	wantReason(t, call(ctx, pb.SchedulerService_GetClusterInfo_FullMethodName), "UNAUTHENTICATED", "MILLRACE_TOKEN")
	wantReason(t, call(with("bad"), pb.SchedulerService_GetClusterInfo_FullMethodName), "UNAUTHENTICATED", "another cluster")
	wantReason(t, call(with("good"), pb.SchedulerService_Shutdown_FullMethodName), "PERMISSION_DENIED", "role")
	wantReason(t, call(with("good"), "/millrace.v1.SchedulerService/Nothing"), "UNIMPLEMENTED", "millrace protos")
	wantReason(t, call(with("good"), "/millrace.v2.SchedulerService/GetClusterInfo"), "UNIMPLEMENTED", "v2")
}
