package server_test

import (
	"testing"

	"go.uber.org/goleak"

	pb "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/server"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestSubmittedTasksRunAndTheirClientHearsOfIt(t *testing.T) {
	c := start(t, server.Config{})
	ctx := timeout(t)
	c.join(c.conn, registration("w-0"), succeed)
	id := c.open(ctx)
	watch := c.watch(ctx, &pb.WatchRequest{ClientId: id})
	submitted, err := c.client.SubmitBatch(ctx, &pb.SubmitBatchRequest{
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
}
