package server_test

import (
	"crypto/sha256"
	"fmt"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/gen/go/millrace/v1"
	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/server"
)

// A task whose small inputs together exceed the size of a message runs: inputs that are not sent
// with the task are fetched.
func TestInputsBeyondAMessageAreFetchedInPlaceOfSentAlong(t *testing.T) {
	c := start(t, server.Config{})
	ctx := timeout(t)
	result, err := proto.Marshal(&pb.Value{Kind: &pb.Value_BytesValue{BytesValue: make([]byte, 60_000)}})
	if err != nil {
		t.Fatal(err)
	}
	sums := make(chan *workerv1.Assignment, 1)
	answer := func(a *workerv1.Assignment) *workerv1.TaskReport {
		report := succeed(a)
		if a.GetKey() == "sum" {
			sums <- proto.CloneOf(a)
			return report
		}
		report.InlineResult, report.OutputBytes = result, uint64(len(result))
		return report
	}
	var workers []*zero
	for i := range 8 {
		workers = append(workers, c.join(c.conn, registration(fmt.Sprintf("w-%d", i)), answer))
	}
	id := c.open(ctx)
	watch := c.watch(ctx, &pb.WatchRequest{ClientId: id})
	tasks := noops("in", 3000)
	sum := &pb.TaskSpec{Key: "sum", Op: "array.sum", Hold: true}
	for _, task := range tasks {
		sum.Inputs = append(sum.Inputs, task.GetKey())
	}
	submitted, err := c.client.SubmitBatch(ctx, &pb.SubmitRequest{Header: &pb.SubmitHeader{ClientId: id}, Tasks: append(tasks, sum)})
	if err != nil {
		t.Fatal(err)
	}
	ended := c.final(watch, submitted.GetTaskIds())
	if update := ended[submitted.GetTaskIds()[3000]]; update.GetState() != pb.TaskState_TASK_STATE_SUCCEEDED {
		t.Errorf("sum: %v", update)
	}
	inline, fetched := 0, 0
	for _, input := range (<-sums).GetInputs() {
		if len(input.GetInlineResult()) > 0 {
			inline++
		} else if len(input.GetHolders()) > 0 {
			fetched++
		}
	}
	if inline == 0 || fetched == 0 || inline*60_000 > 8<<20 {
		t.Errorf("%d inputs came along, %d are to be fetched", inline, fetched)
	}
	for i, w := range workers {
		select {
		case <-w.done:
			t.Errorf("the session of worker %d broke", i)
		default:
		}
	}
}

// A task that no assignment message could carry is refused at submission, and the error names it.
func TestArgumentsBeyondAMessageAreRefused(t *testing.T) {
	c := start(t, server.Config{})
	ctx := timeout(t)
	c.join(c.conn, registration("w-0"), succeed)
	id := c.open(ctx)
	stream, err := c.client.Submit(ctx)
	if err != nil {
		t.Fatal(err)
	}
	task := &pb.TaskSpec{Key: "trap", Op: "bench.noop", Hold: true, PackedArguments: make([]byte, 64<<20-100)}
	if err := stream.Send(&pb.SubmitRequest{Header: &pb.SubmitHeader{ClientId: id}, Tasks: []*pb.TaskSpec{task}}); err != nil {
		t.Fatal(err)
	}
	_, err = stream.CloseAndRecv()
	wantReason(t, err, "INVALID_FIELD", "tasks[0].packed_arguments", `"trap"`, "60 MiB")
	watch := c.watch(ctx, &pb.WatchRequest{ClientId: id})
	task.PackedArguments = make([]byte, 60<<20-1<<10)
	submitted, err := c.client.SubmitBatch(ctx, &pb.SubmitRequest{Header: &pb.SubmitHeader{ClientId: id}, Tasks: []*pb.TaskSpec{task}})
	if err != nil {
		t.Fatal(err)
	}
	if update := c.final(watch, submitted.GetTaskIds())[submitted.GetTaskIds()[0]]; update.GetState() != pb.TaskState_TASK_STATE_SUCCEEDED {
		t.Errorf("largest arguments: %v", update)
	}
}

// Without a token the server reads nothing of a request: the answer comes while the client is still
// sending. The 40 times 60 MiB that arrive nevertheless are not kept in memory.
func TestWithoutATokenARequestIsNotRead(t *testing.T) {
	c := start(t, server.Config{Tokens: map[string]server.Role{"secret": server.RoleOperator}})
	ctx := timeout(t)
	both := &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}
	for range 40 {
		stream, err := c.conn.NewStream(ctx, both, pb.SchedulerService_SubmitBatch_FullMethodName)
		if err != nil {
			t.Fatal(err)
		}
		err = stream.RecvMsg(&pb.SubmitResponse{})
		wantReason(t, err, "UNAUTHENTICATED", "MILLRACE_TOKEN")
	}
	large := &pb.SubmitRequest{Functions: []*pb.Function{{Hash: make([]byte, 32), Payload: make([]byte, 60<<20)}}}
	_, err := c.client.SubmitBatch(ctx, large)
	wantReason(t, err, "UNAUTHENTICATED")
	if _, err := c.client.SubmitBatch(metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer secret"),
		&pb.SubmitRequest{Tasks: noops("a", 1)}); err != nil {
		t.Error(err)
	}
}

// An endless submission is refused before it fills the memory.
func TestASubmissionHasALimit(t *testing.T) {
	c := start(t, server.Config{SubmissionBytes: 64 << 20})
	ctx := timeout(t)
	stream, err := c.client.Submit(ctx)
	if err != nil {
		t.Fatal(err)
	}
	// The stream repeats one chunk of a megabyte, which counts each time.
	chunk := &pb.SubmitRequest{Options: []*pb.TaskOptions{{}}}
	for range 8 {
		chunk.Functions = append(chunk.Functions, &pb.Function{Hash: payloadHash(), Payload: payload})
	}
	sent := 0
	for ; sent < 1000; sent++ {
		if err := stream.Send(chunk); err != nil {
			break
		}
	}
	_, err = stream.CloseAndRecv()
	wantReason(t, err, "INVALID_FIELD", "64 MiB")
	if sent == 1000 {
		t.Error("all of it was taken")
	}
	if _, err := c.client.SubmitBatch(ctx, &pb.SubmitRequest{Tasks: noops("a", 1)}); err != nil {
		t.Error(err)
	}
}

var payload = make([]byte, 1<<20)

func payloadHash() []byte {
	hash := sha256.Sum256(payload)
	return hash[:]
}
