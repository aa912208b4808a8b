// Package writes is an Adapter: it takes the objects that clients write to a worker, until the
// scheduler accepts or refuses them. Clients' calls create and commit objects; the owner of the
// worker's loop calls all other methods, which do not wait.
package writes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/internal/edge"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/ledger"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/worker/store"
	"github.com/millrace/millrace/worker/value"
)

// Config is fixed for the life of a worker.
type Config struct {
	Store *store.Store
	// MemoryWait is how long an object waits for memory.
	MemoryWait time.Duration
	// Tell passes an object that is here completely to the owner, who calls Committed.
	Tell func(*Write)
	Log  *slog.Logger
}

// Writes are the objects that clients write to a worker. It is a transfer.Receiver.
type Writes struct {
	config Config
	// life is the life of the scheduler, 0 before the first session or if the scheduler has no such
	// number. inlineBytes is the size of the largest object that travels inline.
	life        atomic.Uint64
	inlineBytes atomic.Uint32

	// The fields below belong to the owner. open are the objects that the scheduler has not
	// accepted yet.
	open       map[ledger.ObjectID]*Write
	registered bool
}

// New returns Writes without objects.
func New(c Config) *Writes { return &Writes{config: c, open: make(map[ledger.ObjectID]*Write)} }

// Write is an object that a client is writing, or has written. It is a transfer.Incoming.
type Write struct {
	ID ledger.ObjectID
	// life is the life of the scheduler when the write was begun.
	life        uint64
	writes      *Writes
	head        transfer.Head
	reservation ledger.ReservationID
	regions     []transfer.Region
	report      *workerv1.ObjectReport
	// answer has room for one value: nil if the object was accepted, otherwise the refusal.
	answer chan error
}

// Create is part of transfer.Receiver.
func (w *Writes) Create(ctx context.Context, head transfer.Head) (transfer.Incoming, error) {
	x := &Write{
		ID: ledger.ObjectID{Task: head.Ref.Task, Generation: max(head.Ref.Generation, 1)}, life: w.life.Load(), writes: w, head: head, answer: make(chan error, 1),
	}
	if fault := value.Check(head.Header, head.FrameBytes); fault != nil {
		return nil, edge.InvalidField("head."+fault.Field, fault.Message)
	}
	s := w.config.Store
	if s.Here(x.ID) {
		return nil, existsAlready(x.ID)
	}
	if len(head.FrameBytes) == 0 {
		return x, nil
	}
	reservation, err := s.ReserveWait(ctx, ledger.Holder{Kind: ledger.HolderClient, ID: uint64(head.Ref.Task)}, head.FrameBytes, w.config.MemoryWait)
	if err != nil {
		return nil, noRoom(x.ID, head.Bytes(), err)
	}
	x.reservation = reservation
	frames, err := s.Allocate(reservation, x.ID, head.FrameBytes...)
	if err != nil {
		s.Release(reservation)
		if errors.Is(err, ledger.ErrDuplicate) {
			return nil, existsAlready(x.ID)
		}
		return nil, noRoom(x.ID, head.Bytes(), err)
	}
	x.regions = s.Regions(frames)
	return x, nil
}

// Regions is part of transfer.Incoming.
func (x *Write) Regions() []transfer.Region { return x.regions }

// Abort is part of transfer.Incoming.
func (x *Write) Abort() { x.writes.config.Store.Release(x.reservation) }

// Commit is part of transfer.Incoming. It returns when the scheduler has accepted or refused the
// object; until it is accepted, readers cannot find the object.
func (x *Write) Commit(ctx context.Context) error {
	w, s := x.writes, x.writes.config.Store
	bytes := x.head.Bytes() + uint64(len(x.head.Header))
	x.report = &workerv1.ObjectReport{Replica: &workerv1.Replica{
		TaskId: uint64(x.ID.Task), Generation: uint32(x.ID.Generation), Bytes: bytes,
	}, Event: workerv1.ObjectEvent_OBJECT_EVENT_WRITTEN}
	if bytes <= uint64(w.inlineBytes.Load()) {
		// The inline value is made before the object is sealed: a sealed object may be moved to
		// another tier.
		x.report.InlineResult = x.inline()
	}
	if x.reservation == 0 {
		if err := s.PutWritten(x.ID, x.head.Header); errors.Is(err, ledger.ErrDuplicate) {
			return existsAlready(x.ID)
		} else if err != nil {
			return noRoom(x.ID, bytes, err)
		}
	} else {
		err := s.SealWritten(x.ID, x.head.Header)
		s.Release(x.reservation)
		if err != nil {
			return status.Errorf(codes.Internal, "object %s: %v", x.ID, err)
		}
	}
	w.config.Tell(x)
	select {
	case err := <-x.answer:
		return err
	case <-ctx.Done():
		return fmt.Errorf("object %s is stored, and the scheduler did not accept it in time: %w", x.ID, context.Cause(ctx))
	}
}

