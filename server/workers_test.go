package server_test

import (
	"testing"
	"time"

	pb "github.com/millrace/millrace/gen/go/millrace/v1"
	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
)

func workerNumbered(id uint32) *pb.WorkerRef {
	return &pb.WorkerRef{Worker: &pb.WorkerRef_Id{Id: id}}
}

// A name means the newest incarnation, a number exactly one.
func TestWorkersAreNamedByNumberOrName(t *testing.T) {
	virtual(t, func(c *cluster) {
		t, ctx := c.t, timeout(c.t)
		old := c.join(c.conn, registration("w"), succeed)
		if _, err := c.workers.ReportWorkerDeath(ctx, &workerv1.ReportWorkerDeathRequest{Name: "w", Death: &pb.WorkerDeath{
			Cause: "exited with code 3", End: &pb.WorkerDeath_ExitCode{ExitCode: 3},
		}}); err != nil {
			t.Fatal(err)
		}
		<-old.done
		next := c.join(c.conn, registration("w"), succeed)
		id := c.open(ctx)
		watch := c.watch(ctx, &pb.WatchRequest{ClientId: id})
		submitted, err := c.client.SubmitBatch(ctx, &pb.SubmitRequest{Header: &pb.SubmitHeader{ClientId: id}, Tasks: noops("a", 1)})
		if err != nil {
			t.Fatal(err)
		}
		c.final(watch, submitted.GetTaskIds())
		for name, test := range map[string]struct {
			ref   *pb.WorkerRef
			want  uint32
			tasks int
		}{
			"name": {workerNamed("w"), next.id, 1}, "number": {workerNumbered(next.id), next.id, 1}, "lost": {workerNumbered(old.id), old.id, 0},
		} {
			got, err := c.client.GetWorker(ctx, &pb.GetWorkerRequest{Worker: test.ref})
			if err != nil || got.GetWorker().GetWorkerId() != test.want {
				t.Errorf("%s: %v, %v", name, got, err)
			}
			tasks, err := c.client.ListTasks(ctx, &pb.ListTasksRequest{Worker: test.ref})
			if err != nil || len(tasks.GetTasks()) != test.tasks {
				t.Errorf("tasks by %s: %v, %v", name, tasks, err)
			}
		}
		lost, err := c.client.GetWorker(ctx, &pb.GetWorkerRequest{Worker: workerNumbered(old.id)})
		if err != nil || len(lost.GetWorker().GetDeaths()) != 1 {
			t.Fatalf("the lost worker: %v, %v", lost, err)
		}
		if end, exited := lost.GetWorker().GetDeaths()[0].GetEnd().(*pb.WorkerDeath_ExitCode); !exited || end.ExitCode != 3 {
			t.Errorf("it ended by %v", lost.GetWorker().GetDeaths()[0])
		}
		for _, ref := range []*pb.WorkerRef{nil, {}, workerNumbered(0), workerNamed("")} {
			_, err := c.client.GetWorker(ctx, &pb.GetWorkerRequest{Worker: ref})
			wantReason(t, err, "INVALID_FIELD", "worker")
		}
		_, err = c.client.ListTasks(ctx, &pb.ListTasksRequest{Worker: &pb.WorkerRef{}})
		wantReason(t, err, "INVALID_FIELD", "worker")
		for _, ref := range []*pb.WorkerRef{workerNumbered(99), workerNamed("nobody")} {
			_, err := c.client.GetWorker(ctx, &pb.GetWorkerRequest{Worker: ref})
			wantReason(t, err, "UNKNOWN_WORKER")
		}
	})
}

// Lists and streams have the basic view unless they are asked for all fields; one worker has all.
func TestViewsOfWorkers(t *testing.T) {
	virtual(t, func(c *cluster) {
		t, ctx := c.t, timeout(c.t)
		mine := registration("w")
		mine.Gpu = &pb.Gpu{Uuid: "GPU-1", Links: []*pb.GpuLink{{Uuid: "GPU-2"}}}
		died := c.join(c.conn, registration("w"), succeed)
		if _, err := c.workers.ReportWorkerDeath(ctx, &workerv1.ReportWorkerDeathRequest{Name: "w", Death: &pb.WorkerDeath{}}); err != nil {
			t.Fatal(err)
		}
		<-died.done
		w := c.join(c.conn, mine, succeed)
		if err := w.stream.Send(&workerv1.SessionRequest{Stats: &workerv1.WorkerStats{Routes: []*pb.Route{{PeerWorkerId: 1}}}}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second) // virtual: reports are committed every 250 ms
		full := func(w *pb.Worker) bool {
			t.Helper()
			if w.GetDeathCount() != 1 {
				t.Errorf("the view has no count of deaths: %v", w)
			}
			lists := []bool{len(w.GetDeaths()) > 0, len(w.GetRoutes()) > 0, len(w.GetGpu().GetLinks()) > 0}
			if lists[0] != lists[1] || lists[1] != lists[2] {
				t.Errorf("half a view: %v", w)
			}
			return lists[0]
		}
		for view, want := range map[pb.WorkerView][2]bool{
			pb.WorkerView_WORKER_VIEW_UNSPECIFIED: {true, false}, pb.WorkerView_WORKER_VIEW_BASIC: {false, false}, pb.WorkerView_WORKER_VIEW_FULL: {true, true},
		} {
			one, err := c.client.GetWorker(ctx, &pb.GetWorkerRequest{Worker: workerNamed("w"), View: view})
			if err != nil || full(one.GetWorker()) != want[0] {
				t.Errorf("GetWorker, %v: %v, %v", view, one, err)
			}
			list, err := c.client.ListWorkers(ctx, &pb.ListWorkersRequest{View: view})
			if err != nil || len(list.GetWorkers()) != 1 || full(list.GetWorkers()[0]) != want[1] {
				t.Errorf("ListWorkers, %v: %v, %v", view, list, err)
			}
			stream, err := c.client.Watch(ctx, &pb.WatchRequest{Workers: true, WorkerView: view})
			if err != nil {
				t.Fatal(err)
			}
			first, err := stream.Recv()
			if err != nil {
				t.Fatal(err)
			}
			for _, watched := range first.GetWorkers() {
				if watched.GetState() == pb.WorkerState_WORKER_STATE_ACTIVE && full(watched) != want[1] {
					t.Errorf("Watch, %v: %v", view, watched)
				}
			}
		}
		_, err := c.client.ListWorkers(ctx, &pb.ListWorkersRequest{View: 7})
		wantReason(t, err, "INVALID_FIELD", "view")
	})
}
