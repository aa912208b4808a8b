package server_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"testing/synctest"
	"time"

	pb "github.com/millrace/millrace/gen/go/millrace/v1"
	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
)

// rebalanced reads a rebalance to its end, and returns its first and its last response.
func (c *cluster) rebalanced(ctx context.Context, r *pb.RebalanceRequest) (first, last *pb.RebalanceResponse, err error) {
	c.t.Helper()
	stream, err := c.client.Rebalance(ctx, r)
	if err != nil {
		return nil, nil, err
	}
	for {
		response, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			if !last.GetDone() {
				c.t.Errorf("the stream ended with %v", last)
			}
			return first, last, nil
		}
		if err != nil {
			return first, last, err
		}
		if last = response; first == nil {
			first = response
		}
	}
}

// bytesOf returns the figures of a rebalanced worker.
func bytesOf(r *pb.RebalanceResponse, name string) string {
	for _, w := range r.GetWorkers() {
		if w.GetName() == name {
			return fmt.Sprint(w.GetInitialBytes()>>20, " ", w.GetBytes()>>20, " ", w.GetPlannedBytes()>>20, " ", w.GetStayingBytes()>>20)
		}
	}
	return "none"
}

func TestRebalanceMovesHalfOfTheResultsToANewWorker(t *testing.T) {
	virtual(t, func(c *cluster) {
		t, ctx := c.t, timeout(c.t)
		c.joinCopier(registration("first"))
		var tasks []uint64
		for i := range 4 {
			tasks = append(tasks, c.held(fmt.Sprint("r", i)))
		}
		c.joinCopier(registration("second"))
		plan, again, err := c.rebalanced(ctx, &pb.RebalanceRequest{DryRun: true})
		if err != nil || plan != again || plan.GetPlannedObjects() != 2 || plan.GetPlannedBytes() != 2<<20 || plan.GetMovedObjects() != 0 ||
			bytesOf(plan, "first") != "4 4 2 0" || bytesOf(plan, "second") != "0 0 2 0" || plan.GetWorkers()[0].GetMemoryLimitBytes() != 1<<30 {
			t.Errorf("the plan is %v, then %v, %v", plan, again, err)
		}
		first, last, err := c.rebalanced(ctx, &pb.RebalanceRequest{Workers: []*pb.WorkerRef{workerNamed("first"), workerNamed("second")}})
		if err != nil || first.GetPlannedObjects() != 2 || first.GetDone() || last.GetMovedObjects() != 2 || last.GetMovedBytes() != 2<<20 || last.GetFailedObjects() != 0 ||
			bytesOf(last, "first") != "4 2 2 0" || bytesOf(last, "second") != "0 2 2 0" {
			t.Errorf("the rebalance began with %v and ended with %v, %v", first, last, err)
		}
		located, err := c.client.LocateObjects(ctx, &pb.LocateObjectsRequest{TaskIds: tasks})
		if err != nil {
			t.Fatal(err)
		}
		at := make(map[uint32]int)
		for _, o := range located.GetObjects() {
			if len(o.GetWorkerIds()) != 1 {
				t.Errorf("a result is at %v", o.GetWorkerIds())
			}
			at[o.GetWorkerIds()[0]]++
		}
		if len(at) != 2 || at[1] != 2 {
			t.Errorf("results by worker: %v", at)
		}
	})
}

func TestRebalanceRefusesWorkersThatCannotTakePart(t *testing.T) {
	virtual(t, func(c *cluster) {
		t, ctx := c.t, timeout(c.t)
		c.joinCopier(registration("first"))
		c.joinCopier(registration("second"))
		refs := func(names ...string) (out []*pb.WorkerRef) {
			for _, name := range names {
				out = append(out, workerNamed(name))
			}
			return out
		}
		_, _, err := c.rebalanced(ctx, &pb.RebalanceRequest{Workers: refs("first", "third")})
		wantReason(t, err, "UNKNOWN_WORKER", "third")
		_, _, err = c.rebalanced(ctx, &pb.RebalanceRequest{Workers: refs("first", "first")})
		wantReason(t, err, "INVALID_FIELD", "workers", "first")
		if _, err := c.client.DrainWorkers(ctx, &pb.DrainWorkersRequest{Workers: refs("second")}); err != nil {
			t.Fatal(err)
		}
		_, _, err = c.rebalanced(ctx, &pb.RebalanceRequest{Workers: refs("first", "second")})
		wantReason(t, err, "WORKER_NOT_ACTIVE", "second", "DRAINED")
	})
}

// A rebalance ends with the call that ordered it. Until then no other one begins.
func TestRebalanceEndsWithItsCall(t *testing.T) {
	virtual(t, func(c *cluster) {
		t, ctx := c.t, timeout(c.t)
		c.joinCopier(registration("first"))
		task := c.held("a")
		c.held("b")
		seen := make(chan *workerv1.SessionResponse, 100)
		c.joinSeen(c.conn, registration("second"), func(*workerv1.Assignment) *workerv1.TaskReport { return nil }, seen)
		limited, cancel := context.WithCancel(ctx)
		stream, err := c.client.Rebalance(limited, &pb.RebalanceRequest{})
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		for round := range 4 {
			now, err := stream.Recv()
			if err != nil || now.GetDone() || now.GetPlannedObjects() != 1 || now.GetMovedObjects() != 0 {
				t.Fatalf("response %d: %v, %v", round, now, err)
			}
		}
		if passed := time.Since(began); passed < 1500*time.Millisecond || passed > 2*time.Second {
			t.Errorf("four responses in %s", passed)
		}
		_, _, err = c.rebalanced(ctx, &pb.RebalanceRequest{})
		wantReason(t, err, "REBALANCE_RUNNING", "2s ago", "0 of 1 results")
		_, _, err = c.rebalanced(ctx, &pb.RebalanceRequest{DryRun: true})
		wantReason(t, err, "REBALANCE_RUNNING")
		cancel()
		synctest.Wait()
		cancelled := false
		for len(seen) > 0 {
			m := <-seen
			cancelled = cancelled || len(m.GetCancellations()) == 1
		}
		if plan, _, err := c.rebalanced(ctx, &pb.RebalanceRequest{DryRun: true}); err != nil || plan.GetPlannedObjects() != 1 || !cancelled {
			t.Errorf("after the end of the call: %v, %v; the copy was cancelled: %v", plan, err, cancelled)
		}
		located, err := c.client.LocateObjects(ctx, &pb.LocateObjectsRequest{TaskIds: []uint64{task}})
		if err != nil || len(located.GetObjects()[0].GetWorkerIds()) != 1 {
			t.Errorf("the object is at %v, %v", located, err)
		}
	})
}
