package server_test

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/millrace/millrace/gen/go/millrace/v1"
	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
)

// joinCopier starts a worker that makes results of 1 MiB and copies its inputs.
func (c *cluster) joinCopier(r *workerv1.Registration) *zero {
	c.t.Helper()
	self := make(chan *zero, 1)
	seen := make(chan *workerv1.SessionResponse, 100)
	w := c.joinSeen(c.conn, r, func(a *workerv1.Assignment) *workerv1.TaskReport {
		w := <-self
		defer func() { self <- w }()
		report := succeed(a)
		for _, in := range a.GetInputs() {
			gained := &workerv1.ObjectReport{Replica: &workerv1.Replica{TaskId: in.GetTaskId(), Generation: in.GetGeneration(), Bytes: in.GetBytes()}}
			if err := w.stream.Send(&workerv1.SessionRequest{Objects: []*workerv1.ObjectReport{gained}}); err != nil {
				c.t.Error(err)
			}
		}
		if len(a.GetInputs()) == 0 {
			report.InlineResult, report.OutputBytes = nil, 1<<20
		}
		return report
	}, seen)
	self <- w
	return w
}

// leaves waits until a worker is ordered to leave, and returns the order.
func (w *zero) leaves() *workerv1.Leave {
	w.t.Helper()
	for {
		select {
		case m := <-w.seen:
			if m.GetLeave() != nil {
				return m.GetLeave()
			}
		case <-w.done:
			w.t.Fatal("its session ended without an order to leave")
		}
	}
}

// held submits a task and returns its number when it has ended.
func (c *cluster) held(prefix string) uint64 {
	c.t.Helper()
	ctx := timeout(c.t)
	id := c.open(ctx)
	watch := c.watch(ctx, &pb.WatchRequest{ClientId: id})
	submitted, err := c.client.SubmitBatch(ctx, &pb.SubmitRequest{Header: &pb.SubmitHeader{ClientId: id}, Tasks: noops(prefix, 1)})
	if err != nil {
		c.t.Fatal(err)
	}
	c.final(watch, submitted.GetTaskIds())
	return submitted.GetTaskIds()[0]
}

func TestDrainTellsWhatStaysAndGoesOnWhenThereIsRoom(t *testing.T) {
	virtual(t, func(c *cluster) {
		t, ctx := c.t, timeout(c.t)
		first := c.joinCopier(registration("first"))
		task := c.held("a")
		watch := c.watch(ctx, &pb.WatchRequest{Workers: true})
		drained, err := c.client.DrainWorkers(ctx, &pb.DrainWorkersRequest{Workers: []*pb.WorkerRef{workerNamed("first")}, Reason: "a loud fan"})
		if err != nil {
			t.Fatal(err)
		}
		w := drained.GetWorkers()[0]
		if d := w.GetDrain(); w.GetState() != pb.WorkerState_WORKER_STATE_DRAINING || d.GetPurpose() != pb.DrainPurpose_DRAIN_PURPOSE_KEEP || d.GetReason() != "a loud fan" ||
			d.GetStayingObjects() != 1 || d.GetStayingBytes() != 1<<20 || d.GetStaying()[0].GetTaskId() != task || d.GetStaying()[0].GetKey() != "a-0" ||
			!strings.Contains(d.GetStaying()[0].GetReason(), "no other worker is active") {
			t.Errorf("after the order: %v", w)
		}
		// The new tasks wait, and say why.
		id := c.open(ctx)
		if _, err := c.client.SubmitBatch(ctx, &pb.SubmitRequest{Header: &pb.SubmitHeader{ClientId: id}, Tasks: noops("b", 1)}); err != nil {
			t.Fatal(err)
		}
		why, err := c.client.ExplainTask(ctx, &pb.ExplainTaskRequest{Task: &pb.TaskRef{Task: &pb.TaskRef_Key{Key: "b-0"}}})
		if err != nil || !strings.Contains(why.GetExplanation(), "first: draining: a loud fan") {
			t.Errorf("explained: %v, %v", why, err)
		}
		second := c.joinCopier(registration("second"))
		for state := w.GetState(); state != pb.WorkerState_WORKER_STATE_DRAINED; {
			message, err := watch.Recv()
			if err != nil {
				t.Fatal(err)
			}
			for _, w := range message.GetWorkers() {
				if w.GetWorkerId() == first.id {
					state = w.GetState()
				}
			}
		}
		located, err := c.client.LocateObjects(ctx, &pb.LocateObjectsRequest{TaskIds: []uint64{task}})
		if err != nil || len(located.GetObjects()[0].GetWorkerIds()) != 2 {
			t.Errorf("the object is at %v, %v", located, err)
		}
		if d := c.worker("first").GetDrain(); d.GetCopiedObjects() != 1 || d.GetCopiedBytes() != 1<<20 || d.GetRemainingObjects() != 0 {
			t.Errorf("the drain in the end: %v", d)
		}
		back, err := c.client.DrainWorkers(ctx, &pb.DrainWorkersRequest{Workers: []*pb.WorkerRef{workerNumbered(first.id)}, Undo: true})
		if err != nil || back.GetWorkers()[0].GetState() != pb.WorkerState_WORKER_STATE_ACTIVE || back.GetWorkers()[0].GetDrain() != nil {
			t.Errorf("undone: %v, %v", back, err)
		}
		_ = second
	})
}

