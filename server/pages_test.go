package server_test

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/gen/go/millrace/v1"
	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/server"
)

// largestAnswer is a size that no answer in these tests may exceed.
const largestAnswer = 6 << 20

func small(t *testing.T, answer proto.Message) {
	t.Helper()
	if n := proto.Size(answer); n > largestAnswer {
		t.Errorf("an answer of %d bytes: %T", n, answer)
	}
}

func TestTasksWithManyLongInputsAreListed(t *testing.T) {
	c := start(t, server.Config{})
	ctx := timeout(t)
	id := c.open(ctx)
	inputs, tasks := 20_000, 12
	if testing.Short() {
		inputs, tasks = 10_000, 3
	}
	submit := func(specs []*pb.TaskSpec) []uint64 {
		submitted, err := c.client.SubmitBatch(ctx, &pb.SubmitRequest{Header: &pb.SubmitHeader{ClientId: id}, Tasks: specs})
		if err != nil {
			t.Fatal(err)
		}
		return submitted.GetTaskIds()
	}
	names := make([]string, inputs)
	specs := make([]*pb.TaskSpec, inputs)
	for i := range names {
		names[i] = fmt.Sprintf("%01024d", i)
		specs[i] = &pb.TaskSpec{Key: names[i], Op: "bench.noop"}
	}
	submit(specs)
	var wide []uint64
	for i := range tasks {
		wide = append(wide, submit([]*pb.TaskSpec{{Key: fmt.Sprintf("wide-%d", i), Op: "bench.noop", Inputs: names, Hold: true}})...)
	}
	found, token := 0, ""
	for {
		page, err := c.client.ListTasks(ctx, &pb.ListTasksRequest{PageSize: 1000, PageToken: token})
		if err != nil {
			t.Fatal(err)
		}
		small(t, page)
		for _, task := range page.GetTasks() {
			if strings.HasPrefix(task.GetKey(), "wide") {
				found++
				if int(task.GetInputCount()) != inputs || len(task.GetInputs()) == 0 {
					t.Errorf("%s: %d of %d inputs", task.GetKey(), len(task.GetInputs()), task.GetInputCount())
				}
			}
		}
		if token = page.GetNextPageToken(); token == "" {
			break
		}
	}
	if found != tasks {
		t.Errorf("%d of %d tasks were listed", found, tasks)
	}
	task, err := c.client.GetTask(ctx, &pb.GetTaskRequest{Task: &pb.TaskRef{Task: &pb.TaskRef_Id{Id: wide[0]}}, History: true})
	if err != nil || int(task.GetTask().GetInputCount()) != inputs || int(task.GetTask().GetMissingInputs()) != inputs {
		t.Fatalf("%d inputs, %d of them missing, %v", task.GetTask().GetInputCount(), task.GetTask().GetMissingInputs(), err)
	}
	small(t, task)
	explained, err := c.client.ExplainTask(ctx, &pb.ExplainTaskRequest{Task: &pb.TaskRef{Task: &pb.TaskRef_Id{Id: wide[0]}}})
	if err != nil || len(explained.GetMissing()) == 0 {
		t.Fatalf("%v, %v", explained, err)
	}
	small(t, explained)
}

func TestListsAndWatchesOfDatasetsLeaveKeysAndValuesOut(t *testing.T) {
	c := start(t, server.Config{})
	ctx := timeout(t)
	id := c.open(ctx)
	specs := noops("k", 3000)
	for _, spec := range specs {
		spec.Key += strings.Repeat("x", 1000)
	}
	if _, err := c.client.SubmitBatch(ctx, &pb.SubmitRequest{Header: &pb.SubmitHeader{ClientId: id}, Tasks: specs}); err != nil {
		t.Fatal(err)
	}
	keys := make([]string, len(specs))
	for i, spec := range specs {
		keys[i] = spec.GetKey()
	}
	datasets := 100
	if testing.Short() {
		datasets = 20
	}
	value := &pb.Value{Kind: &pb.Value_BytesValue{BytesValue: make([]byte, 1<<20-4)}}
	counted := func(d *pb.Dataset) {
		t.Helper()
		if d.GetKeyCount() != 3000 || d.GetValueBytes() != 1<<20 || len(d.GetKeys()) != 0 || d.GetValue() != nil {
			t.Errorf("%s: counts %d keys, %d bytes; has %d keys", d.GetName(), d.GetKeyCount(), d.GetValueBytes(), len(d.GetKeys()))
		}
	}
	for i := range datasets {
		published, err := c.client.PublishDataset(ctx, &pb.PublishDatasetRequest{ClientId: id, Name: fmt.Sprintf("d-%03d", i), Keys: keys, Value: value})
		if err != nil {
			t.Fatal(err)
		}
		counted(published.GetDataset())
	}
	found, token := 0, ""
	for {
		page, err := c.client.ListDatasets(ctx, &pb.ListDatasetsRequest{PageSize: 1000, PageToken: token})
		if err != nil {
			t.Fatal(err)
		}
		small(t, page)
		for _, d := range page.GetDatasets() {
			found++
			counted(d)
		}
		if token = page.GetNextPageToken(); token == "" {
			break
		}
	}
	if found != datasets {
		t.Errorf("%d of %d datasets were listed", found, datasets)
	}
	watch := c.watch(ctx, &pb.WatchRequest{Datasets: true})
	seen := 0
	for more := true; more; {
		message, err := watch.Recv()
		if err != nil || !message.GetSnapshot() {
			t.Fatalf("%v, %v", message.GetSnapshot(), err)
		}
		for _, d := range message.GetDatasets() {
			counted(d)
		}
		seen, more = seen+len(message.GetDatasets()), message.GetMore()
	}
	if seen != datasets {
		t.Errorf("%d of %d datasets were in the snapshot", seen, datasets)
	}
	whole, err := c.client.GetDataset(ctx, &pb.GetDatasetRequest{Name: "d-012"})
	if err != nil || len(whole.GetDataset().GetKeys()) != 3000 || !proto.Equal(whole.GetDataset().GetValue(), value) {
		t.Errorf("%d keys, %d bytes, %v", len(whole.GetDataset().GetKeys()), whole.GetDataset().GetValueBytes(), err)
	}
}

