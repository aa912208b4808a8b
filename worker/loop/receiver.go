package loop

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/internal/edge"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/ledger"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/worker/value"
)

// Receiver returns the interface through which clients write objects to this worker.
func (w *Worker) Receiver() transfer.Receiver { return receiver{w} }

type receiver struct{ worker *Worker }

// Create is part of transfer.Receiver.
func (r receiver) Create(ctx context.Context, head transfer.Head) (transfer.Incoming, error) {
	w := r.worker
	in := &written{worker: w, life: w.life.Load(), head: head, id: ledger.ObjectID{Task: head.Ref.Task, Generation: max(head.Ref.Generation, 1)}}
	if fault := value.Check(head.Header, head.FrameBytes); fault != nil {
		return nil, edge.InvalidField("head."+fault.Field, fault.Message)
	}
	if w.config.Store.Here(in.id) {
		return nil, existsAlready(in.id)
	}
	if len(head.FrameBytes) == 0 {
		return in, nil
	}
	reservation, err := w.config.Store.ReserveWait(ctx, ledger.Holder{Kind: ledger.HolderClient, ID: uint64(head.Ref.Task)}, head.FrameBytes, w.config.MemoryWait)
	if err != nil {
		return nil, noRoom(in.id, head.Bytes(), err)
	}
	in.reservation = reservation
	frames, err := w.config.Store.Allocate(reservation, in.id, head.FrameBytes...)
	if err != nil {
		w.config.Store.Release(reservation)
		if errors.Is(err, ledger.ErrDuplicate) {
			return nil, existsAlready(in.id)
		}
		return nil, noRoom(in.id, head.Bytes(), err)
	}
	in.regions = w.config.Store.Regions(frames)
	return in, nil
}

// written is an object that a client is writing.
type written struct {
	worker *Worker
	// life is the life of the scheduler when the write was begun, 0 before the first session.
	life        uint64
	head        transfer.Head
	id          ledger.ObjectID
	reservation ledger.ReservationID
	regions     []transfer.Region
}

// Regions is part of transfer.Incoming.
func (in *written) Regions() []transfer.Region { return in.regions }

// Abort is part of transfer.Incoming.
func (in *written) Abort() { in.worker.config.Store.Release(in.reservation) }

// Commit is part of transfer.Incoming. It returns when the scheduler has accepted or refused the
// object; until it is accepted, readers cannot find the object.
func (in *written) Commit(ctx context.Context) error {
	w := in.worker
	bytes := in.head.Bytes() + uint64(len(in.head.Header))
	x := &writing{id: in.id, life: in.life, answer: make(chan error, 1), report: &workerv1.ObjectReport{Replica: &workerv1.Replica{
		TaskId: uint64(in.id.Task), Generation: uint32(in.id.Generation), Bytes: bytes,
	}, Event: workerv1.ObjectEvent_OBJECT_EVENT_WRITTEN}}
	if bytes <= uint64(w.inlineBytes.Load()) {
		// The inline value is made before the object is sealed: a sealed object may be moved to
		// another tier.
		x.report.InlineResult = in.inline()
	}
	if in.reservation == 0 {
		if err := w.config.Store.PutWritten(in.id, in.head.Header); errors.Is(err, ledger.ErrDuplicate) {
			return existsAlready(in.id)
		} else if err != nil {
			return noRoom(in.id, bytes, err)
		}
	} else {
		err := w.config.Store.SealWritten(in.id, in.head.Header)
		w.config.Store.Release(in.reservation)
		if err != nil {
			return status.Errorf(codes.Internal, "object %s: %v", in.id, err)
		}
	}
	w.post(x)
	select {
	case err := <-x.answer:
		return err
	case <-ctx.Done():
		return fmt.Errorf("object %s is stored, and the scheduler did not accept it in time: %w", in.id, context.Cause(ctx))
	}
}

// writing is an object that a client wrote and that the scheduler has not accepted yet.
type writing struct {
	id     ledger.ObjectID
	life   uint64
	report *workerv1.ObjectReport
	// answer has room for one value: nil if the object was accepted, otherwise the refusal.
	answer chan error
}

// written reports an object that a client wrote to the scheduler. It refuses the object at once if
// it belongs to an earlier life of the scheduler or to a task that runs here.
func (w *Worker) written(x *writing) {
	var refusal error
	switch {
	case w.renewing != nil || x.life != 0 && x.life != w.life.Load():
		refusal = refusalOf(x.id, otherLife, otherLifeWords)
	case w.runs(x.id.Task):
		refusal = refusalOf(x.id, noDataTask, "it is the result of a task that runs here, and is for that task to make: only DATA tasks are written to")
	}
	if refusal != nil {
		w.config.Store.Drop(x.id)
		x.answer <- refusal
		return
	}
	w.outbox.object(x.report)
	w.writes[x.id] = x
	w.acceptUnasked()
}

// acceptUnasked accepts all objects that clients wrote if the scheduler sends no acceptances. A
// worker that is not registered yet does not know that, so its clients wait.
func (w *Worker) acceptUnasked() {
	if w.self.Load() == 0 || w.life.Load() != 0 {
		return
	}
	// order-free: each is answered independently.
	for id, x := range w.writes {
		delete(w.writes, id)
		w.config.Store.Accept(id)
		x.answer <- nil
	}
}

// runs says whether an attempt of a task was assigned to this worker.
func (w *Worker) runs(task ids.TaskID) bool {
	// order-free: it only matters whether there is one.
	for ref := range w.attempts {
		if ref.Task == task {
			return true
		}
	}
	return false
}

// accept makes objects that clients wrote visible to readers.
func (w *Worker) accept(accepted []*workerv1.Replica) {
	for _, pb := range accepted {
		id := ledger.ObjectID{Task: ids.TaskID(pb.GetTaskId()), Generation: ids.Attempt(pb.GetGeneration())}
		w.config.Store.Accept(id)
		if x := w.writes[id]; x != nil {
			delete(w.writes, id)
			x.answer <- nil
		}
	}
}

// refuse answers the client of an object that the scheduler has released instead of accepting it.
// The caller drops the object.
func (w *Worker) refuse(id ledger.ObjectID, reason, why string) {
	if x := w.writes[id]; x != nil {
		delete(w.writes, id)
		x.answer <- refusalOf(id, reason, why)
	}
}

// Reasons of refusals, in the API.
const (
	noDataTask     = "NOT_A_DATA_TASK"
	otherLife      = "SCHEDULER_RESTARTED"
	otherLifeWords = "the scheduler was started anew since it was begun; scatter it again"
)

func existsAlready(id ledger.ObjectID) error {
	return edge.Refusal(codes.AlreadyExists, "OBJECT_EXISTS", fmt.Sprintf("object %s is here already; an object is written once", id),
		map[string]string{"object": id.String()})
}

func noRoom(id ledger.ObjectID, bytes uint64, why error) error {
	return edge.Refusal(codes.ResourceExhausted, "OUT_OF_MEMORY", fmt.Sprintf("object %s of %d bytes: %v", id, bytes, why), map[string]string{"object": id.String()})
}

func refusalOf(id ledger.ObjectID, reason, why string) error {
	return edge.Refusal(codes.FailedPrecondition, reason, fmt.Sprintf("object %s was refused: %s", id, why), map[string]string{"object": id.String()})
}

// inline returns the object as one inline value. It returns nil if that is not possible; then
// readers fetch the object.
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
