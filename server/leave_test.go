package server_test

import (
	"testing"
	"testing/synctest"
	"time"

	pb "github.com/millrace/millrace/gen/go/millrace/v1"
	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
)

// TestAWorkerLeavesOnceOthersHaveWhatOnlyItHad: bytes that a client scattered to a worker survive
// the worker's orderly end, because other workers get a copy before it leaves.
func TestAWorkerLeavesOnceOthersHaveWhatOnlyItHad(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.t
		ctx := timeout(t)
		leaver := c.join(c.conn, registration("leaver"), succeed)
		id := c.open(ctx)
		watch := c.watch(ctx, &pb.WatchRequest{ClientId: id})
		submitted, err := c.client.SubmitBatch(ctx, &pb.SubmitRequest{
			Header: &pb.SubmitHeader{ClientId: id}, Ops: []*pb.Op{{Kind: pb.OpKind_OP_KIND_DATA}},
			Tasks: []*pb.TaskSpec{{Key: "data", OpIndex: new(uint32), Hold: true}},
		})
		if err != nil {
			t.Fatal(err)
		}
		data := &workerv1.Replica{TaskId: submitted.GetTaskIds()[0], Generation: 1, Bytes: 1 << 20}
		say := func(w *zero, m *workerv1.SessionRequest) {
			if err := w.stream.Send(m); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		say(leaver, &workerv1.SessionRequest{Objects: []*workerv1.ObjectReport{{Replica: data, Event: workerv1.ObjectEvent_OBJECT_EVENT_WRITTEN}}})
		if got := leaver.last.GetAcceptedWrites(); len(got) != 1 || got[0].GetTaskId() != data.GetTaskId() {
			t.Fatalf("the write was answered by %v", leaver.last)
		}
		c.final(watch, submitted.GetTaskIds())
		other := c.join(c.conn, registration("other"), never)
		say(leaver, &workerv1.SessionRequest{Draining: true})
		assigned := other.last.GetAssignments()
		if len(assigned) != 1 || len(assigned[0].GetInputs()) != 1 || assigned[0].GetInputs()[0].GetTaskId() != data.GetTaskId() ||
			len(assigned[0].GetInputs()[0].GetHolders()) != 1 || assigned[0].GetInputs()[0].GetHolders()[0] != leaver.id {
			t.Fatalf("the other worker was told %v", other.last)
		}
		if leaver.last.GetDrained() {
			t.Error("the worker may leave before its data is elsewhere")
		}
		say(other, &workerv1.SessionRequest{Objects: []*workerv1.ObjectReport{{Replica: data, Event: workerv1.ObjectEvent_OBJECT_EVENT_GAINED}}})
		time.Sleep(100 * time.Millisecond)
		synctest.Wait()
		if !leaver.last.GetDrained() {
			t.Fatalf("the last message to the worker that leaves: %v", leaver.last)
		}
		say(leaver, &workerv1.SessionRequest{Leaving: true})
		task, err := c.client.GetTask(ctx, &pb.GetTaskRequest{Task: &pb.TaskRef{Task: &pb.TaskRef_Id{Id: data.GetTaskId()}}})
		if err != nil || task.GetTask().GetState() != pb.TaskState_TASK_STATE_SUCCEEDED {
			t.Errorf("after the worker has left: %v, %v", task, err)
		}
	})
}
