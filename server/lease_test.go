package server_test

import (
	"context"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/millrace/millrace/gen/go/millrace/v1"
	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/server"
)

// virtual runs a test in virtual time over an in-memory connection.
func virtual(t *testing.T, test func(*cluster)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		listener := bufconn.Listen(1 << 20)
		c := start(t, server.Config{Listener: listener}, grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return listener.DialContext(ctx)
		}))
		test(c)
	})
}

func workerNamed(name string) *pb.WorkerRef {
	return &pb.WorkerRef{Worker: &pb.WorkerRef_Name{Name: name}}
}

func (c *cluster) worker(name string) *pb.Worker {
	c.t.Helper()
	response, err := c.client.GetWorker(timeout(c.t), &pb.GetWorkerRequest{Worker: workerNamed(name)})
	if err != nil {
		c.t.Fatal(err)
	}
	return response.GetWorker()
}

// beat keeps a worker alive until it leaves.
func (w *zero) beat() {
	go func() {
		for {
			select {
			case <-w.done:
				return
			case <-time.After(time.Second):
				if w.stream.Send(&workerv1.SessionRequest{Stats: &workerv1.WorkerStats{MemoryUsedBytes: 77}}) != nil {
					return
				}
			}
		}
	}()
}

func TestASilentWorkerIsLostAndItsTasksRunElsewhere(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.t
		ctx := timeout(t)
		mine := registration("silent")
		silent := c.join(c.conn, mine, never)
		id := c.open(ctx)
		watch := c.watch(ctx, &pb.WatchRequest{ClientId: id})
		submitted, err := c.client.SubmitBatch(ctx, &pb.SubmitRequest{Header: &pb.SubmitHeader{ClientId: id}, Tasks: noops("a", 1)})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(4 * time.Second) // virtual
		if state := c.worker("silent").GetState(); state != pb.WorkerState_WORKER_STATE_ACTIVE {
			t.Errorf("after 4 s of silence: %v", state)
		}
		other := c.join(c.conn, registration("other"), succeed)
		other.beat()
		c.final(watch, submitted.GetTaskIds())
		<-silent.done
		if !silent.last.GetReregister() {
			t.Errorf("last message to the silent worker: %v", silent.last)
		}
		lost := c.worker("silent")
		if lost.GetState() != pb.WorkerState_WORKER_STATE_LOST || len(lost.GetDeaths()) != 1 ||
			lost.GetDeaths()[0].GetCause() != "no message for 5s" || strings.Join(lost.GetDeaths()[0].GetRunningKeys(), ",") != "a-0" {
			t.Errorf("lost worker: %v", lost)
		}
		back := c.join(c.conn, mine, never)
		back.beat()
		if back.id == silent.id || back.id == 0 {
			t.Errorf("the worker came back as %d after it was lost as %d", back.id, silent.id)
		}
		if w := c.worker("silent"); w.GetState() != pb.WorkerState_WORKER_STATE_ACTIVE || len(w.GetDeaths()) != 1 {
			t.Errorf("worker that came back: %v", w)
		}
	})
}

func TestABrokenConnectionIsForgivenWithinTheGrace(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.t
		mine := registration("w")
		first := c.join(c.conn, mine, never)
		first.leave()
		time.Sleep(time.Second)
		if state := c.worker("w").GetState(); state != pb.WorkerState_WORKER_STATE_DISCONNECTED {
			t.Errorf("after the connection broke: %v", state)
		}
		second := c.join(c.conn, mine, never)
		if second.id != first.id {
			t.Errorf("came back as %d, was %d", second.id, first.id)
		}
		time.Sleep(2 * time.Second)
		if state := c.worker("w").GetState(); state != pb.WorkerState_WORKER_STATE_ACTIVE {
			t.Errorf("after it came back: %v", state)
		}
		second.leave()
		time.Sleep(3 * time.Second)
		w := c.worker("w")
		if w.GetState() != pb.WorkerState_WORKER_STATE_LOST || w.GetDeaths()[0].GetCause() != "connection lost" {
			t.Errorf("after the grace: %v", w)
		}
	})
}

func TestAReportedDeathIsBelievedAtOnce(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.t
		ctx := timeout(t)
		mine := registration("w")
		w := c.join(c.conn, mine, never)
		id := c.open(ctx)
		if _, err := c.client.SubmitBatch(ctx, &pb.SubmitRequest{Header: &pb.SubmitHeader{ClientId: id}, Tasks: noops("a", 1)}); err != nil {
			t.Fatal(err)
		}
		_, err := c.workers.ReportWorkerDeath(ctx, &workerv1.ReportWorkerDeathRequest{Name: "w", Death: &pb.WorkerDeath{
			Incarnation: mine.GetIncarnation(), Cause: "killed by SIGKILL", End: &pb.WorkerDeath_Signal{Signal: "SIGKILL"}, LogTail: "last words",
		}})
		if err != nil {
			t.Fatal(err)
		}
		<-w.done
		if !strings.Contains(w.last.GetStopReason(), "killed by SIGKILL") {
			t.Errorf("last message: %v", w.last)
		}
		lost := c.worker("w")
		if death := lost.GetDeaths()[0]; lost.GetState() != pb.WorkerState_WORKER_STATE_LOST || death.GetSignal() != "SIGKILL" ||
			death.GetLogTail() != "last words" || len(death.GetRunningKeys()) != 1 {
			t.Errorf("dead worker: %v", lost)
		}
		zombie := c.join(c.conn, mine, never)
		if zombie.id != 0 || !strings.Contains(zombie.last.GetStopReason(), "declared dead") {
			t.Errorf("the dead incarnation registers: %v", zombie.last)
		}
		next := c.join(c.conn, registration("w"), never)
		if alive := c.worker("w"); alive.GetWorkerId() != next.id || len(alive.GetDeaths()) != 1 {
			t.Errorf("its successor: %v", alive)
		}
	})
}

