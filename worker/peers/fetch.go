package peers

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

// errHeld says that an object of a fetch is here already.
var errHeld = errors.New("object is here already")

// errNoRoom says that the reservation is too small for the object and no other memory is free.
var errNoRoom = errors.New("no room for the object")

// fetch is one stream of objects from a peer, and the sink of its path. One goroutine uses it at a
// time.
type fetch struct {
	peers        *Peers
	ctx          context.Context //nolint:containedctx // the owner's when it was ordered
	order        lifecycle.StartFetch
	reservations []ledger.ReservationID
	heads        []transfer.Head
	// forwarded are the objects that other workers can read while they arrive.
	forwarded []ledger.ObjectID
	// open is the number of objects whose outcome has not been posted.
	open int
	// peer and refs are the source and the objects.
	peer transfer.Peer
	refs []transfer.Ref
	// own: the objects are items of lists that are here; see copyOwn.
	own bool
	// leave, if not nil, hands the other duties of this goroutine to another goroutine; it is
	// called before a long wait.
	leave func()
	// published: the arriving objects were published; see publish.
	published bool
	// times are the statistics of the fetch. The owner has them once no object is open.
	times fetchTimes
}

var _ transfer.Sink = (*fetch)(nil)

// Capabilities is part of transfer.Sink.
func (f *fetch) Capabilities() transfer.SinkCapabilities {
	return transfer.SinkCapabilities{Batch: f, Forward: f, Wait: f}
}

// Fetch starts a fetch from a peer, or from the lists that are here (own). reservations are those
// of the objects. If the caller takes fetches, and this one begins with little work and without
// waiting, Fetch returns it, and the caller must carry it out: before a long wait, the fetch calls
// leave, if that is not nil.
func (p *Peers) Fetch(order lifecycle.StartFetch, reservations []ledger.ReservationID, own, takes bool) (taken func(leave func())) {
	n := len(order.Objects)
	f := &fetch{
		peers: p, ctx: p.ctx, order: order, reservations: reservations, heads: make([]transfer.Head, n), open: n, own: own,
		peer: p.all[order.Peer], refs: make([]transfer.Ref, n), times: fetchTimes{first: order.Objects[0].Object, peer: order.Peer, wanted: time.Now()},
	}
	for i, o := range order.Objects {
		f.refs[i] = transfer.Ref(o.Object)
	}
	switch {
	case own:
		f.peer = transfer.Peer{Worker: order.Peer, Name: p.config.Name}
	case f.peer.Address == "":
		p.config.Tell(Outcomes{Events: []lifecycle.Event{
			lifecycle.FetchEnded{Fetch: order.Fetch, Message: fmt.Sprintf("worker %s is gone, or was never named", order.Peer)},
		}}, false)
		return nil
	}
	if takes && !own && order.Few && f.prompt() {
		p.started.Add(1)
		return func(leave func()) {
			defer p.started.Done()
			f.carryOut(leave)
		}
	}
	p.begin(func() { f.carryOut(nil) })
	return nil
}

// prompt says whether the fetch begins with little work and without waiting, so that the receiver
// of the session may begin it.
func (f *fetch) prompt() bool {
	path := f.peers.Capabilities().Prompt
	return path != nil && path.Prompt(f.peer)
}

// Waits is part of transfer.Waiter.
func (f *fetch) Waits(left time.Duration) {
	if leave := f.leave; leave != nil && left > lifecycle.BriefWait {
		f.leave = nil
		leave()
	}
	f.publish()
}

// publish publishes the arriving objects for other readers, once per fetch. It is called after the
// copies were started, so that they do not wait for it.
func (f *fetch) publish() {
	if f.published || !f.order.Early {
		return
	}
	f.published = true
	for i := range f.order.Objects {
		if len(f.heads[i].FrameBytes) > 0 {
			f.publishArriving(i)
		}
	}
}

// publishArriving publishes an arriving object. It says whether other workers can read it from now
// on.
func (f *fetch) publishArriving(index int) bool {
	id := f.object(index)
	if !f.peers.config.Store.PublishArriving(id, f.heads[index].Header) {
		return false
	}
	f.forwarded = append(f.forwarded, id)
	return true
}

