package server_test

import (
	"testing"
	"testing/synctest"

	pb "github.com/millrace/millrace/gen/go/millrace/v1"
	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
)

// TestSurvivorsAreToldWhatToRescue: a worker that has reported that it has a dead worker's memory
// mapped is ordered to copy objects out of that memory. The order names the incarnation. Later it
// is ordered to unmap. Objects that it cannot copy are computed again.
func TestSurvivorsAreToldWhatToRescue(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.t
		ctx := timeout(t)
		large := func(a *workerv1.Assignment) *workerv1.TaskReport {
			r := succeed(a)
			r.InlineResult, r.OutputBytes = nil, 1<<20
			return r
		}
		mine := registration("dead")
		dead := c.join(c.conn, mine, large)
		id := c.open(ctx)
		watch := c.watch(ctx, &pb.WatchRequest{ClientId: id})
		submitted, err := c.client.SubmitBatch(ctx, &pb.SubmitRequest{Header: &pb.SubmitHeader{ClientId: id}, Tasks: noops("a", 2)})
		if err != nil {
			t.Fatal(err)
		}
		tasks := submitted.GetTaskIds()
		c.final(watch, tasks)
		survivor := c.join(c.conn, registration("survivor"), large)
		route := &pb.Route{PeerWorkerId: dead.id, Peer: "dead", Path: pb.TransferPath_TRANSFER_PATH_BORROW, State: pb.RouteState_ROUTE_STATE_OPEN, BytesPerSecond: 1e9}
		say := func(m *workerv1.SessionRequest) {
			if err := survivor.stream.Send(m); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		say(&workerv1.SessionRequest{Stats: &workerv1.WorkerStats{Routes: []*pb.Route{route}}})
		if _, err := c.workers.ReportWorkerDeath(ctx, &workerv1.ReportWorkerDeathRequest{Name: "dead", Death: &pb.WorkerDeath{
			Incarnation: mine.GetIncarnation(), Cause: "killed by SIGKILL", End: &pb.WorkerDeath_Signal{Signal: "SIGKILL"},
		}}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		rescues := survivor.last.GetRescues()
		if len(rescues) != 1 || rescues[0].GetWorkerId() != dead.id || rescues[0].GetIncarnation() != mine.GetIncarnation() ||
			rescues[0].GetDataAddress() != mine.GetDataAddress() || len(rescues[0].GetObjects()) != 2 || rescues[0].GetObjects()[0].GetBytes() != 1<<20 {
			t.Fatalf("the survivor was told %v", survivor.last)
		}
		state := func(task uint64) *pb.Task {
			got, err := c.client.GetTask(ctx, &pb.GetTaskRequest{Task: &pb.TaskRef{Task: &pb.TaskRef_Id{Id: task}}})
			if err != nil {
				t.Fatal(err)
			}
			return got.GetTask()
		}
		if s := state(tasks[0]).GetState(); s != pb.TaskState_TASK_STATE_RESCUING {
			t.Errorf("an object that is being copied: %v", s)
		}
		say(&workerv1.SessionRequest{Objects: []*workerv1.ObjectReport{{Replica: rescues[0].GetObjects()[0], Event: workerv1.ObjectEvent_OBJECT_EVENT_GAINED}}})
		say(&workerv1.SessionRequest{Rescues: []*workerv1.RescueReport{{WorkerId: dead.id, Failed: rescues[0].GetObjects()[1:], Reason: "no room"}}})
		say(&workerv1.SessionRequest{Rescues: []*workerv1.RescueReport{{WorkerId: dead.id, Unmapped: true}}})
		if gone := survivor.last.GetPeers(); len(gone) != 1 || gone[0].GetWorkerId() != dead.id || gone[0].GetDataAddress() != "" {
			t.Errorf("the last message to the survivor does not say that the dead one is gone: %v", survivor.last)
		}
		for i, attempt := range []uint32{1, 2} {
			task := state(rescues[0].GetObjects()[i].GetTaskId())
			if task.GetState() != pb.TaskState_TASK_STATE_SUCCEEDED || task.GetAttempt() != attempt {
				t.Errorf("object %d: %v after attempt %d", i, task.GetState(), task.GetAttempt())
			}
		}
	})
}
