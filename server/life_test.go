package server_test

import (
	"fmt"
	"testing"
	"testing/synctest"

	pb "github.com/millrace/millrace/gen/go/millrace/v1"
	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
)

// TestReportsOfAnotherLifeAreRefused: a worker that reconnects to a restarted scheduler holds
// objects under numbers that now mean other tasks. They become the result of no task, and the
// worker is ordered to release them.
func TestReportsOfAnotherLifeAreRefused(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.t
		ctx := timeout(t)
		first := c.join(c.conn, registration("first"), func(a *workerv1.Assignment) *workerv1.TaskReport {
			r := succeed(a)
			r.InlineResult, r.OutputBytes = nil, 8
			return r
		})
		first.beat()
		id := c.open(ctx)
		watch := c.watch(ctx, &pb.WatchRequest{ClientId: id})
		submitted, err := c.client.SubmitBatch(ctx, &pb.SubmitRequest{Header: &pb.SubmitHeader{ClientId: id}, Tasks: noops("a", 1)})
		if err != nil {
			t.Fatal(err)
		}
		task := submitted.GetTaskIds()[0]
		c.final(watch, submitted.GetTaskIds())
		info, err := c.client.GetClusterInfo(ctx, &pb.GetClusterInfoRequest{})
		if err != nil {
			t.Fatal(err)
		}
		life := info.GetCluster().GetLife()
		if life == 0 || first.registered.GetLife() != life {
			t.Fatalf("the cluster's life is %x, the worker was told %x", life, first.registered.GetLife())
		}
		replicas := func() int {
			got, err := c.client.GetTask(ctx, &pb.GetTaskRequest{Task: &pb.TaskRef{Task: &pb.TaskRef_Id{Id: task}}})
			if err != nil {
				t.Fatal(err)
			}
			return len(got.GetTask().GetReplicas())
		}
		held := []*workerv1.Replica{{TaskId: task, Generation: 1, Bytes: 8}}
		running := []*workerv1.AttemptRef{{TaskId: task + 1, Attempt: 1}}
		for _, from := range []struct {
			name string
			life uint64
		}{{"of another life", life + 1}, {"of no life", 0}} {
			r := registration(from.name)
			r.Life, r.Inventory, r.Running = from.life, held, running
			w := c.join(c.conn, r, never)
			synctest.Wait()
			if n := replicas(); n != 1 {
				t.Errorf("worker %s: its object became one of %d replicas", from.name, n)
			}
			if got := w.last; len(got.GetReleases()) != 1 || got.GetReleases()[0].GetTaskId() != task ||
				len(got.GetCancellations()) != 1 || got.GetCancellations()[0].GetTaskId() != task+1 {
				t.Errorf("worker %s was told %v", from.name, got)
			}
			w.leave()
		}
		// A worker that this scheduler has met in this life is believed, whether it names the life
		// or not.
		for _, said := range []uint64{life, 0} {
			r := registration(fmt.Sprintf("met with life %x", said))
			c.join(c.conn, r, never).leave()
			synctest.Wait()
			before := replicas()
			r.Life, r.Inventory = said, held
			back := c.join(c.conn, r, never)
			synctest.Wait()
			if n := replicas(); n != before+1 {
				t.Errorf("a worker that came back with life %x: its object is not one of the replicas, of which there are %d after %d", said, n, before)
			}
			back.leave()
			synctest.Wait() // the name is free again
		}
	})
}

// TestClientsOfAnotherLifeAreUnknown: lease numbers cannot be guessed, and a watch that is resumed
// at another scheduler is refused with that reason.
func TestClientsOfAnotherLifeAreUnknown(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.t
		ctx := timeout(t)
		one, other := c.open(ctx), c.open(ctx)
		if near := one - other; near < 1<<20 || -near < 1<<20 || one>>63 != 0 || other>>63 != 0 {
			t.Errorf("client numbers %d and %d", one, other)
		}
		stream, err := c.client.Watch(ctx, &pb.WatchRequest{ClientId: one})
		if err != nil {
			t.Fatal(err)
		}
		first, err := stream.Recv()
		if err != nil || first.GetLife() == 0 {
			t.Fatalf("the first message of a watch: %v, %v", first, err)
		}
		resumed, err := c.client.Watch(ctx, &pb.WatchRequest{ClientId: one, AfterRevision: first.GetRevision(), Life: first.GetLife() + 1})
		if err != nil {
			t.Fatal(err)
		}
		_, err = resumed.Recv()
		wantReason(t, err, "UNKNOWN_CLIENT", "another life")
		again, err := c.client.Watch(ctx, &pb.WatchRequest{ClientId: one, Life: first.GetLife()})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := again.Recv(); err != nil {
			t.Errorf("a watch of the same life: %v", err)
		}
	})
}