// carryOut runs the fetch to its end and posts FetchEnded.
func (f *fetch) carryOut(leave func()) {
	p := f.peers
	f.leave = leave
	ctx := f.ctx
	f.times.begun = time.Since(f.times.wanted)
	err := f.run(ctx)
	ended := lifecycle.FetchEnded{Fetch: f.order.Fetch}
	if err != nil {
		ended.Message = err.Error()
		switch {
		case ctx.Err() != nil:
		case f.order.Pipelined: // a holder is tried next
			p.config.Log.Info("objects do not come by way of a worker that should get them as well", "peer", f.peer.String(), "objects", len(f.refs), "error", err)
		default:
			p.config.Log.Warn("fetch failed", "peer", f.peer.String(), "objects", len(f.refs), "error", err)
		}
	}
	p.config.Tell(Outcomes{Events: []lifecycle.Event{ended}}, true)
}

// run fetches from the peer, or reads there what arrives (broadcast chain). When it returns,
// objects that did not arrive are no longer published.
func (f *fetch) run(ctx context.Context) (err error) {
	if f.own {
		return f.copyOwn(ctx)
	}
	path := f.peers.config.Path
	if pipelined := f.peers.Capabilities().Pipelined; !f.order.Pipelined {
		err = path.Fetch(ctx, f.peer, f.refs, f)
	} else if pipelined != nil {
		err = pipelined.FetchPipelined(ctx, f.peer, f.refs, f)
	} else {
		err = fmt.Errorf("upstream %s: %w", f.peer, transfer.ErrUnreachable)
	}
	for _, id := range f.forwarded {
		f.peers.config.Store.Unpublish(id)
	}
	return err
}

// Forward is part of transfer.Forwarder.
func (f *fetch) Forward(index int) (arrived func(bytes uint64), step uint64) {
	id, s := f.object(index), f.peers.config.Store
	switch {
	case f.order.Objects[index].Downstream:
		if step = f.order.Objects[index].Step; !f.publishArriving(index) {
			return nil, 0
		}
	case !f.order.Early || f.order.Pipelined:
		if !f.publishArriving(index) {
			return nil, 0
		}
	}
	// NB: the other objects are published when the fetch waits. Progress that is reported before
	// that is lost; the next report includes it.
	return func(bytes uint64) { s.SetProgress(id, bytes) }, step
}

// Withdraw is part of transfer.Forwarder.
func (f *fetch) Withdraw(index int) { f.peers.config.Store.Unpublish(f.object(index)) }

// Place is part of transfer.Sink. It does not wait, since the memory was reserved, unless the
// object is larger than announced.
func (f *fetch) Place(ctx context.Context, index int, head transfer.Head) ([]transfer.Region, error) {
	f.heads[index] = head
	if f.times.placed == 0 {
		f.times.placed = time.Since(f.times.wanted)
	}
	if len(head.FrameBytes) == 0 {
		return nil, nil
	}
	s := f.peers.config.Store
	// An earlier fetch from another peer may have failed after it had allocated frames.
	s.Rebuild(f.reservations[index], f.object(index))
	frames, err := s.Allocate(f.reservations[index], f.object(index), head.FrameBytes...)
	if errors.Is(err, ledger.ErrOutgrown) {
		f.Waits(transfer.Long)
		if err = s.Grow(ctx, f.reservations[index], store.TaskHolder(f.object(index).Task), head.FrameBytes, f.peers.config.MemoryWait); err == nil {
			frames, err = s.Allocate(f.reservations[index], f.object(index), head.FrameBytes...)
		}
	}
	switch {
	case err == nil:
		return s.Regions(frames), nil
	case errors.Is(err, ledger.ErrDuplicate):
		if s.Restore(f.object(index)) { // it was dropped, and a run still reads it
			s.Copied(f.object(index))
		}
		return nil, errHeld
	default:
		return nil, fmt.Errorf("%w: %w", errNoRoom, err)
	}
}