func TestRetireAndRestartEndTheProcess(t *testing.T) {
	virtual(t, func(c *cluster) {
		t, ctx := c.t, timeout(c.t)
		mine := registration("w")
		w := c.joinCopier(mine)
		refs := []*pb.WorkerRef{workerNumbered(w.id), workerNamed("w")} // one worker, named twice
		_, err := c.client.RestartWorkers(ctx, &pb.RestartWorkersRequest{Workers: refs})
		wantReason(t, err, "NOT_SUPERVISED", "worker w (w1)", "millrace worker")
		w.leave()
		mine.Supervised = true
		w = c.joinCopier(mine)
		c.held("a")
		if w := c.worker("w"); !w.GetSupervised() {
			t.Errorf("a supervised worker: %v", w)
		}
		// Nothing can take the object, so only the end of the time ends the process.
		restarting, err := c.client.RestartWorkers(ctx, &pb.RestartWorkersRequest{Workers: refs, Reason: "a new driver", Timeout: durationpb.New(10 * time.Second)})
		if err != nil || len(restarting.GetWorkers()) != 1 {
			t.Fatalf("restarted: %v, %v", restarting, err)
		}
		if d := restarting.GetWorkers()[0].GetDrain(); d.GetPurpose() != pb.DrainPurpose_DRAIN_PURPOSE_RESTART || d.GetExpireTime().AsTime().Sub(d.GetCreateTime().AsTime()) != 10*time.Second {
			t.Errorf("the drain: %v", d)
		}
		begin := time.Now()
		for time.Since(begin) < 9*time.Second {
			time.Sleep(time.Second) // virtual
			w.beat()
		}
		if order := w.leaves(); !order.GetRestart() || order.GetReason() != "restarted by an operator: a new driver" || time.Since(begin) > 11*time.Second {
			t.Errorf("after %v: %v", time.Since(begin), order)
		}
		_, err = c.client.DrainWorkers(ctx, &pb.DrainWorkersRequest{Workers: refs, Undo: true})
		wantReason(t, err, "WORKER_LEAVING", "a new driver")
		if err := w.stream.Send(&workerv1.SessionRequest{Leaving: true}); err != nil {
			t.Fatal(err)
		}
		<-w.done
		// The number named the incarnation that has ended.
		_, err = c.client.RestartWorkers(ctx, &pb.RestartWorkersRequest{Workers: refs[:1]})
		wantReason(t, err, "UNKNOWN_WORKER", "w1")
		next := registration("w")
		next.Supervised = true
		w = c.joinCopier(next)
		if state := c.worker("w").GetState(); state != pb.WorkerState_WORKER_STATE_ACTIVE {
			t.Errorf("the next incarnation is %v", state)
		}
		// Its wanted object is computed again, and keeps the worker from being retired until
		// another worker has it.
		if _, err := c.client.RetireWorkers(ctx, &pb.RetireWorkersRequest{Workers: refs[1:]}); err != nil {
			t.Fatal(err)
		}
		c.joinCopier(registration("other"))
		if order := w.leaves(); order.GetRestart() || order.GetReason() != "retired by an operator" {
			t.Errorf("retired by %v", order)
		}
		if state := c.worker("w").GetState(); state != pb.WorkerState_WORKER_STATE_DRAINED {
			t.Errorf("when it is told to end it is %v", state)
		}
	})
}

