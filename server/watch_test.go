package server_test

import (
	"context"
	"fmt"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/millrace/millrace/gen/go/millrace/v1"
	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/server"
)

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
	tasks := 30_000
	if testing.Short() {
		tasks = 10_000
	}
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

// A revision after which a stream cannot continue is no error: the stream begins with a snapshot.
func TestAnUnknownRevisionGetsASnapshot(t *testing.T) {
	c := start(t, server.Config{})
	ctx := timeout(t)
	id := c.open(ctx)
	for name, request := range map[string]*pb.WatchRequest{
		"tasks":     {ClientId: id, AfterRevision: 1 << 40},
		"catalogue": {Workers: true, Graphs: true, Datasets: true, AfterRevision: 1 << 40},
		"both":      {ClientId: id, Workers: true, AfterRevision: 1 << 40},
	} {
		first, err := c.watch(ctx, request).Recv()
		if err != nil || !first.GetSnapshot() || first.GetMore() || first.GetRevision() >= 1<<40 {
			t.Errorf("%s: %v, %v", name, first, err)
		}
	}
}
