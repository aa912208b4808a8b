package loop

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/ledger"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/worker/value"
)

// Receiver returns the worker as what clients write to.
func (w *Worker) Receiver() transfer.Receiver { return receiver{w} }

type receiver struct{ worker *Worker }

// Create is part of transfer.Receiver.
func (r receiver) Create(ctx context.Context, head transfer.Head) (transfer.Incoming, error) {
	w := r.worker
	in := &written{worker: w, head: head, id: ledger.ObjectID{Task: head.Ref.Task, Generation: max(head.Ref.Generation, 1)}}
	if _, held := w.config.Store.Lookup(in.id); held {
		return nil, status.Errorf(codes.AlreadyExists, "object %s is here already; an object is written once", in.id)
	}
	if len(head.FrameBytes) == 0 {
		return in, nil
	}
	reservation, err := w.config.Store.ReserveWait(ctx, ledger.Holder{Kind: ledger.HolderClient, ID: uint64(head.Ref.Task)}, head.FrameBytes, w.config.MemoryWait)
	if err != nil {
		return nil, status.Errorf(codes.ResourceExhausted, "object %s of %d bytes: %v", in.id, head.Bytes(), err)
	}
	in.reservation = reservation
	frames, err := w.config.Store.Allocate(reservation, in.id, head.FrameBytes...)
	if err != nil {
		w.config.Store.Release(reservation)
		code := codes.ResourceExhausted
		if errors.Is(err, ledger.ErrDuplicate) {
			code = codes.AlreadyExists
		}
		return nil, status.Errorf(code, "object %s: %v", in.id, err)
	}
	in.regions = w.config.Store.Regions(frames)
	return in, nil
}

// written is an object that a client is writing.
type written struct {
	worker      *Worker
	head        transfer.Head
	id          ledger.ObjectID
	reservation ledger.ReservationID
	regions     []transfer.Region
}

// Regions is part of transfer.Incoming.
func (in *written) Regions() []transfer.Region { return in.regions }

// Abort is part of transfer.Incoming.
func (in *written) Abort() { in.worker.config.Store.Release(in.reservation) }

// Commit is part of transfer.Incoming: it returns when the scheduler was told.
func (in *written) Commit(ctx context.Context) error {
	w := in.worker
	bytes := in.head.Bytes() + uint64(len(in.head.Header))
	report := &millracev1.ObjectReport{Replica: &millracev1.Replica{
		TaskId: uint64(in.id.Task), Generation: uint32(in.id.Generation), Bytes: bytes,
	}}
	if bytes <= uint64(w.inlineBytes.Load()) {
		// Before it is sealed: then it may leave for another tier.
		report.InlineResult = in.inline()
	}
	if in.reservation == 0 {
		w.config.Store.PutSmall(in.id, in.head.Header)
	} else {
		err := w.config.Store.Seal(in.id, in.head.Header)
		w.config.Store.Release(in.reservation)
		if err != nil {
			return status.Errorf(codes.Internal, "object %s: %v", in.id, err)
		}
	}
	told := make(chan struct{})
	w.post(gained{report, told})
	select {
	case <-told:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("object %s is stored, and the scheduler could not be told in time: %w", in.id, context.Cause(ctx))
	}
}

// inline returns the object as one value, nil if it cannot be: then it is fetched
// when it is wanted.
func (in *written) inline() []byte {
	frames := make([]memory.Frame, len(in.regions))
	for i, r := range in.regions {
		frames[i] = r.Frame
	}
	copies, err := in.worker.config.Store.Copies(frames)
	if err != nil {
		in.worker.config.Log.Warn("a small object does not travel inline", "object", in.id.String(), "error", err)
		return nil
	}
	inline, _ := value.Inline(in.head.Header, copies)
	return inline
}
