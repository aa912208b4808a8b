package server_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/millrace/millrace/gen/go/millrace/v1"
	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/server"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// reason returns the stable reason of an error, and its code.
func reason(tb testing.TB, err error) (string, codes.Code) {
	tb.Helper()
	s := status.Convert(err)
	for _, detail := range s.Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok {
			if info.GetDomain() != "millrace.dev" {
				tb.Errorf("domain %q", info.GetDomain())
			}
			return info.GetReason(), s.Code()
		}
	}
	tb.Fatalf("no ErrorInfo in %v", err)
	return "", s.Code()
}

func wantReason(tb testing.TB, err error, want string, words ...string) {
	tb.Helper()
	if err == nil {
		tb.Fatalf("no error, want %s", want)
	}
	if got, _ := reason(tb, err); got != want {
		tb.Fatalf("reason %s (%v), want %s", got, err, want)
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			tb.Errorf("%v: does not say %q", err, word)
		}
	}
}

func TestSubmittedTasksRunAndTheirClientHearsOfIt(t *testing.T) {
	c := start(t, server.Config{})
	ctx := timeout(t)
	c.join(c.conn, registration("w-0"), succeed)
	id := c.open(ctx)
	watch := c.watch(ctx, &pb.WatchRequest{ClientId: id})
	submitted, err := c.client.SubmitBatch(ctx, &pb.SubmitRequest{
		Header: &pb.SubmitHeader{ClientId: id, Name: "first"}, Tasks: noops("a", 1000),
	})
	if err != nil {
		t.Fatal(err)
	}
	for id, update := range c.final(watch, submitted.GetTaskIds()) {
		if update.GetState() != pb.TaskState_TASK_STATE_SUCCEEDED {
			t.Fatalf("task %d: %v", id, update)
		}
	}
	graph, err := c.client.GetGraph(ctx, &pb.GetGraphRequest{GraphId: submitted.GetGraphId()})
	if err != nil {
		t.Fatal(err)
	}
	if graph.GetGraph().GetState() != pb.GraphState_GRAPH_STATE_SUCCEEDED || graph.GetGraph().GetCounts().GetSucceeded() != 1000 {
		t.Errorf("graph after its end: %v", graph)
	}
	worker, err := c.client.GetWorker(ctx, &pb.GetWorkerRequest{Worker: workerNamed("w-0")})
	if err != nil || worker.GetWorker().GetFinishedTasks() != 1000 {
		t.Errorf("worker: %v, %v", worker, err)
	}
	clients, err := c.client.ListClients(ctx, &pb.ListClientsRequest{})
	if err != nil || len(clients.GetClients()) != 1 || clients.GetClients()[0].GetHeldTasks() != 1000 {
		t.Errorf("clients: %v, %v", clients, err)
	}
	if _, err := c.client.ReleaseTasks(ctx, &pb.ReleaseTasksRequest{ClientId: id, Tasks: &pb.TaskSet{Ids: submitted.GetTaskIds()}}); err != nil {
		t.Fatal(err)
	}
	cluster, err := c.client.GetClusterInfo(ctx, &pb.GetClusterInfoRequest{})
	if info := cluster.GetCluster(); err != nil || info.GetTasks().GetSucceeded() != 0 || info.GetActiveWorkers() != 1 || info.GetClients() != 1 {
		t.Errorf("cluster after the release: %v, %v", cluster, err)
	}
}

