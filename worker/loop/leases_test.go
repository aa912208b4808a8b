package loop_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/memory"
	hostmemory "github.com/millrace/millrace/memory/host"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/transfertest"
	"github.com/millrace/millrace/worker/device/host"
	"github.com/millrace/millrace/worker/loop"
	"github.com/millrace/millrace/worker/native"
	"github.com/millrace/millrace/worker/store"
	"github.com/millrace/millrace/worker/tasklog"
	"github.com/millrace/millrace/worker/workertest"
)

// lender is a path that grants leases when the test says so.
type lender struct {
	transfer.Path
	// asked is closed by the first Borrow, lend by the test, and ended by the end of the lease.
	asked, lend, ended chan struct{}
}

func (l *lender) Capabilities() transfer.Capabilities { return transfer.Capabilities{Borrow: l} }

func (l *lender) Lends(transfer.Peer) bool { return true }

func (l *lender) Borrow(_ context.Context, _ transfer.Peer, refs []transfer.Ref, _ bool) ([]transfer.Loan, error) {
	close(l.asked)
	<-l.lend
	return []transfer.Loan{{Head: transfer.Head{Ref: refs[0]}, End: func() bool { close(l.ended); return true }}}, nil
}

// An attempt that the machine knows, since it waited for its makers, is retracted while it waits
// for a lease: the lease is ended, and the worker can still be drained.
func TestRetractedWhileItWaitsForALoan(t *testing.T) {
	scheduler := workertest.NewScheduler(t)
	conn, err := grpc.NewClient("passthrough:///"+scheduler.Address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	slab, err := hostmemory.NewSlab(8<<20, memory.Identity{})
	if err != nil {
		t.Fatal(err)
	}
	d := host.New(slab, nil)
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	log := slog.New(slog.DiscardHandler)
	objects, err := store.New(d.Space(), log)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(objects.Close)
	path := &lender{Path: transfertest.NewNetwork().Path(1), asked: make(chan struct{}), lend: make(chan struct{}), ended: make(chan struct{})}
	drain := make(chan struct{})
	w := loop.New(loop.Config{
		Registration: &workerv1.Registration{Name: "host-0", Incarnation: "1", Slots: 1, NativeOps: d.Ops()},
		Sessions:     loop.SessionsBy(conn), Native: native.New(native.Config{Slots: 1, Device: d, Store: objects}), Store: objects, Path: path, Logs: new(tasklog.Logs), Log: log,
		Traffic: func() (in, out uint64) { return 0, 0 }, Drain: drain, DrainGrace: workertest.EventTimeout,
		MemoryWait: workertest.EventTimeout, BorrowWait: workertest.EventTimeout,
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	s := scheduler.Accept(t)
	const maker, attempt, elsewhere, peer = 1, 2, 3, 77
	s.Op(1, millracev1.OpKind_OP_KIND_NATIVE, "bench.noop")
	s.Send(&workerv1.SessionResponse{
		Peers: []*workerv1.Peer{{WorkerId: peer, Name: "host-1", DataAddress: "nowhere"}},
		Assignments: []*workerv1.Assignment{
			{TaskId: maker, Attempt: 1, OpId: 1},
			{TaskId: attempt, Attempt: 1, OpId: 1, Inputs: []*workerv1.Input{
				{TaskId: maker, Generation: 1, Pending: true},
				{TaskId: elsewhere, Generation: 1, Bytes: 1 << 20, Holders: []uint32{peer}},
			}},
		},
	})
	await(t, path.asked, "the question for a loan")
	s.Send(&workerv1.SessionResponse{Retractions: []*workerv1.AttemptRef{{TaskId: attempt, Attempt: 1}}})
	s.Report(attempt, workerv1.TaskOutcome_TASK_OUTCOME_RETRACTED)
	close(drain)
	s.Send(&workerv1.SessionResponse{Drained: true})
	close(path.lend)
	await(t, path.ended, "the end of the loan")
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(workertest.EventTimeout):
		cancel()
		t.Errorf("draining does not end; told to leave, it did with %v", <-ended)
	}
}

func await(t *testing.T, c <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(workertest.EventTimeout):
		t.Fatalf("waited %v for %s", workertest.EventTimeout, what)
	}
}
