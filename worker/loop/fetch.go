package loop

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/ledger"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/worker/lifecycle"
	"github.com/millrace/millrace/worker/store"
)

// errHeld: an object of a fetch is here already.
var errHeld = errors.New("object is here already")

// errNoRoom: the place that was set aside does not suffice, and nothing is free.
var errNoRoom = errors.New("no room for the object")

// fetching is one stream from a peer: the sink of its path. It is used by one
// goroutine.
type fetching struct {
	worker       *Worker
	ctx          context.Context //nolint:containedctx // the owner's when it was ordered
	id           lifecycle.FetchID
	objects      []lifecycle.FetchObject
	reservations []ledger.ReservationID
	heads        []transfer.Head
	// forwarded are those that other workers can read while they arrive.
	forwarded []ledger.ObjectID
	// open are the objects without a word yet.
	open int
	// peer and refs are what is asked of whom; follow: it fetches the same itself.
	peer   transfer.Peer
	refs   []transfer.Ref
	follow bool
	// leave, if not nil, has another goroutine do what its own one does besides; wake says that the owner
	// has to be woken then. See receiving.
	leave func()
	wake  bool
	// shown: see show.
	shown bool
	// times are what is told of it afterwards. The owner has them once no object is open.
	times fetchTimes
}

var (
	_ transfer.Forwarder = (*fetching)(nil)
	_ transfer.Batcher   = (*fetching)(nil)
	_ transfer.Waiter    = (*fetching)(nil)
)

// relayStep is how often those who read an object while it arrives here are told how far
// it has come: the last of a chain of n is later by so many bytes for each.
const relayStep = 16 << 20

// takenObjects is how many objects a fetch has at most whose beginning keeps a goroutine from other things.
const takenObjects = 64

func (w *Worker) startFetch(e lifecycle.StartFetch) {
	f := &fetching{worker: w, ctx: w.fetchCtx, id: e.Fetch, objects: e.Objects, heads: make([]transfer.Head, len(e.Objects)), open: len(e.Objects), follow: e.Follow}
	f.times = fetchTimes{first: e.Objects[0].Object, peer: e.Peer, wanted: time.Now()}
	f.refs = make([]transfer.Ref, len(e.Objects))
	for i, o := range e.Objects {
		f.refs[i] = transfer.Ref{Task: o.Object.Task, Generation: o.Object.Generation}
		f.reservations = append(f.reservations, w.reservations[o.Reservation])
	}
	f.peer = w.peers[e.Peer]
	if f.peer.Address == "" {
		w.post(lifecycle.FetchEnded{Fetch: e.Fetch, Message: fmt.Sprintf("worker %s is gone, or was never named", e.Peer)})
		return
	}
	w.fetching.Add(1)
	w.going.Store(true)
	if w.takes && w.taken == nil && f.prompt() {
		w.taken = f
		return
	}
	go f.carryOut()
}

// prompt says whether to carry it out means, at first, to do little and to wait for nothing.
func (f *fetching) prompt() bool {
	path, able := f.worker.config.Path.(transfer.Prompt)
	return able && !f.follow && len(f.objects) <= takenObjects && path.Prompt(f.peer)
}

// briefWait is no longer than it takes until another goroutine does what this one is kept from.
const briefWait = 50 * time.Microsecond

// Waits is part of transfer.Waiter.
func (f *fetching) Waits(left time.Duration) {
	if leave := f.leave; leave != nil && left > briefWait {
		f.leave = nil
		leave()
	}
	f.show()
}

// shownEarly is how many objects a fetch has at most that are shown while they arrive though nobody is known to follow them: there
// is time for it then, and less to do once they are here.
const shownEarly = 8

// show lets others follow what arrives, once. The copies did not wait for that.
func (f *fetching) show() {
	if f.shown || len(f.objects) > shownEarly {
		return
	}
	f.shown = true
	for i := range f.objects {
		if len(f.heads[i].FrameBytes) > 0 {
			f.showArriving(i)
		}
	}
}

// showArriving says whether others can follow an object from now on.
func (f *fetching) showArriving(index int) bool {
	id := f.object(index)
	if !f.worker.config.Store.ShowArriving(id, f.heads[index].Header) {
		return false
	}
	f.forwarded = append(f.forwarded, id)
	return true
}

// carryOut does all of it.
func (f *fetching) carryOut() {
	w := f.worker
	defer w.fetching.Done()
	ctx := f.ctx
	f.times.begun = time.Since(f.times.wanted)
	err := f.run(ctx)
	ended := lifecycle.FetchEnded{Fetch: f.id}
	if err != nil {
		ended.Message = err.Error()
		switch {
		case ctx.Err() != nil:
		case f.follow: // a holder is asked now
			w.log.Info("objects do not come by way of a worker that should get them as well", "peer", f.peer.String(), "objects", len(f.refs), "error", err)
		default:
			w.log.Warn("fetch failed", "peer", f.peer.String(), "objects", len(f.refs), "error", err)
		}
	}
	w.drive(ended)
}

