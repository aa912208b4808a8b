package server_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/millrace/millrace/gen/go/millrace/v1"
	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/internal/leaktest"
	"github.com/millrace/millrace/server"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(leaktest.Patient{M: m}) }

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
			{Key: "x", Op: "bench.noop", PackedArguments: []byte("passed on unread")},
			{Key: "y", Op: "array.sum", Inputs: []string{"x"}, Arguments: typed, Hold: true},
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
		return &pb.TaskSpec{Key: key, Op: "bench.noop", Inputs: inputs, Hold: true}
	}
	submit := func(tasks ...*pb.TaskSpec) error {
		_, err := c.client.SubmitBatch(ctx, &pb.SubmitRequest{Header: &pb.SubmitHeader{ClientId: id}, Tasks: tasks})
		return err
	}
	if err := submit(noop("known")); err != nil {
		t.Fatal(err)
	}
	other := noop("known")
	other.PackedArguments = []byte("other")
	unknownOp := noop("o")
	unknownOp.Op = "array.matmull"
	misplaced := noop("m")
	misplaced.Op, misplaced.OpIndex = "", proto.Uint32(3)
	nothing := noop("n")
	nothing.Op = ""
	both := noop("b")
	both.OpIndex = new(uint32)
	options := noop("q")
	options.OptionsIndex = 1
	reference := noop("r")
	reference.Arguments = &pb.Arguments{Positional: []*pb.Value{{Kind: &pb.Value_ListValue{ListValue: &pb.ListValue{Values: []*pb.Value{{Kind: &pb.Value_Input{Input: 1}}}}}}}}
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
		{"neither op nor index", submit(nothing), "INVALID_FIELD", []string{"tasks[0]", "op, op_index"}},
		{"both op and index", submit(both), "INVALID_FIELD", []string{"tasks[0]", "op, op_index"}},
		{"empty key", submit(&pb.TaskSpec{Op: "bench.noop"}), "INVALID_FIELD", []string{"tasks[0].key"}},
		{"import path", submit(&pb.TaskSpec{Key: "i", Op: "module:"}), "INVALID_FIELD", []string{"module:"}},
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
			Tasks: []*pb.TaskSpec{{Key: key, OpIndex: new(uint32), Hold: true}},
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
	// A worker that is disconnected when the last task is released is told when it is back with the
	// function.
	c.final(watch, last.GetTaskIds())
	w.leave()
	release(last.GetTaskIds())
	w.mine.Functions = [][]byte{hash[:]}
	back := c.joinSeen(c.conn, w.mine, succeed, make(chan *workerv1.SessionResponse, 100))
	for message := back.first; len(message.GetDroppedFunctions()) == 0; {
		select {
		case message = <-back.seen:
		case <-ctx.Done():
			t.Fatal("the worker that is back is not told")
		}
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
		{Key: "good", Op: "bench.noop"}, {Key: "bad", Op: "bench.noop"}, {Key: "large", Op: "bench.noop"},
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
		response, err := c.client.GetResult(ctx, &pb.GetResultRequest{Task: &pb.TaskRef{Task: &pb.TaskRef_Key{Key: "good"}}, Wait: durationpb.New(testTimeout)})
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
	_, err = c.client.GetResult(ctx, &pb.GetResultRequest{Task: &pb.TaskRef{Task: &pb.TaskRef_Key{Key: "bad"}}, Wait: durationpb.New(testTimeout)})
	wantReason(t, err, "TASK_FAILED", "no such luck")
	_, err = c.client.GetResult(ctx, &pb.GetResultRequest{Task: &pb.TaskRef{Task: &pb.TaskRef_Key{Key: "large"}}, Wait: durationpb.New(testTimeout)})
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