// PlaceBatch is part of transfer.Batcher: it is Place for several objects with reserved memory, in
// one step. It stops at the first object that needs more than that; Place handles this object.
func (f *fetch) PlaceBatch(ctx context.Context, first int, heads []transfer.Head, into []memory.Frame) (transfer.Placed, error) {
	s := f.peers.config.Store
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
func (f *fetch) DoneBatch(first, count int) {
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

// sealed seals consecutive objects that have frames, and posts the outcomes.
func (f *fetch) sealed(first, count int) {
	type result struct {
		bytes uint64
		err   error
	}
	sealed := make([]result, count)
	f.peers.config.Store.SealCopies(count, func(i int) (ledger.ObjectID, []byte) {
		return f.object(first + i), f.heads[first+i].Header
	}, func(i int, bytes uint64, err error) { sealed[i] = result{bytes, err} })
	events := make([]lifecycle.Event, count)
	for i, o := range sealed {
		if o.err != nil {
			events[i] = f.failed(first+i, o.err)
		} else {
			events[i] = f.fetched(first+i, o.bytes)
		}
	}
	f.tell(events...)
}

func (f *fetch) object(index int) ledger.ObjectID {
	return ledger.ObjectID(f.order.Objects[index].Object)
}

// Done is part of transfer.Sink.
func (f *fetch) Done(index int, err error) {
	id := f.object(index)
	s := f.peers.config.Store
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
			f.tell(f.fetched(index, o.Bytes()))
			return
		}
		err = fmt.Errorf("object %s was dropped while it arrived", id)
	}
	f.tell(f.failed(index, err))
}

// fetched returns the outcome of an object that is here.
func (f *fetch) fetched(index int, bytes uint64) lifecycle.Event {
	f.times.objects++
	f.times.bytes += bytes
	return lifecycle.InputFetched{Fetch: f.order.Fetch, Object: f.order.Objects[index].Object, Bytes: bytes}
}

// failed returns the outcome of an object that did not arrive.
func (f *fetch) failed(index int, err error) lifecycle.Event {
	id := f.object(index)
	f.peers.config.Store.Unpublish(id)
	return lifecycle.FetchFailed{
		Fetch: f.order.Fetch, Object: lifecycle.Object(id), Message: err.Error(),
		Missing: errors.Is(err, transfer.ErrNotHere), NoRoom: errors.Is(err, errNoRoom),
	}
}

// Outcomes are events for the worker's machine: an InputFetched or a FetchFailed for each object of
// a fetch, and a FetchEnded.
type Outcomes struct {
	Events []lifecycle.Event
	// times are set with the last object; see Usable.
	times *fetchTimes
}

func (Outcomes) event() {}

// tell posts outcomes of objects. After the last of them this goroutine has no other work, so it
// hands them over: then the attempts that waited begin without another goroutine being woken first.
func (f *fetch) tell(events ...lifecycle.Event) {
	if f.open -= len(events); f.open > 0 {
		f.peers.config.Tell(Outcomes{Events: events}, false)
		return
	}
	f.times.arrived = time.Since(f.times.wanted)
	f.peers.config.Tell(Outcomes{Events: events, times: &f.times}, true)
}

// copyOwn carries out a fetch of items whose lists are here, in a tier below the slab: it copies
// the frames of the items into the slab, from where they are. So the lists stay there, and only the
// items need room.
func (f *fetch) copyOwn(ctx context.Context) error {
	source := f.peers.config.Store.Source()
	for i := range f.refs {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		leased := source.Lease(transfer.Reader{Worker: f.peer.Worker}, f.refs[i:i+1], 0)[0]
		if leased.Err != nil {
			f.Done(i, leased.Err)
			continue
		}
		into, err := f.Place(ctx, i, leased.Head)
		for n := 0; n < len(into) && err == nil; n++ {
			err = copyRegion(ctx, into[n], leased.Regions[n])
		}
		source.Release([]transfer.LeaseID{leased.Lease})
		f.Done(i, err)
	}
	return nil
}

// copyRegion copies the bytes of a region to one of the slab with the same size.
func copyRegion(ctx context.Context, to, from transfer.Region) error {
	target, data := to.Bytes(), from.Bytes()
	reader, _ := from.Space.(memory.Reader)
	staged, _ := to.Space.(memory.Staged)
	var buffer []byte
	if target == nil && data == nil {
		buffer = make([]byte, min(from.Frame.Bytes, memory.StageBytes))
	}
	for at := uint64(0); at < from.Frame.Bytes; {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		n := min(from.Frame.Bytes-at, memory.StageBytes)
		part := buffer
		switch {
		case data != nil:
			part = data[at : at+n]
		case target != nil:
			part = target[at : at+n]
		}
		part = part[:n]
		if data == nil {
			if err := reader.ReadInto(from.Frame.Offset+at, part); err != nil {
				return err
			}
		}
		if target == nil {
			if err := staged.WriteFrom(to.Frame.Offset+at, part); err != nil {
				return err
			}
		} else if data != nil {
			copy(target[at:], part)
		}
		at += n
	}
	return nil
}
