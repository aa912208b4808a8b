package loop

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/millrace/millrace/memory/ledger"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/worker/lifecycle"
)

// errHeld: an object of a fetch is here already.
var errHeld = errors.New("object is here already")

// errNoRoom: the place that was set aside does not suffice, and nothing is free.
var errNoRoom = errors.New("no room for the object")

// fetching is one stream from a peer: the sink of its path. It is used by one
// goroutine.
type fetching struct {
	worker       *Worker
	id           lifecycle.FetchID
	objects      []lifecycle.FetchObject
	reservations []ledger.ReservationID
	heads        []transfer.Head
	// forwarded are those that other workers can read while they arrive.
	forwarded []ledger.ObjectID
	// open are the objects without a word yet.
	open int
	// times are what is told of it afterwards. The owner has them once no object is open.
	times fetchTimes
}

var _ transfer.Forwarder = (*fetching)(nil)

// relayStep is how often those who read an object while it arrives here are told how far
// it has come: the last of a chain of n is later by so many bytes for each.
const relayStep = 16 << 20

func (w *Worker) startFetch(e lifecycle.StartFetch) {
	f := &fetching{worker: w, id: e.Fetch, objects: e.Objects, heads: make([]transfer.Head, len(e.Objects)), open: len(e.Objects)}
	f.times = fetchTimes{first: e.Objects[0].Object, peer: e.Peer, wanted: time.Now()}
	refs := make([]transfer.Ref, len(e.Objects))
	for i, o := range e.Objects {
		refs[i] = transfer.Ref{Task: o.Object.Task, Generation: o.Object.Generation}
		f.reservations = append(f.reservations, w.reservations[o.Reservation])
	}
	peer := w.peers[e.Peer]
	if peer.Address == "" {
		w.post(lifecycle.FetchEnded{Fetch: e.Fetch, Message: fmt.Sprintf("worker %s is gone, or was never named", e.Peer)})
		return
	}
	ctx := w.fetchCtx
	w.fetching.Add(1)
	go func() {
		defer w.fetching.Done()
		f.times.begun = time.Since(f.times.wanted)
		err := f.run(ctx, e.Follow, peer, refs)
		ended := lifecycle.FetchEnded{Fetch: e.Fetch}
		if err != nil {
			ended.Message = err.Error()
			switch {
			case ctx.Err() != nil:
			case e.Follow: // a holder is asked now
				w.log.Info("objects do not come by way of a worker that should get them as well", "peer", peer.String(), "objects", len(refs), "error", err)
			default:
				w.log.Warn("fetch failed", "peer", peer.String(), "objects", len(refs), "error", err)
			}
		}
		w.drive(ended)
	}()
}

// run fetches from a peer, or follows one, and returns when nobody is told of what did
// not come.
func (f *fetching) run(ctx context.Context, follow bool, peer transfer.Peer, refs []transfer.Ref) (err error) {
	path := f.worker.config.Path
	if behind, able := path.(transfer.Follower); !follow {
		err = path.Fetch(ctx, peer, refs, f)
	} else if able {
		err = behind.Follow(ctx, peer, refs, f)
	} else {
		err = fmt.Errorf("behind %s: %w", peer, transfer.ErrNoWay)
	}
	for _, id := range f.forwarded {
		f.worker.config.Store.Conceal(id)
	}
	return err
}

// Forward is part of transfer.Forwarder.
func (f *fetching) Forward(index int) (arrived func(bytes uint64), step uint64) {
	id, s := f.object(index), f.worker.config.Store
	if !s.ShowArriving(id, f.heads[index].Header) {
		return nil, 0
	}
	f.forwarded = append(f.forwarded, id)
	if f.objects[index].Relayed {
		step = relayStep
	}
	return func(bytes uint64) { s.Arrived(id, bytes) }, step
}

// Withdraw is part of transfer.Forwarder.
func (f *fetching) Withdraw(index int) { f.worker.config.Store.Conceal(f.object(index)) }

// Place is part of transfer.Sink. It does not wait, as the memory was set aside,
// unless the object is larger than was said.
func (f *fetching) Place(ctx context.Context, index int, head transfer.Head) ([]transfer.Region, error) {
	f.heads[index] = head
	if f.times.placed == 0 {
		f.times.placed = time.Since(f.times.wanted)
	}
	if len(head.FrameBytes) == 0 {
		return nil, nil
	}
	s := f.worker.config.Store
	// Another peer may have gone away in its middle.
	s.Rebuild(f.reservations[index], f.object(index))
	frames, err := s.Allocate(f.reservations[index], f.object(index), head.FrameBytes...)
	if errors.Is(err, ledger.ErrOutgrown) {
		if err = s.Grow(ctx, f.reservations[index], holder(f.object(index).Task), head.FrameBytes, f.worker.config.MemoryWait); err == nil {
			frames, err = s.Allocate(f.reservations[index], f.object(index), head.FrameBytes...)
		}
	}
	switch {
	case err == nil:
		return s.Regions(frames), nil
	case errors.Is(err, ledger.ErrDuplicate):
		return nil, errHeld
	default:
		return nil, fmt.Errorf("%w: %w", errNoRoom, err)
	}
}

func (f *fetching) object(index int) ledger.ObjectID {
	return ledger.ObjectID(f.objects[index].Object)
}

// Done is part of transfer.Sink.
func (f *fetching) Done(index int, err error) {
	id := f.object(index)
	s := f.worker.config.Store
	if err == nil {
		if len(f.heads[index].FrameBytes) == 0 {
			s.PutSmall(id, f.heads[index].Header)
		} else {
			if err = s.Seal(id, f.heads[index].Header); err == nil {
				s.Copied(id)
			}
		}
	}
	if err == nil || errors.Is(err, errHeld) {
		if o, ok := s.Lookup(id); ok {
			f.times.objects++
			f.times.bytes += o.Bytes()
			f.tell(lifecycle.InputFetched{Fetch: f.id, Object: lifecycle.Object(id), Bytes: o.Bytes()})
			return
		}
		err = fmt.Errorf("object %s was dropped while it arrived", id)
	}
	s.Conceal(id)
	f.tell(lifecycle.FetchFailed{
		Fetch: f.id, Object: lifecycle.Object(id), Message: err.Error(),
		Missing: errors.Is(err, transfer.ErrNotHere), NoRoom: errors.Is(err, errNoRoom),
	})
}

// tell hands the owner word of an object. After the last one there is nothing to do here but to be the owner: what waits
// for it begins without another goroutine being woken first.
func (f *fetching) tell(e lifecycle.Event) {
	if f.open--; f.open > 0 {
		f.worker.post(e)
		return
	}
	f.times.arrived = time.Since(f.times.wanted)
	f.worker.drive(lastFetched{e, &f.times})
}