// There may be many shortened rows, too: a page ends at its size, however many rows were asked for.
func TestListedPagesEndAtTheirSize(t *testing.T) {
	c := start(t, server.Config{})
	ctx := timeout(t)
	id := c.open(ctx)
	rows := 600
	if testing.Short() {
		rows = 300
	}
	specs := noops("k", 30)
	names := make([]string, len(specs))
	for i, spec := range specs {
		spec.Key += strings.Repeat("x", 1000)
		names[i] = spec.GetKey()
	}
	for i := range rows {
		specs = append(specs, &pb.TaskSpec{Key: fmt.Sprint("wide", i), Op: "bench.noop", Inputs: names, Hold: true})
	}
	if _, err := c.client.SubmitBatch(ctx, &pb.SubmitRequest{Header: &pb.SubmitHeader{ClientId: id}, Tasks: specs}); err != nil {
		t.Fatal(err)
	}
	for i := range rows {
		if _, err := c.client.PublishDataset(ctx, &pb.PublishDatasetRequest{ClientId: id, Name: fmt.Sprint("d", i), Keys: names}); err != nil {
			t.Fatal(err)
		}
	}
	tasks, datasets := 0, 0
	for token := ""; ; {
		page, err := c.client.ListTasks(ctx, &pb.ListTasksRequest{PageSize: 1000, PageToken: token})
		if err != nil {
			t.Fatal(err)
		}
		small(t, page)
		tasks += len(page.GetTasks())
		if token = page.GetNextPageToken(); token == "" {
			break
		}
	}
	for token := ""; ; {
		page, err := c.client.ListDatasets(ctx, &pb.ListDatasetsRequest{PageSize: 1000, PageToken: token})
		if err != nil {
			t.Fatal(err)
		}
		small(t, page)
		datasets += len(page.GetDatasets())
		if token = page.GetNextPageToken(); token == "" {
			break
		}
	}
	if tasks != len(specs) || datasets != rows {
		t.Errorf("%d of %d tasks and %d of %d datasets were listed", tasks, len(specs), datasets, rows)
	}
}

// A snapshot that is too long for one message comes in several messages; each says whether more
// follow.
func TestASnapshotOfManyFailedTasksComesInParts(t *testing.T) {
	c := start(t, server.Config{})
	ctx := timeout(t)
	traceback := strings.Repeat("line\n", 10_000)
	c.join(c.conn, registration("w-0"), func(a *workerv1.Assignment) *workerv1.TaskReport {
		return &workerv1.TaskReport{TaskId: a.TaskId, Attempt: a.Attempt, Outcome: workerv1.TaskOutcome_TASK_OUTCOME_FAILED, LogTail: strings.Repeat("я", 100_000),
			Error: &pb.TaskError{Reason: "PYTHON_EXCEPTION", Message: strings.Repeat("m", 1<<20), Traceback: traceback,
				Metadata: map[string]string{strings.Repeat("n", 10_000): strings.Repeat("v", 10_000)}}}
	})
	id := c.open(ctx)
	tasks := 600
	if testing.Short() {
		tasks = 250
	}
	submitted, err := c.client.SubmitBatch(ctx, &pb.SubmitRequest{Header: &pb.SubmitHeader{ClientId: id}, Tasks: noops("f", tasks)})
	if err != nil {
		t.Fatal(err)
	}
	ctxUntil := c.watch(ctx, &pb.WatchRequest{GraphIds: []uint64{submitted.GetGraphId()}, UntilEnded: true})
	for {
		if _, err := ctxUntil.Recv(); err != nil {
			break
		}
	}
	watch := c.watch(ctx, &pb.WatchRequest{ClientId: id})
	failed, messages, revision := 0, 0, uint64(0)
	for more := true; more; messages++ {
		message, err := watch.Recv()
		if err != nil || !message.GetSnapshot() {
			t.Fatalf("%v, %v", message.GetSnapshot(), err)
		}
		if n := proto.Size(message); n > 9<<20 {
			t.Errorf("a message of %d bytes", n)
		}
		for _, update := range message.GetTasks() {
			e := update.GetError()
			if failed++; len(e.GetMessage()) > 8<<10 || len(e.GetLogTail()) > 8<<10 || e.GetTraceback() != traceback || proto.Size(e) > 80<<10 {
				t.Fatalf("an error of %d bytes: message %d, log %d, traceback %d", proto.Size(e), len(e.GetMessage()), len(e.GetLogTail()), len(e.GetTraceback()))
			}
		}
		if more = message.GetMore(); more && message.GetRevision() != 0 {
			t.Errorf("a part carries revision %d", message.GetRevision())
		}
		revision = message.GetRevision()
	}
	if failed != tasks || messages < 2 || revision == 0 {
		t.Errorf("%d tasks in %d messages as of revision %d", failed, messages, revision)
	}
	page, err := c.client.ListTasks(ctx, &pb.ListTasksRequest{PageSize: 1000})
	if err != nil || len(page.GetTasks()) != tasks {
		t.Fatalf("%d tasks are listed, %v", len(page.GetTasks()), err)
	}
	small(t, page)
}
