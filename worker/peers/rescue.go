package peers

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
	"github.com/millrace/millrace/worker/lifecycle"
	"github.com/millrace/millrace/worker/store"
)

// Rescued says that a rescue has ended, or that objects have failed before its end.
type Rescued struct {
	peer    ids.WorkerID
	objects []ledger.ObjectID
	// failed are the objects of these that are not here, because of reason.
	failed []ledger.ObjectID
	reason string
}

// Gained says that an object was rescued from a dead peer and was here at that moment.
type Gained struct {
	Object ledger.ObjectID
	Dead   ids.WorkerID
}

func (Rescued) event() {}
func (Gained) event()  {}

// Rescue copies objects out of the memory of a dead peer that was their only holder. Objects that
// are being copied already are skipped: the earlier rescue reports them. Rescue returns the objects
// that are here already.
func (p *Peers) Rescue(order *workerv1.Rescue) (here []Gained) {
	peer := transfer.Peer{Worker: ids.WorkerID(order.GetWorkerId()), Name: order.GetName(), Address: order.GetDataAddress()}
	r := &rescuing{peers: p, peer: peer.Worker}
	var refs []transfer.Ref
	for _, pb := range order.GetObjects() {
		id := ledger.ObjectID{Task: ids.TaskID(pb.GetTaskId()), Generation: ids.Attempt(pb.GetGeneration())}
		if _, has := p.config.Store.Lookup(id); has {
			here = append(here, Gained{id, peer.Worker})
			continue
		}
		if !p.rescuing[id] {
			p.rescuing[id] = true
			r.objects = append(r.objects, rescue{id: id})
			refs = append(refs, transfer.Ref{Task: id.Task, Generation: id.Generation})
		}
	}
	if len(refs) == 0 {
		return here
	}
	incarnation, err := uuid.Parse(order.GetIncarnation())
	path := p.Capabilities().Rescue
	p.Go(func(ctx context.Context) {
		began := time.Now()
		switch {
		case err != nil:
			err = fmt.Errorf("incarnation %q: %w", order.GetIncarnation(), err)
		case path == nil:
			err = errors.New("peers' memory is not mapped by the paths of this worker")
		default:
			limited, cancel := context.WithTimeoutCause(ctx, lifecycle.RescueLimit, transfer.ErrStalled)
			defer cancel()
			err = path.Rescue(limited, peer, incarnation, refs, r)
		}
		p.config.Tell(r.end(err), false)
		p.config.Log.Info("a rescue from the memory of a dead peer has ended", "peer", peer.String(), "copied", r.copied, "bytes", r.bytes,
			"failed", len(refs)-r.copied, "took", time.Since(began).Round(time.Microsecond))
	})
	return here
}

// Rescuing says whether objects are being copied out of the memory of dead peers.
func (p *Peers) Rescuing() bool { return len(p.rescuing) > 0 }

// Ended records the end of a rescue, and returns the report on the objects that could not be
// copied; nil if there are none.
func (p *Peers) Ended(x Rescued) *workerv1.RescueReport {
	for _, id := range x.objects {
		delete(p.rescuing, id)
	}
	if len(x.failed) == 0 {
		return nil
	}
	report := &workerv1.RescueReport{WorkerId: uint32(x.peer), Reason: x.reason}
	for _, id := range x.failed {
		report.Failed = append(report.Failed, &workerv1.Replica{TaskId: uint64(id.Task), Generation: uint32(id.Generation)})
	}
	return report
}

// rescue is one object of a rescue. told: it was added to rescuing.failed.
type rescue struct {
	id          ledger.ObjectID
	reservation ledger.ReservationID
	head        transfer.Head
	here, told  bool
}

// rescuing is the sink of a rescue. One goroutine uses it.
type rescuing struct {
	peers   *Peers
	objects []rescue
	copied  int
	bytes   uint64
	// reason is the error of the first object that failed.
	reason string
	// peer is the dead worker. failed are objects that could not be copied and were not reported to
	// the scheduler yet.
	peer   ids.WorkerID
	failed []ledger.ObjectID
	// waited is the total time that was spent waiting for memory in vain.
	waited time.Duration
}

var _ transfer.Sink = (*rescuing)(nil)

// Capabilities is part of transfer.Sink: the sink has no optional ability.
func (*rescuing) Capabilities() transfer.SinkCapabilities { return transfer.SinkCapabilities{} }

// Place is part of transfer.Sink. Each object has its own reservation, so that objects without room
// cost the others only a wait, and a short one: memory that others wait for, or that runs use, may
// not become free for long.
func (r *rescuing) Place(ctx context.Context, index int, head transfer.Head) ([]transfer.Region, error) {
	o, s := &r.objects[index], r.peers.config.Store
	o.head = head
	if len(head.FrameBytes) == 0 {
		return nil, nil
	}
	r.report()
	began, wait := time.Now(), max(lifecycle.RescueWait-r.waited, 0)
	limited, cancel := context.WithTimeoutCause(ctx, wait, fmt.Errorf("none was free within %v: %w", lifecycle.RescueWait, ledger.ErrNoRoom))
	reservation, err := s.ReserveWait(limited, store.TaskHolder(o.id.Task), head.FrameBytes, wait)
	cancel()
	if err != nil {
		r.waited += time.Since(began)
		return nil, fmt.Errorf("%w: %w", errNoRoom, err)
	}
	o.reservation = reservation
	frames, err := s.Allocate(reservation, o.id, head.FrameBytes...)
	if err != nil {
		if errors.Is(err, ledger.ErrDuplicate) {
			s.Restore(o.id) // if it was dropped, and a run still reads it, Done finds it
		}
		return nil, err
	}
	return s.Regions(frames), nil
}

// Done is part of transfer.Sink.
func (r *rescuing) Done(index int, err error) {
	o, s := &r.objects[index], r.peers.config.Store
	if err == nil {
		if len(o.head.FrameBytes) == 0 {
			err = s.PutSmall(o.id, o.head.Header)
		} else {
			err = s.Seal(o.id, o.head.Header)
		}
	}
	s.Release(o.reservation)
	o.reservation = 0
	stored, here := s.Lookup(o.id)
	if !here { // A fetch that was active when the peer died may have brought it.
		r.fail(fmt.Errorf("object %s: %w", o.id, err))
		r.failed, o.told = append(r.failed, o.id), true
		return
	}
	o.here = true
	r.copied++
	r.bytes += stored.Bytes()
	r.peers.config.Tell(Gained{o.id, r.peer}, false)
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
		r.peers.config.Tell(Rescued{peer: r.peer, objects: r.failed, failed: r.failed, reason: r.reason}, false)
		r.failed = nil
	}
}

// end sums up a rescue. err, if not nil, is the error of all objects that were not handled.
func (r *rescuing) end(err error) Rescued {
	if err != nil {
		r.fail(err)
	}
	x := Rescued{peer: r.peer, objects: r.failed, failed: slices.Clone(r.failed)}
	for i := range r.objects {
		o := &r.objects[i]
		r.peers.config.Store.Release(o.reservation)
		if o.told {
			continue
		}
		x.objects = append(x.objects, o.id)
		if !o.here {
			x.failed = append(x.failed, o.id)
		}
	}
	x.reason = r.reason
	return x
}
