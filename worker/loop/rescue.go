package loop

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/memory/ledger"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/worker/store"
)

const (
	// rescueWait is the longest time that a rescue waits for memory in vain, for all its objects
	// together: the scheduler does not wait much longer.
	rescueWait = time.Second
	// rescueLimit ends a rescue that hangs, long after the scheduler has given it up.
	rescueLimit = 30 * time.Second
)

// rescued is posted when a rescue has ended, and for failures before its end.
type rescued struct {
	peer    ids.WorkerID
	objects []ledger.ObjectID
	// failed are the objects of these that are not here, because of reason.
	failed []ledger.ObjectID
	reason string
}

// unmapped is posted when the memory of a dead peer is no longer mapped here.
type unmapped struct{ peer ids.WorkerID }

// Unmapped records that a peer's memory is no longer mapped here. The scheduler is told only if the
// peer is dead.
func (w *Worker) Unmapped(at transfer.Peer, dead bool) {
	if dead {
		w.post(unmapped{at.Worker})
	}
}

// rescue copies objects out of the memory of a dead peer that was their only holder. Objects that
// are being copied already are skipped: the earlier rescue reports them.
func (w *Worker) rescue(order *workerv1.Rescue) {
	peer := transfer.Peer{Worker: ids.WorkerID(order.GetWorkerId()), Name: order.GetName(), Address: order.GetDataAddress()}
	r := &rescuing{worker: w, peer: peer.Worker}
	var refs []transfer.Ref
	for _, pb := range order.GetObjects() {
		id := ledger.ObjectID{Task: ids.TaskID(pb.GetTaskId()), Generation: ids.Attempt(pb.GetGeneration())}
		if o, here := w.config.Store.Lookup(id); here {
			w.outbox.object(objectHere(o.ID, o.Bytes()))
			continue
		}
		if !w.rescuing[id] {
			w.rescuing[id] = true
			r.ids = append(r.ids, id)
			refs = append(refs, transfer.Ref{Task: id.Task, Generation: id.Generation})
		}
	}
	if len(refs) == 0 {
		return
	}
	r.prepare()
	incarnation, err := uuid.Parse(order.GetIncarnation())
	path := w.peers.Capabilities().Rescue
	w.peers.Go(func(ctx context.Context) {
		began := time.Now()
		switch {
		case err != nil:
			err = fmt.Errorf("incarnation %q: %w", order.GetIncarnation(), err)
		case path == nil:
			err = errors.New("peers' memory is not mapped by the paths of this worker")
		default:
			limited, cancel := context.WithTimeoutCause(ctx, rescueLimit, transfer.ErrStalled)
			defer cancel()
			err = path.Rescue(limited, peer, incarnation, refs, r)
		}
		w.post(r.end(err))
		w.log.Info("a rescue from the memory of a dead peer has ended", "peer", peer.String(), "copied", r.copied, "bytes", r.bytes,
			"failed", len(refs)-r.copied, "took", time.Since(began).Round(time.Microsecond))
	})
}

// rescueEnded reports the objects that could not be copied to the scheduler.
func (w *Worker) rescueEnded(x rescued) {
	for _, id := range x.objects {
		delete(w.rescuing, id)
	}
	if len(x.failed) == 0 {
		return
	}
	report := &workerv1.RescueReport{WorkerId: uint32(x.peer), Reason: x.reason}
	for _, id := range x.failed {
		report.Failed = append(report.Failed, &workerv1.Replica{TaskId: uint64(id.Task), Generation: uint32(id.Generation)})
	}
	w.outbox.rescue(report)
}

func objectHere(id ledger.ObjectID, bytes uint64) *workerv1.ObjectReport {
	return &workerv1.ObjectReport{Replica: &workerv1.Replica{TaskId: uint64(id.Task), Generation: uint32(id.Generation), Bytes: bytes}, Event: workerv1.ObjectEvent_OBJECT_EVENT_GAINED}
}

// rescuing is the sink of a rescue. One goroutine uses it.
type rescuing struct {
	worker       *Worker
	ids          []ledger.ObjectID
	reservations []ledger.ReservationID
	heads        []transfer.Head
	here         []bool
	copied       int
	bytes        uint64
	// reason is the error of the first object that failed.
	reason string
	// peer is the dead worker. failed are objects that could not be copied and were not reported to
	// the scheduler yet. told marks objects that were added to failed at any time, by index.
	peer   ids.WorkerID
	failed []ledger.ObjectID
	told   []bool
	// waited is the total time that was spent waiting for memory in vain.
	waited time.Duration
}