func TestDependentTasksGetTheirInputsAndArguments(t *testing.T) {
	c := start(t, server.Config{})
	ctx := timeout(t)
	assigned := make(chan *workerv1.Assignment, 2)
	c.join(c.conn, registration("w-0"), func(a *workerv1.Assignment) *workerv1.TaskReport {
		assigned <- a
		return succeed(a)
	})
	id := c.open(ctx)
	watch := c.watch(ctx, &pb.WatchRequest{ClientId: id})
	typed := &pb.Arguments{
		Positional: []*pb.Value{{Kind: &pb.Value_Input{Input: 0}}},
		Named:      map[string]*pb.Value{"b": {Kind: &pb.Value_IntValue{IntValue: 2}}, "a": {Kind: &pb.Value_IntValue{IntValue: 1}}},
	}
	submitted, err := c.client.SubmitBatch(ctx, &pb.SubmitRequest{
		Header: &pb.SubmitHeader{ClientId: id},
		Tasks: []*pb.TaskSpec{
			{Key: "x", What: &pb.TaskSpec_Op{Op: "bench.noop"}, Call: &pb.TaskSpec_PackedArguments{PackedArguments: []byte("passed on unread")}},
			{Key: "y", What: &pb.TaskSpec_Op{Op: "array.sum"}, Inputs: []string{"x"}, Call: &pb.TaskSpec_Arguments{Arguments: typed}, Hold: true},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	c.final(watch, submitted.GetTaskIds()[1:])
	if got := <-assigned; got.GetKey() != "x" || string(got.GetArguments()) != "passed on unread" || len(got.GetInputs()) != 0 {
		t.Errorf("first assignment: %v", got)
	}
	got := <-assigned
	arguments := &pb.Arguments{}
	if err := proto.Unmarshal(got.GetArguments(), arguments); err != nil || !proto.Equal(arguments, typed) {
		t.Errorf("arguments: %v, %v", arguments, err)
	}
	if got.GetKey() != "y" || len(got.GetInputs()) != 1 || got.GetInputs()[0].GetTaskId() != submitted.GetTaskIds()[0] {
		t.Errorf("second assignment: %v", got)
	}
}

func TestBadSubmissionsAreRefusedWholeAndSayWhy(t *testing.T) {
	c := start(t, server.Config{})
	ctx := timeout(t)
	c.join(c.conn, registration("w-0"), never)
	id := c.open(ctx)
	noop := func(key string, inputs ...string) *pb.TaskSpec {
		return &pb.TaskSpec{Key: key, What: &pb.TaskSpec_Op{Op: "bench.noop"}, Inputs: inputs, Hold: true}
	}
	submit := func(tasks ...*pb.TaskSpec) error {
		_, err := c.client.SubmitBatch(ctx, &pb.SubmitRequest{Header: &pb.SubmitHeader{ClientId: id}, Tasks: tasks})
		return err
	}
	if err := submit(noop("known")); err != nil {
		t.Fatal(err)
	}
	other := noop("known")
	other.Call = &pb.TaskSpec_PackedArguments{PackedArguments: []byte("other")}
	unknownOp := noop("o")
	unknownOp.What = &pb.TaskSpec_Op{Op: "array.matmull"}
	misplaced := noop("m")
	misplaced.What = &pb.TaskSpec_OpIndex{OpIndex: 3}
	nothing := noop("n")
	nothing.What = nil
	options := noop("q")
	options.OptionsIndex = 1
	reference := noop("r")
	reference.Call = &pb.TaskSpec_Arguments{Arguments: &pb.Arguments{Positional: []*pb.Value{{Kind: &pb.Value_ListValue{ListValue: &pb.ListValue{Values: []*pb.Value{{Kind: &pb.Value_Input{Input: 1}}}}}}}}}
	for _, test := range []struct {
		name   string
		err    error
		reason string
		words  []string
	}{
		{"cycle", submit(noop("a", "c"), noop("b", "a"), noop("c", "b")), "GRAPH_HAS_CYCLE", []string{"a", "b", "c"}},
		{"unknown input", submit(noop("a", "nowhere")), "UNKNOWN_INPUT", []string{"nowhere"}},
		{"another body", submit(other), "KEY_CONFLICT", []string{"known"}},
		{"duplicate key", submit(noop("a"), noop("a", "known")), "DUPLICATE_KEY", []string{"a"}},
		{"unknown op", submit(unknownOp), "UNKNOWN_OP", []string{"array.matmull", "array.matmul", `"o"`}},
		{"op index", submit(misplaced), "INVALID_FIELD", []string{"tasks[0].op_index", `"m"`}},
		{"options index", submit(options), "INVALID_FIELD", []string{"options_index"}},
		{"reference", submit(reference), "INVALID_FIELD", []string{"input 1", "0 inputs"}},
		{"neither op nor index", submit(nothing), "INVALID_FIELD", []string{"tasks[0].what"}},
		{"empty key", submit(&pb.TaskSpec{What: &pb.TaskSpec_Op{Op: "bench.noop"}}), "INVALID_FIELD", []string{"tasks[0].key"}},
		{"import path", submit(&pb.TaskSpec{Key: "i", What: &pb.TaskSpec_Op{Op: "module:"}}), "INVALID_FIELD", []string{"module:"}},
	} {
		t.Run(test.name, func(t *testing.T) { wantReason(t, test.err, test.reason, test.words...) })
	}
	_, err := c.client.SubmitBatch(ctx, &pb.SubmitRequest{Header: &pb.SubmitHeader{ClientId: 99}, Tasks: noops("z", 1)})
	wantReason(t, err, "UNKNOWN_CLIENT")
	tasks, err := c.client.ListTasks(ctx, &pb.ListTasksRequest{})
	if err != nil || len(tasks.GetTasks()) != 1 {
		t.Errorf("tasks after refused submissions: %v, %v", tasks, err)
	}
}

func TestHalfASubmissionLeavesNothingAndARepeatedOneIsAppliedOnce(t *testing.T) {
	c := start(t, server.Config{})
	ctx := timeout(t)
	half, cancel := context.WithCancel(ctx)
	stream, err := c.client.Submit(half)
	if err != nil {
		t.Fatal(err)
	}
	header := &pb.SubmitHeader{RequestId: "once", Name: "g"}
	if err := stream.Send(&pb.SubmitRequest{Header: header, Tasks: noops("a", 10)}); err != nil {
		t.Fatal(err)
	}
	cancel()
	// NB: CloseAndRecv might still complete the submission.
	if err := stream.RecvMsg(new(pb.SubmitResponse)); status.Code(err) != codes.Canceled {
		t.Fatalf("broken stream: %v", err)
	}
	submit := func() *pb.SubmitResponse {
		stream, err := c.client.Submit(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for i := range 3 {
			request := &pb.SubmitRequest{Tasks: noops(fmt.Sprintf("chunk%d", i), 10)}
			if i == 0 {
				request.Header = header
				request.Ops = []*pb.Op{{Kind: pb.OpKind_OP_KIND_NATIVE, Name: "bench.noop"}}
			}
			if err := stream.Send(request); err != nil {
				t.Fatal(err)
			}
		}
		response, err := stream.CloseAndRecv()
		if err != nil {
			t.Fatal(err)
		}
		return response
	}
	first, second := submit(), submit()
	if first.GetGraphId() == 0 || !proto.Equal(first, second) {
		t.Errorf("first %v, second %v", first, second)
	}
	cluster, err := c.client.GetClusterInfo(ctx, &pb.GetClusterInfoRequest{})
	if err != nil || cluster.GetCluster().GetTasks().GetReady() != 30 {
		t.Errorf("cluster: %v, %v", cluster, err)
	}
}

func TestFunctionsTravelOnce(t *testing.T) {
	c := start(t, server.Config{})
	ctx := timeout(t)
	w := c.joinSeen(c.conn, registration("w-0"), succeed, make(chan *workerv1.SessionResponse, 100))
	id := c.open(ctx)
	watch := c.watch(ctx, &pb.WatchRequest{ClientId: id})
	payload := []byte("a pickled function")
	hash := sha256.Sum256(payload)
	request := func(key string, functions ...*pb.Function) *pb.SubmitRequest {
		return &pb.SubmitRequest{
			Header: &pb.SubmitHeader{ClientId: id}, Functions: functions,
			Ops:   []*pb.Op{{Kind: pb.OpKind_OP_KIND_PYTHON_PICKLE, Name: "f", Function: hash[:]}},
			Tasks: []*pb.TaskSpec{{Key: key, What: &pb.TaskSpec_OpIndex{}, Hold: true}},
		}
	}
	response, err := c.client.SubmitBatch(ctx, request("a"))
	if err != nil || len(response.GetMissingFunctions()) != 1 || len(response.GetTaskIds()) != 0 {
		t.Fatalf("without its function: %v, %v", response, err)
	}
	_, err = c.client.SubmitBatch(ctx, request("a", &pb.Function{Hash: make([]byte, 32), Payload: payload}))
	wantReason(t, err, "INVALID_FIELD", "SHA-256")
	response, err = c.client.SubmitBatch(ctx, request("a", &pb.Function{Hash: hash[:], Payload: payload}))
	if err != nil || len(response.GetTaskIds()) != 1 {
		t.Fatalf("with its function: %v, %v", response, err)
	}
	c.final(watch, response.GetTaskIds())
	again, err := c.client.SubmitBatch(ctx, request("b"))
	if err != nil || len(again.GetTaskIds()) != 1 {
		t.Fatalf("once it is known: %v, %v", again, err)
	}
	c.final(watch, again.GetTaskIds())
	ops, functions, assignments := 0, 0, 0
	for assignments < 2 {
		message := <-w.seen
		ops, functions, assignments = ops+len(message.GetOps()), functions+len(message.GetFunctions()), assignments+len(message.GetAssignments())
		for _, f := range message.GetFunctions() {
			if string(f.GetPayload()) != string(payload) {
				t.Errorf("payload %q", f.GetPayload())
			}
		}
	}
	if ops != 1 || functions != 1 {
		t.Errorf("%d op definitions and %d functions in one session, want 1 each", ops, functions)
	}
	if err := w.stream.Send(&workerv1.SessionRequest{MissingFunctions: [][]byte{hash[:]}}); err != nil {
		t.Fatal(err)
	}
	for message := range w.seen {
		if len(message.GetFunctions()) == 1 {
			break
		}
	}
	// When no task refers to the function any more, the worker is ordered to forget it, and the
	// scheduler has forgotten it as well.
	release := func(tasks []uint64) {
		if _, err := c.client.ReleaseTasks(ctx, &pb.ReleaseTasksRequest{ClientId: id, Tasks: &pb.TaskSet{Ids: tasks}}); err != nil {
			t.Fatal(err)
		}
	}
	release(response.GetTaskIds())
	release(again.GetTaskIds())
	for message := range w.seen {
		if n := len(message.GetDroppedFunctions()); n > 0 {
			if n != 1 || string(message.GetDroppedFunctions()[0]) != string(hash[:]) {
				t.Errorf("dropped functions: %x", message.GetDroppedFunctions())
			}
			break
		}
	}
	last, err := c.client.SubmitBatch(ctx, request("c"))
	if err != nil || len(last.GetMissingFunctions()) != 1 {
		t.Fatalf("once it is forgotten: %v, %v", last, err)
	}
	if last, err = c.client.SubmitBatch(ctx, request("c", &pb.Function{Hash: hash[:], Payload: payload})); err != nil {
		t.Fatal(err)
	}
	for message := range w.seen {
		if len(message.GetFunctions()) == 1 {
			break
		}
	}
	// A worker that is disconnected when the last task is released gets the order when it is back.
	c.final(watch, last.GetTaskIds())
	w.leave()
	release(last.GetTaskIds())
	back := c.joinSeen(c.conn, w.mine, succeed, make(chan *workerv1.SessionResponse, 100))
	if message := <-back.seen; len(message.GetDroppedFunctions()) == 0 {
		t.Errorf("the first message after the worker is back: %v", message)
	}
}

func TestAWatchResumesWhereItBroke(t *testing.T) {
	c := start(t, server.Config{})
	ctx := timeout(t)
	c.join(c.conn, registration("w-0"), succeed)
	id := c.open(ctx)
	first, cancel := context.WithCancel(ctx)
	watch := c.watch(first, &pb.WatchRequest{ClientId: id})
	snapshot, err := watch.Recv()
	if err != nil || !snapshot.GetSnapshot() || len(snapshot.GetTasks()) != 0 {
		t.Fatalf("first message: %v, %v", snapshot, err)
	}
	submit := func(prefix string) []uint64 {
		response, err := c.client.SubmitBatch(ctx, &pb.SubmitRequest{Header: &pb.SubmitHeader{ClientId: id}, Tasks: noops(prefix, 10)})
		if err != nil {
			t.Fatal(err)
		}
		return response.GetTaskIds()
	}
	ended := func(message *pb.WatchResponse, into map[uint64]bool) {
		for _, update := range message.GetTasks() {
			if update.GetState() == pb.TaskState_TASK_STATE_SUCCEEDED {
				into[update.GetTaskId()] = true
			}
		}
	}
	submit("a")
	seen, revision := map[uint64]bool{}, uint64(0)
	for len(seen) < 10 {
		message, err := watch.Recv()
		if err != nil {
			t.Fatal(err)
		}
		revision = message.GetRevision()
		ended(message, seen)
	}
	cancel()
	later := submit("b")
	resumed := c.watch(ctx, &pb.WatchRequest{ClientId: id, AfterRevision: revision})
	fresh := map[uint64]bool{}
	for len(fresh) < 10 {
		message, err := resumed.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if message.GetSnapshot() || message.GetRevision() <= revision {
			t.Fatalf("not resumed after %d: %v", revision, message)
		}
		ended(message, fresh)
	}
	for _, id := range later {
		if !fresh[id] || seen[id] {
			t.Errorf("task %d: in the first stream %v, in the second %v", id, seen[id], fresh[id])
		}
	}
	ahead, err := c.watch(ctx, &pb.WatchRequest{ClientId: id, AfterRevision: 1 << 40}).Recv()
	if err != nil || !ahead.GetSnapshot() || len(ahead.GetTasks()) != 20 {
		t.Errorf("a revision of another life: %v, %v", ahead, err)
	}
}

func TestASlowReaderMissesNoLastState(t *testing.T) {
	c := start(t, server.Config{})
	ctx := timeout(t)
	id := c.open(ctx)
	slow := c.watch(ctx, &pb.WatchRequest{ClientId: id})
	const tasks = 30_000
	submitted, err := c.client.SubmitBatch(ctx, &pb.SubmitRequest{Header: &pb.SubmitHeader{ClientId: id}, Tasks: noops("a", tasks)})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		conn := dial(t, c.server.Address())
		defer conn.Close()
		c.join(conn, registration(fmt.Sprintf("w-%d", i)), func(a *workerv1.Assignment) *workerv1.TaskReport {
			report := succeed(a)
			if a.GetTaskId()%10 == 0 {
				report.Outcome, report.Error = workerv1.TaskOutcome_TASK_OUTCOME_FAILED, &pb.TaskError{Reason: "R", Message: "m"}
			}
			return report
		})
	}
	ended := c.watch(ctx, &pb.WatchRequest{GraphIds: []uint64{submitted.GetGraphId()}, UntilEnded: true})
	for err = nil; err == nil; _, err = ended.Recv() {
	}
	for id, update := range c.final(slow, submitted.GetTaskIds()) {
		want := pb.TaskState_TASK_STATE_SUCCEEDED
		if id%10 == 0 {
			want = pb.TaskState_TASK_STATE_FAILED
		}
		if update.GetState() != want {
			t.Fatalf("task %d: %v", id, update)
		}
	}
	// A stream that starts now gets a snapshot of all of them.
	snapshot, err := c.watch(ctx, &pb.WatchRequest{ClientId: id, Workers: true}).Recv()
	if err != nil || !snapshot.GetSnapshot() || len(snapshot.GetTasks()) != tasks || len(snapshot.GetWorkers()) != 2 {
		t.Errorf("snapshot of %d tasks and %d workers, %v", len(snapshot.GetTasks()), len(snapshot.GetWorkers()), err)
	}
}

func TestAGraphIsWatchedUntilItEnds(t *testing.T) {
	c := start(t, server.Config{})
	ctx := timeout(t)
	submitted, err := c.client.SubmitBatch(ctx, &pb.SubmitRequest{Header: &pb.SubmitHeader{Name: "detached"}, Tasks: noops("a", 100)})
	if err != nil {
		t.Fatal(err)
	}
	watch := c.watch(ctx, &pb.WatchRequest{GraphIds: []uint64{submitted.GetGraphId()}, UntilEnded: true, Workers: true})
	first, err := watch.Recv()
	if err != nil || !first.GetSnapshot() || len(first.GetGraphs()) != 1 || first.GetCatalogRevision() == 0 {
		t.Fatalf("first message: %v, %v", first, err)
	}
	c.join(c.conn, registration("w-0"), succeed)
	var last *pb.Graph
	workers := 0
	for {
		message, err := watch.Recv()
		if err != nil {
			break
		}
		workers += len(message.GetWorkers())
		for _, g := range message.GetGraphs() {
			last = g
		}
	}
	if last.GetState() != pb.GraphState_GRAPH_STATE_SUCCEEDED || last.GetCounts().GetSucceeded() != 100 || workers == 0 {
		t.Errorf("when the stream ended: %v, workers changed %d times", last, workers)
	}
	// A watch of an ended graph ends at once.
	again := c.watch(ctx, &pb.WatchRequest{GraphIds: []uint64{submitted.GetGraphId()}, UntilEnded: true, AfterRevision: first.GetRevision()})
	for err = nil; err == nil; _, err = again.Recv() {
	}
	if status.Code(err) == codes.DeadlineExceeded {
		t.Errorf("the watch of an ended graph does not end: %v", err)
	}
	if _, err := c.watch(ctx, &pb.WatchRequest{GraphIds: []uint64{4711}}).Recv(); err == nil {
		t.Error("an unknown graph can be watched")
	}
}

func TestResultsAreReadable(t *testing.T) {
	c := start(t, server.Config{})
	ctx := timeout(t)
	result, err := proto.Marshal(&pb.Value{Kind: &pb.Value_TensorValue{TensorValue: &pb.Tensor{
		Dtype: pb.DType_DTYPE_INT32, Shape: []int64{2, 2}, Location: &pb.Tensor_InlineData{InlineData: []byte{1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 255, 255, 255, 255}},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	submitted, err := c.client.SubmitBatch(ctx, &pb.SubmitRequest{Tasks: []*pb.TaskSpec{
		{Key: "good", What: &pb.TaskSpec_Op{Op: "bench.noop"}}, {Key: "bad", What: &pb.TaskSpec_Op{Op: "bench.noop"}}, {Key: "large", What: &pb.TaskSpec_Op{Op: "bench.noop"}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.client.GetResult(ctx, &pb.GetResultRequest{Task: &pb.TaskRef{Task: &pb.TaskRef_Key{Key: "good"}}})
	wantReason(t, err, "RESULT_NOT_READY", "good")
	_, err = c.client.GetResult(ctx, &pb.GetResultRequest{Task: &pb.TaskRef{Task: &pb.TaskRef_Key{Key: "nothing"}}})
	wantReason(t, err, "UNKNOWN_TASK", "nothing")
	explained, err := c.client.ExplainTask(ctx, &pb.ExplainTaskRequest{Task: &pb.TaskRef{Task: &pb.TaskRef_Key{Key: "good"}}})
	if err != nil || explained.GetStatus() != pb.TaskStatus_TASK_STATUS_NO_WORKERS {
		t.Errorf("explanation: %v, %v", explained, err)
	}
	waited := make(chan error, 1)
	go func() {
		response, err := c.client.GetResult(ctx, &pb.GetResultRequest{Task: &pb.TaskRef{Task: &pb.TaskRef_Key{Key: "good"}}, Wait: durationpb.New(patience)})
		if got := fmt.Sprint(response.GetJson().AsInterface()); err == nil && got != "[[1 2] [3 -1]]" {
			err = fmt.Errorf("result %s", got)
		}
		waited <- err
	}()
	c.join(c.conn, registration("w-0"), func(a *workerv1.Assignment) *workerv1.TaskReport {
		report := succeed(a)
		report.InlineResult = result
		switch a.GetKey() {
		case "bad":
			report.Outcome = workerv1.TaskOutcome_TASK_OUTCOME_FAILED
			report.InlineResult = nil
			report.Error = &pb.TaskError{Reason: "PYTHON_EXCEPTION", Message: "no such luck", Traceback: "line 1"}
		case "large":
			report.InlineResult, report.OutputBytes = nil, 1<<30
		}
		return report
	})
	if err := <-waited; err != nil {
		t.Errorf("waiting: %v", err)
	}
	_, err = c.client.GetResult(ctx, &pb.GetResultRequest{Task: &pb.TaskRef{Task: &pb.TaskRef_Key{Key: "bad"}}, Wait: durationpb.New(patience)})
	wantReason(t, err, "TASK_FAILED", "no such luck")
	_, err = c.client.GetResult(ctx, &pb.GetResultRequest{Task: &pb.TaskRef{Task: &pb.TaskRef_Key{Key: "large"}}, Wait: durationpb.New(patience)})
	wantReason(t, err, "RESULT_NOT_INLINE", "LocateObjects")
	task, err := c.client.GetTask(ctx, &pb.GetTaskRequest{Task: &pb.TaskRef{Task: &pb.TaskRef_Key{Key: "bad"}}, History: true})
	if err != nil || task.GetTask().GetError().GetTraceback() != "line 1" || len(task.GetTask().GetHistory()) == 0 {
		t.Errorf("failed task: %v, %v", task, err)
	}
	located, err := c.client.LocateObjects(ctx, &pb.LocateObjectsRequest{TaskIds: append(submitted.GetTaskIds(), 4711)})
	if err != nil || len(located.GetObjects()) != 4 || len(located.GetWorkers()) != 1 ||
		located.GetObjects()[2].GetBytes() != 1<<30 || located.GetObjects()[3].GetState() != 0 {
		t.Errorf("locations: %v, %v", located, err)
	}
}

func TestListsArePaged(t *testing.T) {
	c := start(t, server.Config{})
	ctx := timeout(t)
	c.join(c.conn, registration("w-0"), succeed)
	id := c.open(ctx)
	watch := c.watch(ctx, &pb.WatchRequest{ClientId: id})
	for g := range 5 {
		submitted, err := c.client.SubmitBatch(ctx, &pb.SubmitRequest{
			Header: &pb.SubmitHeader{ClientId: id}, Tasks: noops(fmt.Sprintf("g%d", g), 5),
		})
		if err != nil {
			t.Fatal(err)
		}
		c.final(watch, submitted.GetTaskIds())
		_, err = c.client.PublishDataset(ctx, &pb.PublishDatasetRequest{ClientId: id, Name: fmt.Sprintf("set%d", g), Keys: []string{fmt.Sprintf("g%d-0", g)}})
		if err != nil {
			t.Fatal(err)
		}
	}
	_, err := c.client.PublishDataset(ctx, &pb.PublishDatasetRequest{ClientId: id, Name: "set1", Keys: []string{"g1-0"}})
	wantReason(t, err, "DATASET_EXISTS", "set1")
	_, err = c.client.PublishDataset(ctx, &pb.PublishDatasetRequest{ClientId: id, Name: "set1", Keys: []string{"g1-1"}, Replace: true,
		Value: &pb.Value{Kind: &pb.Value_MapValue{MapValue: &pb.MapValue{Fields: map[string]*pb.Value{"m": {Kind: &pb.Value_Input{}}}}}}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.client.UnpublishDataset(ctx, &pb.UnpublishDatasetRequest{Name: "set0"}); err != nil {
		t.Fatal(err)
	}
	_, err = c.client.UnpublishDataset(ctx, &pb.UnpublishDatasetRequest{Name: "set0"})
	wantReason(t, err, "UNKNOWN_DATASET")
	dataset, err := c.client.GetDataset(ctx, &pb.GetDatasetRequest{Name: "set1"})
	if err != nil || fmt.Sprint(dataset.GetDataset().GetKeys()) != "[g1-1]" || dataset.GetDataset().GetValue().GetMapValue().GetFields()["m"].GetKind() == nil {
		t.Errorf("replaced dataset: %v, %v", dataset, err)
	}
	var graphs, tasks, datasets []string
	for token := ""; ; {
		page, err := c.client.ListGraphs(ctx, &pb.ListGraphsRequest{PageSize: 2, PageToken: token, States: []pb.GraphState{pb.GraphState_GRAPH_STATE_SUCCEEDED}})
		if err != nil {
			t.Fatal(err)
		}
		for _, g := range page.GetGraphs() {
			graphs = append(graphs, fmt.Sprint(g.GetGraphId()))
		}
		if token = page.GetNextPageToken(); token == "" {
			break
		}
	}
	for token := ""; ; {
		page, err := c.client.ListTasks(ctx, &pb.ListTasksRequest{PageSize: 2, PageToken: token, KeyPrefix: "g1", Worker: workerNamed("w-0"),
			States: []pb.TaskState{pb.TaskState_TASK_STATE_SUCCEEDED, pb.TaskState_TASK_STATE_FAILED}})
		if err != nil {
			t.Fatal(err)
		}
		for _, task := range page.GetTasks() {
			tasks = append(tasks, task.GetKey())
		}
		if token = page.GetNextPageToken(); token == "" {
			break
		}
	}
	for token := ""; ; {
		page, err := c.client.ListDatasets(ctx, &pb.ListDatasetsRequest{PageSize: 3, PageToken: token})
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range page.GetDatasets() {
			datasets = append(datasets, d.GetName())
		}
		if token = page.GetNextPageToken(); token == "" {
			break
		}
	}
	if got := fmt.Sprint(graphs, tasks, datasets); got != "[1 2 3 4 5] [g1-0 g1-1 g1-2 g1-3 g1-4] [set1 set2 set3 set4]" {
		t.Errorf("pages: %s", got)
	}
	_, err = c.client.ListGraphs(ctx, &pb.ListGraphsRequest{PageToken: "!"})
	wantReason(t, err, "INVALID_FIELD", "page_token")
	_, err = c.client.ListGraphs(ctx, &pb.ListGraphsRequest{PageSize: 5000})
	wantReason(t, err, "INVALID_FIELD", "page_size")
}

func TestCancelAndRetry(t *testing.T) {
	c := start(t, server.Config{})
	ctx := timeout(t)
	w := c.joinSeen(c.conn, registration("w-0"), never, make(chan *workerv1.SessionResponse, 100))
	id := c.open(ctx)
	watch := c.watch(ctx, &pb.WatchRequest{ClientId: id})
	submitted, err := c.client.SubmitBatch(ctx, &pb.SubmitRequest{Header: &pb.SubmitHeader{ClientId: id}, Tasks: noops("a", 2)})
	if err != nil {
		t.Fatal(err)
	}
	for len((<-w.seen).GetAssignments()) == 0 {
	}
	_, err = c.client.CancelTasks(ctx, &pb.CancelTasksRequest{ClientId: id, Tasks: &pb.TaskSet{Keys: []string{"nothing"}}})
	wantReason(t, err, "UNKNOWN_TASK", "nothing")
	cancelled, err := c.client.CancelTasks(ctx, &pb.CancelTasksRequest{ClientId: id, Reason: "enough", Tasks: &pb.TaskSet{Ids: submitted.GetTaskIds()[1:], Keys: []string{"a-0"}}})
	if err != nil || cancelled.GetCancelledTasks() != 2 {
		t.Fatalf("cancelled: %v, %v", cancelled, err)
	}
	for _, update := range c.final(watch, submitted.GetTaskIds()) {
		if update.GetState() != pb.TaskState_TASK_STATE_CANCELLED || !strings.Contains(update.GetError().GetMessage(), "enough") {
			t.Errorf("update: %v", update)
		}
	}
	for len((<-w.seen).GetCancellations()) == 0 {
	}
	retried, err := c.client.RetryTasks(ctx, &pb.RetryTasksRequest{ClientId: id, Tasks: &pb.TaskSet{Ids: submitted.GetTaskIds()}})
	if err != nil || retried.GetRetriedTasks() != 2 {
		t.Errorf("retried: %v, %v", retried, err)
	}
	_, err = c.client.ReleaseGraph(ctx, &pb.ReleaseGraphRequest{GraphId: submitted.GetGraphId()})
	wantReason(t, err, "GRAPH_RUNNING")
}

func TestTokensAndRoles(t *testing.T) {
	c := start(t, server.Config{Tokens: map[string]server.Role{
		"op": server.RoleOperator, "cl": server.RoleClient, "wo": server.RoleWorker, "ro": server.RoleReader,
	}})
	as := func(token string) context.Context {
		return metadata.AppendToOutgoingContext(timeout(t), "authorization", "Bearer "+token)
	}
	open := func(ctx context.Context) error {
		_, err := c.client.OpenClient(ctx, &pb.OpenClientRequest{})
		return err
	}
	list := func(ctx context.Context) error {
		_, err := c.client.ListGraphs(ctx, &pb.ListGraphsRequest{})
		return err
	}
	death := func(ctx context.Context) error {
		_, err := c.workers.ReportWorkerDeath(ctx, &workerv1.ReportWorkerDeathRequest{Name: "w"})
		return err
	}
	session := func(ctx context.Context) error {
		stream, err := c.workers.Session(ctx)
		if err != nil {
			return err
		}
		_ = stream.CloseSend()
		_, err = stream.Recv()
		return err
	}
	for _, test := range []struct {
		name, token string
		call        func(context.Context) error
		want        codes.Code
	}{
		{"client opens", "cl", open, codes.OK}, {"operator opens", "op", open, codes.OK},
		{"reader opens", "ro", open, codes.PermissionDenied}, {"worker opens", "wo", open, codes.PermissionDenied},
		{"reader lists", "ro", list, codes.OK}, {"worker lists", "wo", list, codes.PermissionDenied},
		{"wrong token", "xx", list, codes.Unauthenticated}, {"worker reports", "wo", death, codes.OK},
		{"client reports", "cl", death, codes.PermissionDenied}, {"client session", "cl", session, codes.PermissionDenied},
	} {
		t.Run(test.name, func(t *testing.T) {
			err := test.call(as(test.token))
			if status.Code(err) != test.want {
				t.Fatalf("%v, want %v", err, test.want)
			}
			if err != nil {
				reason(t, err)
			}
		})
	}
	wantReason(t, list(timeout(t)), "UNAUTHENTICATED", "MILLRACE_TOKEN")
	_, err := c.client.Shutdown(as("cl"), &pb.ShutdownRequest{})
	wantReason(t, err, "PERMISSION_DENIED", "client")
	health, err := healthpb.NewHealthClient(c.conn).Check(timeout(t), &healthpb.HealthCheckRequest{Service: "millrace.v1.SchedulerService"})
	if err != nil || health.GetStatus() != healthpb.HealthCheckResponse_SERVING {
		t.Errorf("health without a token: %v, %v", health, err)
	}
}

func TestOthersNeedATokenToReachTheScheduler(t *testing.T) {
	if _, err := server.New(server.Config{Address: "0.0.0.0:0"}); err == nil || !strings.Contains(err.Error(), "token") {
		t.Errorf("listening for everybody without a token: %v", err)
	}
}

func TestReflectionListsTheServices(t *testing.T) {
	c := start(t, server.Config{})
	ctx := timeout(t)
	stream, err := reflectionpb.NewServerReflectionClient(c.conn).ServerReflectionInfo(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}}); err != nil {
		t.Fatal(err)
	}
	response, err := stream.Recv()
	if err != nil || !strings.Contains(response.String(), "millrace.v1.SchedulerService") {
		t.Errorf("v1: %v, %v", response, err)
	}
	// The older service has the same messages on the wire.
	old, err := c.conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")
	if err != nil {
		t.Fatal(err)
	}
	if err := old.SendMsg(&reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}}); err != nil {
		t.Fatal(err)
	}
	answer := &reflectionpb.ServerReflectionResponse{}
	if err := old.RecvMsg(answer); err != nil || !strings.Contains(answer.String(), "millrace.worker.v1.WorkerService") {
		t.Errorf("v1alpha: %v, %v", answer, err)
	}
}

func TestNewerClientsAreRefused(t *testing.T) {
	c := start(t, server.Config{})
	for version, refused := range map[string]bool{"": false, "v1.0": false, "v1.1": true, "v2.0": true} {
		_, err := c.client.OpenClient(timeout(t), &pb.OpenClientRequest{ApiVersion: version})
		if refused {
			wantReason(t, err, "VERSION_TOO_NEW", version)
		} else if err != nil {
			t.Errorf("%q: %v", version, err)
		}
	}
}

func TestShutdownTellsWorkersAndWatchersAndEndsRun(t *testing.T) {
	c := start(t, server.Config{})
	ctx := timeout(t)
	w := c.join(c.conn, registration("w-0"), never)
	id := c.open(ctx)
	watch := c.watch(ctx, &pb.WatchRequest{ClientId: id, Graphs: true})
	if _, err := watch.Recv(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.client.Shutdown(ctx, &pb.ShutdownRequest{Reason: "the test is over"}); err != nil {
		t.Fatal(err)
	}
	if message, err := watch.Recv(); err != nil || !message.GetDraining() {
		t.Errorf("watch: %v, %v", message, err)
	}
	<-w.done
	if !strings.Contains(w.last.GetStopReason(), "the test is over") {
		t.Errorf("worker's last message: %v", w.last)
	}
	err := <-c.stopped
	if err != nil {
		t.Errorf("Run: %v", err)
	}
	c.stopped <- nil
}
