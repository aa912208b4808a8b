package route

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/transfer"
)

// fetch is the state of a fetch over all its attempts. One goroutine at a time uses it.
type fetch struct {
	sink   transfer.Sink
	able   transfer.SinkCapabilities // of sink
	done   []bool
	places []place
	left   int
}

// place is the memory for an object, the same for all paths.
type place struct {
	head    transfer.Head
	regions []transfer.Region
	given   bool
}

// attempt is a fetch on one path. It is the sink of that path. The goroutine of the fetch owns it.
type attempt struct {
	*fetch
	// index maps an object of the attempt to its index in the fetch.
	index []int
	// began is when the attempt began, moved on by the time that it waited for memory.
	began  time.Time
	allow  func(bytes uint64) (time.Duration, bool)
	cancel context.CancelCauseFunc
	// placed is the size of the objects that have a place, bytes the size of those that have
	// arrived.
	placed, bytes uint64
	// later is the error because of which objects are left for the next path. came counts the
	// arrived objects.
	later error
	came  int
	// forwarded are the objects whose progress is reported to downstream readers.
	forwarded []int
	// timer cancels the attempt when it has taken too long. It is nil until the first place.
	timer *time.Timer
}

func (a *attempt) stop() {
	if a.timer != nil {
		a.timer.Stop()
	}
}

// Capabilities is part of transfer.Sink. Batches are possible over every sink; see PlaceBatch.
func (a *attempt) Capabilities() transfer.SinkCapabilities {
	out := transfer.SinkCapabilities{Batch: a}
	if a.able.Forward != nil {
		out.Forward = a
	}
	if a.able.Wait != nil {
		out.Wait = a
	}
	return out
}

// Place is part of transfer.Sink. The time spent waiting for memory does not count against the
// path.
func (a *attempt) Place(ctx context.Context, index int, head transfer.Head) ([]transfer.Region, error) {
	a.stop()
	p := &a.places[a.index[index]]
	if !p.given {
		waited := time.Now()
		regions, err := a.sink.Place(ctx, a.index[index], head)
		if err != nil {
			return nil, err
		}
		a.began = a.began.Add(time.Since(waited))
		*p = place{head, regions, true}
	} else if !same(p.head, head) {
		return nil, fmt.Errorf("%s: %w: two paths tell of different objects", head.Ref, transfer.ErrProtocol)
	}
	a.limit(head.Bytes())
	return p.regions, nil
}

// limit adds to the placed bytes and sets the timer to the time that the machine allows for them.
func (a *attempt) limit(more uint64) {
	a.placed += more
	allowed, bounded := a.allow(a.placed)
	if !bounded {
		return
	}
	left := max(allowed-time.Since(a.began), 0)
	if a.timer == nil {
		a.timer = time.AfterFunc(left, func() { a.cancel(transfer.ErrStalled) })
	} else {
		a.timer.Reset(left)
	}
}

// batcher returns the sink and the first index there, if the sink takes many objects at once and
// the given objects are contiguous there, too.
func (a *attempt) batcher(first, count int) (sink transfer.Batcher, at int, ok bool) {
	at = a.index[first]
	return a.able.Batch, at, a.able.Batch != nil && a.index[first+count-1]-at == count-1
}

// PlaceBatch is part of transfer.Batcher. It uses Place for objects that already have places, and
// for a sink without batches.
func (a *attempt) PlaceBatch(ctx context.Context, first int, heads []transfer.Head, into []memory.Frame) (transfer.Placed, error) {
	sink, at, ok := a.batcher(first, len(heads))
	fresh := 0
	for ok && fresh < len(heads) && !a.places[at+fresh].given {
		fresh++
	}
	if fresh == 0 {
		return a.placeEach(ctx, first, heads, into)
	}
	a.stop()
	waited, before := time.Now(), len(into)
	placed, err := sink.PlaceBatch(ctx, at, heads[:fresh], into)
	a.began = a.began.Add(time.Since(waited))
	regions := make([]transfer.Region, 0, len(placed.Frames)-before)
	for _, f := range placed.Frames[before:] {
		regions = append(regions, transfer.Region{Space: placed.Space, Frame: f})
	}
	more := uint64(0)
	for i := range placed.Objects {
		n := min(len(heads[i].FrameBytes), len(regions))
		a.places[at+i] = place{heads[i], regions[:n:n], true}
		regions = regions[n:]
		more += heads[i].Bytes()
	}
	a.limit(more)
	return placed, err
}

// placeEach implements PlaceBatch by Place. It stops before an object in another space.
func (a *attempt) placeEach(ctx context.Context, first int, heads []transfer.Head, into []memory.Frame) (transfer.Placed, error) {
	placed := transfer.Placed{Frames: into}
	for i, head := range heads {
		regions, err := a.Place(ctx, first+i, head)
		if err != nil {
			return placed, err
		}
		for _, r := range regions {
			if placed.Space != nil && r.Space != placed.Space {
				return placed, nil // its place is returned when it is requested again
			}
			placed.Space = r.Space
		}
		for _, r := range regions {
			placed.Frames = append(placed.Frames, r.Frame)
		}
		placed.Objects++
	}
	return placed, nil
}

// DoneBatch is part of transfer.Batcher.
func (a *attempt) DoneBatch(first, count int) {
	sink, at, ok := a.batcher(first, count)
	if !ok {
		for i := first; i < first+count; i++ {
			a.Done(i, nil)
		}
		return
	}
	for i := at; i < at+count; i++ {
		a.bytes += a.places[i].head.Bytes()
		a.done[i] = true
	}
	a.left -= count
	a.came += count
	sink.DoneBatch(at, count)
}

func same(a, b transfer.Head) bool {
	if a.Ref != b.Ref || len(a.FrameBytes) != len(b.FrameBytes) {
		return false
	}
	for i := range a.FrameBytes {
		if a.FrameBytes[i] != b.FrameBytes[i] {
			return false
		}
	}
	return true
}

// Forward is part of transfer.Forwarder.
func (a *attempt) Forward(index int) (arrived func(bytes uint64), step uint64) {
	i := a.index[index]
	if arrived, step = a.able.Forward.Forward(i); arrived != nil {
		a.forwarded = append(a.forwarded, i)
	}
	return arrived, step
}

// Withdraw is part of transfer.Forwarder.
func (a *attempt) Withdraw(index int) {
	a.able.Forward.Withdraw(a.index[index])
}

// withdraw cancels the progress reports of objects that did not arrive: the next path writes to the
// same memory from the beginning.
func (a *attempt) withdraw() {
	for _, i := range a.forwarded {
		if !a.done[i] {
			a.able.Forward.Withdraw(i)
		}
	}
}

// Done is part of transfer.Sink. Objects that this path could not deliver are left for the next
// path.
func (a *attempt) Done(index int, err error) {
	i := a.index[index]
	if err != nil && (errors.Is(err, transfer.ErrUnreachable) || errors.Is(err, transfer.ErrPeerLost) || errors.Is(err, transfer.ErrStalled)) {
		a.later = err
		return
	}
	if err == nil {
		a.came++
		a.bytes += a.places[i].head.Bytes()
	}
	a.done[i] = true
	a.left--
	a.sink.Done(i, err)
}