// inline returns the object as one inline value. It returns nil if that is not possible; then
// readers fetch the object.
func (x *Write) inline() []byte {
	frames := make([]memory.Frame, len(x.regions))
	for i, r := range x.regions {
		frames[i] = r.Frame
	}
	copies, err := x.writes.config.Store.Copies(frames)
	if err != nil {
		x.writes.config.Log.Warn("a small object does not travel inline", "object", x.ID.String(), "error", err)
		return nil
	}
	inline, _ := value.Inline(x.head.Header, copies)
	return inline
}

// Committed takes an object that is here, and returns the report on it. It refuses the object at
// once, and returns nil, if it belongs to an earlier life of the scheduler or to a task that runs
// here.
func (w *Writes) Committed(x *Write, renewing, runs bool) *workerv1.ObjectReport {
	var refusal error
	switch {
	case renewing || x.life != 0 && x.life != w.life.Load():
		refusal = refusalOf(x.ID, otherLife, otherLifeWords)
	case runs:
		refusal = refusalOf(x.ID, noDataTask, "it is the result of a task that runs here, and is for that task to make: only DATA tasks are written to")
	}
	if refusal != nil {
		w.config.Store.Drop(x.ID)
		x.answer <- refusal
		return nil
	}
	w.open[x.ID] = x
	w.acceptUnasked()
	return x.report
}

// Registered records that a session begins, with the life of the scheduler and the size of the
// largest object that travels inline.
func (w *Writes) Registered(life uint64, inlineBytes uint32) {
	w.life.Store(life)
	w.inlineBytes.Store(inlineBytes)
	w.registered = true
	w.acceptUnasked()
}

// acceptUnasked accepts all objects if the scheduler sends no acceptances. A worker that is not
// registered yet does not know that, so its clients wait.
func (w *Writes) acceptUnasked() {
	if !w.registered || w.life.Load() != 0 {
		return
	}
	// order-free: each is answered independently.
	for id := range w.open {
		w.Accept(id)
	}
}

// Accept makes an object visible to readers.
func (w *Writes) Accept(id ledger.ObjectID) {
	w.config.Store.Accept(id)
	w.answer(id, nil)
}

// Released refuses an object that the scheduler has released instead of accepting it. The caller
// drops the object.
func (w *Writes) Released(id ledger.ObjectID) {
	if w.open[id] != nil {
		w.answer(id, refusalOf(id, noDataTask, "it is not the first result of a DATA task that the scheduler waits for"))
	}
}

// Refuse refuses all objects: the scheduler was started anew.
func (w *Writes) Refuse() {
	// order-free: each is answered independently.
	for id := range w.open {
		w.answer(id, refusalOf(id, otherLife, otherLifeWords))
	}
}

// Renewed sets the life of the scheduler that follows an earlier one.
func (w *Writes) Renewed(life uint64) { w.life.Store(life) }

func (w *Writes) answer(id ledger.ObjectID, refusal error) {
	if x := w.open[id]; x != nil {
		delete(w.open, id)
		x.answer <- refusal
	}
}

// Reports returns the reports on all objects that the scheduler has not accepted yet: no inventory
// has them.
func (w *Writes) Reports() []*workerv1.ObjectReport {
	reports := make([]*workerv1.ObjectReport, 0, len(w.open))
	// order-free: they are sorted.
	for _, x := range w.open {
		reports = append(reports, x.report)
	}
	slices.SortFunc(reports, func(a, b *workerv1.ObjectReport) int {
		return cmp.Or(cmp.Compare(a.GetReplica().GetTaskId(), b.GetReplica().GetTaskId()), cmp.Compare(a.GetReplica().GetGeneration(), b.GetReplica().GetGeneration()))
	})
	return reports
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
