package loop

import (
	"context"
	"log/slog"
	"testing"
	"time"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/ledger"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/worker/executor"
	"github.com/millrace/millrace/worker/workertest"
)

// moving is a path that refuses the first request for leases and grants the others. Each time, the
// object lies elsewhere.
type moving struct {
	transfer.Path
	space memory.Space
	asked int
	open  map[uint64]bool
}

func (p *moving) Capabilities() transfer.Capabilities { return transfer.Capabilities{Borrow: p} }

func (p *moving) Lends(transfer.Peer) bool { return true }

func (p *moving) Borrow(_ context.Context, _ transfer.Peer, refs []transfer.Ref, _ bool) ([]transfer.Loan, error) {
	if p.asked++; p.asked == 1 {
		return []transfer.Loan{{Err: transfer.ErrUnreachable}}, nil
	}
	at := memory.Frame{Offset: uint64(p.asked) << 20, Bytes: 1 << 20}
	p.open[at.Offset] = true
	return []transfer.Loan{{
		Head:    transfer.Head{Ref: refs[0], Header: []byte("head"), FrameBytes: []uint64{at.Bytes}},
		Regions: []transfer.Region{{Space: p.space, Frame: at}},
		End:     func() bool { delete(p.open, at.Offset); return true },
	}}, nil
}

// next handles what is posted until a condition holds.
func (w *Worker) next(t *testing.T, what string, done func() bool) {
	t.Helper()
	for limit := time.After(workertest.EventTimeout); !done(); {
		select {
		case <-w.inbox.Woken():
			w.drainInbox()
		case <-limit:
			t.Fatalf("no %s", what)
		}
	}
}

// An attempt gives its leases up while it waits for memory, and gets others. It reads its inputs
// where the new leases say, and not where the objects lay before.
func TestInputsAreReadUnderTheLastLease(t *testing.T) {
	slots, path, room := new(handSlots), &moving{open: make(map[uint64]bool)}, workertest.NewStore(t, 1<<20)
	w := New(Config{
		Registration: &workerv1.Registration{Slots: 1}, Sessions: SessionsBy(nil), Native: slots, Store: room, Path: path, Log: slog.New(slog.DiscardHandler),
		MemoryWait: workertest.EventTimeout, BorrowWait: workertest.EventTimeout,
	})
	w.peers.Begin(t.Context())
	w.peers.Set(&workerv1.Peer{WorkerId: 2, DataAddress: "host:1"})
	w.ops[1] = newOp(&millracev1.Op{Kind: millracev1.OpKind_OP_KIND_NATIVE, Name: "bench.noop"}, nil)
	w.assign(&workerv1.Assignment{TaskId: 1, Attempt: 1, OpId: 1, Inputs: []*workerv1.Input{{TaskId: 9, Generation: 1, Bytes: 1 << 30, Holders: []uint32{2}}}})
	w.next(t, "run with the first lease", func() bool { return len(slots.started) == 1 })
	full, err := room.ReserveIdle(ledger.Holder{Kind: ledger.HolderTask, ID: 7}, []uint64{900 << 10})
	if err != nil {
		t.Fatal(err)
	}
	slots.started[0].NoRoom = []uint64{500 << 10}
	w.handle(slots.started[:1])
	if len(path.open) != 0 {
		t.Errorf("while the attempt waits for memory, it keeps leases on %v", path.open)
	}
	room.Release(full)
	w.next(t, "run with the second lease", func() bool { return len(slots.started) == 2 })
	if in := slots.started[1].Call.Inputs[0]; len(in.Frames) != 1 || !path.open[in.Frames[0].Offset] {
		t.Errorf("it reads %v; leased are %v", in.Frames, path.open)
	}
}

// processes are executors that only keep what they were told to start.
type processes struct {
	Executors
	started []*executor.Run
}

func (*processes) Kinds() []string { return []string{"reads"} }

func (*processes) Segments(string) (known, can bool) { return true, true }

func (p *processes) Start(_ string, _ int, r *executor.Run) { p.started = append(p.started, r) }

// When a worker stops, it ends the leases that come too late, but no lease of a process that may
// still read.
func TestLeasesThatAreLeftWhenAWorkerStops(t *testing.T) {
	slots, room, kinds := new(handSlots), workertest.NewStore(t, 1<<20), new(processes)
	path := &moving{asked: 1, space: room.Space(), open: make(map[uint64]bool)}
	w := New(Config{
		Registration: &workerv1.Registration{Slots: 1}, Sessions: SessionsBy(nil), Native: slots, Executors: kinds, Store: room, Path: path,
		Log: slog.New(slog.DiscardHandler), BorrowWait: workertest.EventTimeout,
	})
	w.peers.Begin(t.Context())
	w.peers.Set(&workerv1.Peer{WorkerId: 2, DataAddress: "host:1"})
	w.ops[1] = newOp(&millracev1.Op{Kind: millracev1.OpKind_OP_KIND_EXEC, Name: "reads/x"}, w.executors)
	assign := func(task uint64) {
		w.assign(&workerv1.Assignment{TaskId: task, Attempt: 1, OpId: 1, Inputs: []*workerv1.Input{{TaskId: 9, Generation: 1, Bytes: 1 << 20, Holders: []uint32{2}}}})
	}
	assign(1)
	w.next(t, "run with a lease", func() bool { return len(kinds.started) == 1 })
	assign(2)
	w.peers.Wait() // the answer is in the inbox
	if len(path.open) != 2 {
		t.Fatalf("leased are %v", path.open)
	}
	w.endLeft()
	if len(path.open) != 1 {
		t.Errorf("of a lease that a process uses and one that came too late, %d are left", len(path.open))
	}
	w.EndLoans()
	if len(path.open) != 0 {
		t.Errorf("all processes have ended, and leased are %v", path.open)
	}
}