// run fetches from a peer, or follows one, and returns when nobody is told of what did
// not come.
func (f *fetching) run(ctx context.Context) (err error) {
	path := f.worker.config.Path
	if behind, able := path.(transfer.Follower); !f.follow {
		err = path.Fetch(ctx, f.peer, f.refs, f)
	} else if able {
		err = behind.Follow(ctx, f.peer, f.refs, f)
	} else {
		err = fmt.Errorf("behind %s: %w", f.peer, transfer.ErrNoWay)
	}
	for _, id := range f.forwarded {
		f.worker.config.Store.Conceal(id)
	}
	return err
}

// Forward is part of transfer.Forwarder.
func (f *fetching) Forward(index int) (arrived func(bytes uint64), step uint64) {
	id, s := f.object(index), f.worker.config.Store
	switch {
	case f.objects[index].Relayed:
		if step = relayStep; !f.showArriving(index) {
			return nil, 0
		}
	case len(f.objects) > shownEarly || f.follow:
		if !f.showArriving(index) {
			return nil, 0
		}
	}
	// NB: the others are shown when the fetch waits; what is told of one before then is lost, and told anew with
	// what comes next.
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
		f.Waits(transfer.Long)
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

// PlaceBatch is part of transfer.Batcher: Place for objects whose memory was set aside, in one
// step. The first that is not so simple goes by Place.
func (f *fetching) PlaceBatch(ctx context.Context, first int, heads []transfer.Head, into []memory.Frame) (transfer.Placed, error) {
	s := f.worker.config.Store
	copy(f.heads[first:], heads)
	if f.times.placed == 0 {
		f.times.placed = time.Since(f.times.wanted)
	}
	made, frames, err := s.AllocateAll(len(heads), func(i int) (ledger.ReservationID, ledger.ObjectID, []uint64) {
		return f.reservations[first+i], f.object(first + i), heads[i].FrameBytes
	}, into)
	if made > 0 || err == nil {
		return transfer.Placed{Objects: made, Space: s.Space(), Frames: frames}, nil
	}
	regions, err := f.Place(ctx, first, heads[0])
	if err != nil {
		return transfer.Placed{Space: s.Space(), Frames: into}, err
	}
	for _, r := range regions {
		into = append(into, r.Frame)
	}
	return transfer.Placed{Objects: 1, Space: s.Space(), Frames: into}, nil
}

// DoneBatch is part of transfer.Batcher.
func (f *fetching) DoneBatch(first, count int) {
	for first, end := first, first+count; first < end; {
		n := 0
		for first+n < end && len(f.heads[first+n].FrameBytes) > 0 {
			n++
		}
		if n == 0 {
			f.Done(first, nil)
			first++
			continue
		}
		f.sealed(first, n)
		first += n
	}
}

// sealed says that objects side by side, which have frames, are here.
func (f *fetching) sealed(first, count int) {
	type outcome struct {
		bytes uint64
		err   error
	}
	outcomes := make([]outcome, count)
	f.worker.config.Store.SealCopies(count, func(i int) (ledger.ObjectID, []byte) {
		return f.object(first + i), f.heads[first+i].Header
	}, func(i int, bytes uint64, err error) { outcomes[i] = outcome{bytes, err} })
	for i, o := range outcomes {
		if o.err != nil {
			f.failed(first+i, o.err)
		} else {
			f.fetched(first+i, o.bytes)
		}
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
			err = s.PutWithin(f.reservations[index], id, f.heads[index].Header)
		} else {
			err = s.Seal(id, f.heads[index].Header)
		}
		if h := &f.heads[index]; err == nil && (len(h.FrameBytes) > 0 || len(h.Header) >= store.LargeHeader) {
			s.Copied(id)
		}
	}
	if err == nil || errors.Is(err, errHeld) {
		if o, ok := s.Lookup(id); ok {
			f.fetched(index, o.Bytes())
			return
		}
		err = fmt.Errorf("object %s was dropped while it arrived", id)
	}
	f.failed(index, err)
}

// fetched says that an object is here.
func (f *fetching) fetched(index int, bytes uint64) {
	f.times.objects++
	f.times.bytes += bytes
	f.tell(lifecycle.InputFetched{Fetch: f.id, Object: f.objects[index].Object, Bytes: bytes})
}

// failed says that an object is not here.
func (f *fetching) failed(index int, err error) {
	id := f.object(index)
	f.worker.config.Store.Conceal(id)
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