// register tries to open a session, and returns the scheduler's first message.
func (c *cluster) register(r *workerv1.Registration) (*workerv1.SessionResponse, error) {
	c.t.Helper()
	ctx, cancel := context.WithCancel(timeout(c.t))
	defer cancel()
	stream, err := c.workers.Session(ctx)
	if err != nil {
		c.t.Fatal(err)
	}
	if err := stream.Send(&workerv1.SessionRequest{Register: r}); err != nil {
		c.t.Fatal(err)
	}
	return stream.Recv()
}

func TestAWorkerThatLivesKeepsItsName(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.t
		holder := registration("w")
		holder.Host, holder.Pid = "first", 1234
		old := c.join(c.conn, holder, never)
		old.beat()
		newcomer := registration("w")
		newcomer.Host = "second"
		time.Sleep(10 * time.Second) // virtual: two leases
		_, err := c.register(newcomer)
		wantReason(t, err, "NAME_TAKEN", "first", "1234", "--name")
		if status.Code(err) != codes.AlreadyExists || c.worker("w").GetWorkerId() != old.id {
			t.Errorf("%v; the name belongs to %v", err, c.worker("w"))
		}
		// It is killed and restarted at once: the broken stream is enough for its name to be free.
		old.leave()
		synctest.Wait()
		if young := c.join(c.conn, newcomer, never); young.id == 0 || c.worker("w").GetWorkerId() != young.id {
			t.Errorf("the name belongs to %v, want %d", c.worker("w"), young.id)
		}
	})
}

func TestTheNameOfADeadWorkerIsFree(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.t
		// Its supervisor has reaped it, but the stream is still open.
		first := registration("w")
		c.join(c.conn, first, never)
		if _, err := c.workers.ReportWorkerDeath(timeout(t), &workerv1.ReportWorkerDeathRequest{Name: "w", Death: &pb.WorkerDeath{Incarnation: first.GetIncarnation()}}); err != nil {
			t.Fatal(err)
		}
		second := c.join(c.conn, registration("w"), never)
		if second.id == 0 {
			t.Fatalf("after a reported death: %v", second.last)
		}
		// Its host is gone without a message: the lease ends.
		time.Sleep(6 * time.Second) // virtual
		if third := c.join(c.conn, registration("w"), never); third.id == 0 {
			t.Errorf("after the lease: %v", third.last)
		}
	})
}

func TestALeavingWorkerIsNoDeath(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.t
		w := c.join(c.conn, registration("w"), never)
		if err := w.stream.Send(&workerv1.SessionRequest{Leaving: true}); err != nil {
			t.Fatal(err)
		}
		<-w.done
		if w.last.GetReregister() || w.last.GetStopReason() != "" {
			t.Errorf("a worker that left is told %v", w.last)
		}
		if left := c.worker("w"); left.GetState() != pb.WorkerState_WORKER_STATE_LOST || len(left.GetDeaths()) != 0 {
			t.Errorf("worker that left: %v", left)
		}
	})
}

func TestAWatchKeepsTheLeaseAndSilenceEndsIt(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.t
		ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
		defer cancel()
		open := func() uint64 {
			opened, err := c.client.OpenClient(ctx, &pb.OpenClientRequest{LeaseTtl: durationpb.New(3 * time.Second)})
			if err != nil {
				t.Fatal(err)
			}
			return opened.GetClient().GetClientId()
		}
		watched, silent := open(), open()
		watchContext, endWatch := context.WithCancel(ctx)
		watch := c.watch(watchContext, &pb.WatchRequest{ClientId: watched})
		if _, err := watch.Recv(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if _, err := c.client.RenewClient(ctx, &pb.RenewClientRequest{ClientId: watched}); err != nil {
			t.Errorf("a client whose watch is open: %v", err)
		}
		_, err := c.client.RenewClient(ctx, &pb.RenewClientRequest{ClientId: silent})
		wantReason(t, err, "UNKNOWN_CLIENT")
		endWatch()
		time.Sleep(10 * time.Second)
		_, err = c.client.RenewClient(ctx, &pb.RenewClientRequest{ClientId: watched})
		wantReason(t, err, "UNKNOWN_CLIENT")
	})
}

func TestTheEndOfALeaseEndsItsWatch(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.t
		ctx := timeout(t)
		id := c.open(ctx)
		watch := c.watch(ctx, &pb.WatchRequest{ClientId: id})
		if _, err := watch.Recv(); err != nil {
			t.Fatal(err)
		}
		if _, err := c.client.CloseClient(ctx, &pb.CloseClientRequest{ClientId: id}); err != nil {
			t.Fatal(err)
		}
		_, err := watch.Recv()
		wantReason(t, err, "UNKNOWN_CLIENT", "lease")
	})
}
