package ipc

import (
	"context"
	"fmt"
	"time"

	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/borrow"
	"github.com/millrace/millrace/transfer/objindex"
)

const (
	// pipelineBytes is how much should have arrived at the peer before the next part is copied.
	pipelineBytes = smallBytes
	// appearWithin is how long a peer may take to begin: it got its order to fetch before this
	// worker.
	appearWithin = 5 * time.Millisecond
	// arrivalPoll is the interval at which the peer's progress is polled, arrivalIdle the interval
	// when there has been no progress for a while.
	arrivalPoll = tokenPoll
	arrivalIdle = 500 * time.Microsecond
)

// FetchPipelined is part of transfer.PipelinedFetcher: it copies the bytes that have arrived in the
// peer's slab while the rest is still on its way there. It sends no messages to the peer; the
// peer's object index has the progress.
func (p *Path) FetchPipelined(ctx context.Context, at transfer.Peer, refs []transfer.Ref, sink transfer.Sink) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if !p.begin(&cancel) {
		return errClosed
	}
	defer p.end(&cancel)
	if err := p.trusted(at); err != nil {
		return err
	}
	for i, r := range refs {
		if err := p.fetchArriving(ctx, at, i, r, sink); err != nil {
			return fmt.Errorf("ipc upstream %s: %s: %w", at, r, err)
		}
	}
	return nil
}

// fetchArriving copies one object. It returns an error that ends the whole fetch. An error of this
// object alone goes to the sink.
func (p *Path) fetchArriving(ctx context.Context, at transfer.Peer, index int, r transfer.Ref, sink transfer.Sink) error {
	var lent borrow.Lent
	guard, watch, err := p.waitArriving(ctx, at, r, &lent)
	if err != nil {
		return err
	}
	if guard == nil {
		sink.Done(index, fmt.Errorf("%s on %s: %w: it does not arrive there either", r, at, transfer.ErrNotHere))
		return nil
	}
	into, err := sink.Place(ctx, index, lent.Head)
	if err == nil {
		err = p.fitAll(into, lent.Head.FrameBytes)
	}
	if err == nil {
		f := &pipelinedCopy{
			queue: guard.Memory.(*mapping).queue, group: newGroup(), guard: guard, watch: watch, total: lent.Head.Bytes(), stall: p.config.StallTimeout,
		}
		f.cut(p, guard.Memory.(*mapping), into, lent.Frames, forward(sink, index, lent.Head.Bytes()))
		err = f.run(ctx)
	}
	held := guard.End()
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err == nil && !held:
		return fmt.Errorf("%w: it was not protected", transfer.ErrPeerLost)
	case err != nil:
		err = fmt.Errorf("%s from upstream %s: %w", r, at, err)
	default:
		p.config.Received(int(lent.Head.Bytes()))
	}
	sink.Done(index, err)
	return nil
}

// waitArriving waits until an object is in the peer's object index. It returns nil if the object
// does not appear in time, or if the index cannot be read (see borrow.Path.Pin). It holds no reader
// slot while it sleeps, so it delays nothing at the peer.
func (p *Path) waitArriving(ctx context.Context, at transfer.Peer, r transfer.Ref, into *borrow.Lent) (*borrow.ReadGuard, objindex.Watch, error) {
	began := time.Now()
	for {
		guard, err := p.lenders.Pin(ctx, at, 1)
		if err != nil || guard == nil {
			return nil, objindex.Watch{}, err
		}
		if watch, ok := guard.FindArriving(r, into); ok {
			return guard, watch, nil
		}
		guard.End()
		switch waited := time.Since(began); {
		case ctx.Err() != nil:
			return nil, objindex.Watch{}, context.Cause(ctx)
		case waited > appearWithin:
			return nil, objindex.Watch{}, nil
		default:
			preciseSleep(min(arrivalPoll+waited/8, arrivalIdle))
		}
	}
}

// pipelinedCopy is the copying of one object while it arrives at the peer.
type pipelinedCopy struct {
	queue *copyQueue
	group *group
	guard *borrow.ReadGuard
	watch objindex.Watch
	// pieces are the pieces that are not submitted, in the order of the object.
	cutting          cutting
	pieces           []piece
	submitted, total uint64
	stall            time.Duration
}

// cut plans the copies.
func (f *pipelinedCopy) cut(p *Path, m *mapping, into []transfer.Region, frames []memory.Frame, on forwarding) {
	chunk := min(m.chunk, pipelineBytes)
	if on.step > 0 {
		chunk = min(chunk, on.step)
	}
	for i, from := range frames {
		if n := from.Bytes; n > 0 {
			f.cutting.large(p.config.Slab.Pointer(into[i].Frame.Offset, n), m.base+from.Offset, n, chunk, f.group, 0)
		}
	}
	f.pieces = f.cutting.pieces
	for i := range f.pieces {
		f.pieces[i].step = true
	}
	f.queue.forward(f.group, 0, on, f.pieces)
}

// run copies in step with the peer's progress. When it returns, no copy is under way.
func (f *pipelinedCopy) run(ctx context.Context) error {
	whole := false
	var failed error
	moved, idle := time.Now(), arrivalPoll
	for {
		if failed == nil && !whole {
			left := f.guard.Left()
			n, isWhole, ok := f.watch.Progress()
			// NB: once the object is whole it may leave the peer's slab: our epoch guard keeps the
			// bytes.
			if whole = ok && isWhole; whole {
				n = f.total
			}
			switch {
			case !ok:
				failed = fmt.Errorf("%w: the peer does not get it any more", transfer.ErrNotHere)
			case left && !whole:
				failed = fmt.Errorf("%w: the peer went away before it had it", transfer.ErrNotHere)
			case f.submit(min(n, f.total)):
				moved, idle = time.Now(), arrivalPoll
			}
		}
		open, last, err := f.queue.check(f.group)
		if last.After(moved) {
			moved, idle = last, arrivalPoll
		}
		if failed == nil {
			failed = err
		}
		if failed == nil && ctx.Err() != nil {
			failed = context.Cause(ctx)
		}
		if quiet := time.Since(moved); failed == nil && quiet > f.stall {
			failed = fmt.Errorf("%w: nothing has come there or here for %v", transfer.ErrNotHere, quiet.Round(time.Millisecond))
		}
		switch {
		case failed != nil && open:
			f.queue.cancel(f.group, failed)
		case failed != nil:
			return failed
		case !open && whole && f.submitted == f.total:
			return nil
		}
		preciseSleep(idle)
		if time.Since(moved) > appearWithin {
			idle = arrivalIdle
		}
	}
}

// submit submits the pieces that have arrived at the peer, and reports whether there were any. It
// waits for pipelineBytes to collect, except at the end of the object.
func (f *pipelinedCopy) submit(arrived uint64) bool {
	if arrived-min(f.submitted, arrived) < pipelineBytes && arrived < f.total {
		return false
	}
	n := 0
	for n < len(f.pieces) && f.submitted+f.pieces[n].bytes <= arrived {
		f.submitted += f.pieces[n].bytes
		n++
	}
	if n == 0 {
		return false
	}
	f.queue.add(f.pieces[:n:n])
	f.pieces = f.pieces[n:]
	return true
}