func TestOrdersToDrainAreChecked(t *testing.T) {
	virtual(t, func(c *cluster) {
		t, ctx := c.t, timeout(c.t)
		w := c.joinCopier(registration("w"))
		_, err := c.client.DrainWorkers(ctx, &pb.DrainWorkersRequest{})
		wantReason(t, err, "INVALID_FIELD", "workers")
		_, err = c.client.DrainWorkers(ctx, &pb.DrainWorkersRequest{Workers: []*pb.WorkerRef{{}}})
		wantReason(t, err, "INVALID_FIELD", "workers")
		_, err = c.client.RetireWorkers(ctx, &pb.RetireWorkersRequest{Workers: []*pb.WorkerRef{workerNamed("w")}, Timeout: durationpb.New(-time.Second)})
		wantReason(t, err, "INVALID_FIELD", "timeout")
		for _, undo := range []bool{false, true} {
			_, err = c.client.DrainWorkers(ctx, &pb.DrainWorkersRequest{Workers: []*pb.WorkerRef{workerNamed("w"), workerNamed("nobody")}, Undo: undo})
			wantReason(t, err, "UNKNOWN_WORKER", "nobody")
		}
		if state := c.worker("w").GetState(); state != pb.WorkerState_WORKER_STATE_ACTIVE {
			t.Errorf("after refused orders it is %v", state)
		}
		// An order outlives the worker, and can be taken back without it.
		if _, err := c.client.DrainWorkers(ctx, &pb.DrainWorkersRequest{Workers: []*pb.WorkerRef{workerNumbered(w.id)}}); err != nil {
			t.Fatal(err)
		}
		if _, err := c.workers.ReportWorkerDeath(ctx, &workerv1.ReportWorkerDeathRequest{Name: "w", Death: &pb.WorkerDeath{End: &pb.WorkerDeath_Signal{Signal: "SIGKILL"}}}); err != nil {
			t.Fatal(err)
		}
		<-w.done
		_, err = c.client.DrainWorkers(ctx, &pb.DrainWorkersRequest{Workers: []*pb.WorkerRef{workerNamed("w")}})
		wantReason(t, err, "UNKNOWN_WORKER", "lost")
		again := c.joinCopier(registration("w"))
		if w := c.worker("w"); w.GetState() != pb.WorkerState_WORKER_STATE_DRAINED || w.GetWorkerId() != again.id {
			t.Errorf("the next incarnation: %v", w)
		}
		again.leave()
		time.Sleep(time.Minute) // virtual: the worker is given up
		back, err := c.client.DrainWorkers(ctx, &pb.DrainWorkersRequest{Workers: []*pb.WorkerRef{workerNamed("w")}, Undo: true})
		if err != nil || len(back.GetWorkers()) != 0 {
			t.Errorf("undone without the worker: %v, %v", back, err)
		}
		c.joinCopier(registration("w"))
		if state := c.worker("w").GetState(); state != pb.WorkerState_WORKER_STATE_ACTIVE {
			t.Errorf("after the order was taken back it is %v", state)
		}
	})
}