var _ transfer.Sink = (*rescuing)(nil)

// prepare allocates the lists for the objects in ids.
func (r *rescuing) prepare() {
	n := len(r.ids)
	r.reservations, r.heads, r.here, r.told = make([]ledger.ReservationID, n), make([]transfer.Head, n), make([]bool, n), make([]bool, n)
}

// Capabilities is part of transfer.Sink: the sink has no optional ability.
func (*rescuing) Capabilities() transfer.SinkCapabilities { return transfer.SinkCapabilities{} }

// Place is part of transfer.Sink. Each object has its own reservation, so that objects without room
// cost the others only a wait, and a short one: memory that others wait for, or that runs use, may
// not become free for long.
func (r *rescuing) Place(ctx context.Context, index int, head transfer.Head) ([]transfer.Region, error) {
	id, s := r.ids[index], r.worker.config.Store
	r.heads[index] = head
	if len(head.FrameBytes) == 0 {
		return nil, nil
	}
	r.report()
	began, wait := time.Now(), max(rescueWait-r.waited, 0)
	limited, cancel := context.WithTimeoutCause(ctx, wait, fmt.Errorf("none was free within %v: %w", rescueWait, ledger.ErrNoRoom))
	reservation, err := s.ReserveWait(limited, store.TaskHolder(id.Task), head.FrameBytes, wait)
	cancel()
	if err != nil {
		r.waited += time.Since(began)
		return nil, fmt.Errorf("no room for the object: %w", err)
	}
	r.reservations[index] = reservation
	frames, err := s.Allocate(reservation, id, head.FrameBytes...)
	if err != nil {
		return nil, err
	}
	return s.Regions(frames), nil
}

// Done is part of transfer.Sink.
func (r *rescuing) Done(index int, err error) {
	id, s := r.ids[index], r.worker.config.Store
	if err == nil {
		if head := &r.heads[index]; len(head.FrameBytes) == 0 {
			err = s.PutSmall(id, head.Header)
		} else {
			err = s.Seal(id, head.Header)
		}
	}
	s.Release(r.reservations[index])
	r.reservations[index] = 0
	o, here := s.Lookup(id)
	if !here { // A fetch that was active when the peer died may have brought it.
		r.fail(fmt.Errorf("object %s: %w", id, err))
		r.failed, r.told[index] = append(r.failed, id), true
		return
	}
	r.here[index] = true
	r.copied++
	r.bytes += o.Bytes()
	r.worker.post(gained{report: objectHere(id, o.Bytes())})
}

func (r *rescuing) fail(err error) {
	if r.reason == "" {
		r.reason = err.Error()
	}
}

// report tells the scheduler which objects could not be copied so far, so that it can ask other
// workers or recompute them while the rest is copied.
func (r *rescuing) report() {
	if len(r.failed) > 0 {
		r.worker.post(rescued{peer: r.peer, objects: r.failed, failed: r.failed, reason: r.reason})
		r.failed = nil
	}
}

// end sums up a rescue. err, if not nil, is the error of all objects that were not handled.
func (r *rescuing) end(err error) rescued {
	if err != nil {
		r.fail(err)
	}
	x := rescued{peer: r.peer, objects: r.failed, failed: slices.Clone(r.failed)}
	for i, id := range r.ids {
		r.worker.config.Store.Release(r.reservations[i])
		if r.told[i] {
			continue
		}
		x.objects = append(x.objects, id)
		if !r.here[i] {
			x.failed = append(x.failed, id)
		}
	}
	x.reason = r.reason
	return x
}

// keep makes objects stay that were copied from other workers, and tells the scheduler which of
// them are here.
func (w *Worker) keep(keeps []*workerv1.Replica) {
	for _, pb := range keeps {
		id := ledger.ObjectID{Task: ids.TaskID(pb.GetTaskId()), Generation: ids.Attempt(pb.GetGeneration())}
		if o, here := w.config.Store.Keep(id); here {
			report := objectHere(id, o.Bytes())
			report.Event = workerv1.ObjectEvent_OBJECT_EVENT_KEPT
			w.outbox.object(report)
			continue
		}
		w.outbox.object(&workerv1.ObjectReport{Replica: pb, Event: workerv1.ObjectEvent_OBJECT_EVENT_LOST})
	}
}
