package ipc

import (
	"context"
	"fmt"
	"sync"

	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/borrow"
)

// What was placed is submitted when it has this many bytes: the first is little, so
// that the link gets work while the rest is looked up.
const (
	firstBytes = 8 << 20
	laterBytes = 16 << 20
)

// lists are of pieces, to be used again: they are as long as batches are.
var lists = sync.Pool{New: func() any { return new([]piece) }}

// fetch are objects of one peer: a batch of loans, or what is found in one glance.
type fetch struct {
	path *Path
	sink transfer.Sink
	// objects are those of the batch, or where those of refs go that glance finds.
	objects []borrow.Lent
	memory  borrow.Memory
	batch   *borrow.Batch
	glance  *borrow.Glance
	refs    []transfer.Ref
	// missed are those that are not found.
	missed []int
	// indices are those of the objects in the request; nil: the same.
	indices []int
	// lane and group are those of the copies, nil before the first.
	lane  *lane
	group *group
	// pending are pieces that the lane has not got yet, of so many bytes; they are
	// submitted from enough on.
	pending              *[]piece
	pendingBytes, enough uint64
	// used are lists of pieces to be used again once the lane has none of them.
	used []*[]piece
	// whole are objects that needed no copy.
	whole []int
}

func (f *fetch) index(object int) int {
	if f.indices == nil {
		return object
	}
	return f.indices[object]
}

// end ends the loans of objects that nobody wants any more.
func (f *fetch) end(objects ...int) {
	if f.batch != nil {
		f.batch.End(objects)
	}
}

// run places all objects, while the copies of those before are under way, and sees
// them end.
func (f *fetch) run(ctx context.Context) error {
	f.enough = firstBytes
	done := ctx.Done()
	var failed error
	for i := range f.objects {
		l := &f.objects[i]
		if failed == nil {
			select {
			case <-done:
				failed = context.Cause(ctx)
			default:
			}
		}
		switch {
		case f.glance != nil:
			if failed != nil {
				continue
			}
			if !f.glance.Find(f.refs[i], l) {
				f.missed = append(f.missed, i)
				continue
			}
		case l.Err != nil:
			if failed == nil {
				f.sink.Done(f.index(i), l.Err)
			}
			continue
		case failed != nil:
			f.end(i)
			continue
		}
		err := f.place(ctx, i, l)
		switch {
		case err != nil && ctx.Err() != nil:
			failed = context.Cause(ctx)
			f.end(i)
		case err != nil:
			f.end(i)
			f.sink.Done(f.index(i), err)
		}
	}
	if failed == nil && ctx.Err() != nil {
		failed = context.Cause(ctx)
	}
	if failed == nil {
		f.submit()
		failed = f.deliver(f.whole)
	} else {
		f.end(f.whole...)
		f.abandon()
	}
	return f.await(ctx, failed)
}

// abandon ends the loans of objects that were placed and not submitted.
func (f *fetch) abandon() {
	if f.pending == nil || f.batch == nil {
		return
	}
	for n, p := range *f.pending {
		if n == 0 || (*f.pending)[n-1].object != p.object {
			f.end(p.object)
		}
	}
}

// await sees what is under way end.
func (f *fetch) await(ctx context.Context, failed error) error {
	if f.lane == nil {
		return failed
	}
	if failed != nil {
		f.lane.cancel(f.group, failed)
	}
	for {
		ended, err := f.lane.wait(ctx, f.group, f.path.config.StallTimeout)
		if failed == nil {
			failed = err
		}
		if len(ended) == 0 {
			for _, list := range f.used {
				clear(*list)
				lists.Put(list)
			}
			return failed
		}
		if failed != nil {
			f.end(ended...)
			continue
		}
		if failed = f.deliver(ended); failed != nil {
			f.lane.cancel(f.group, failed)
		}
	}
}

// deliver tells of objects whose bytes are here. Its error ends the fetch.
func (f *fetch) deliver(objects []int) error {
	if len(objects) == 0 {
		return nil
	}
	var held []bool
	all := false
	if f.batch != nil {
		held = f.batch.End(objects)
	} else {
		all = f.glance.Held()
	}
	var lost error
	received := uint64(0)
	for n, i := range objects {
		head := &f.objects[i].Head
		var err error
		if f.group != nil && len(f.group.errs) > 0 {
			err = f.group.errs[i]
		}
		switch {
		case err != nil:
			f.sink.Done(f.index(i), fmt.Errorf("%s: %w", head.Ref, err))
		case !all && (held == nil || !held[n]):
			if lost == nil {
				lost = fmt.Errorf("%s: %w: its lease did not hold", head.Ref, transfer.ErrPeerLost)
			}
		default:
			received += head.Bytes()
			f.sink.Done(f.index(i), nil)
		}
	}
	f.path.config.Received(int(received))
	return lost
}

// place gets an object's regions and submits its copies.
func (f *fetch) place(ctx context.Context, object int, l *borrow.Lent) error {
	into, err := f.sink.Place(ctx, f.index(object), l.Head)
	if err != nil {
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err := f.path.fits(into, l.Frames); err != nil {
		return err
	}
	slab, bytes := f.path.config.Slab, l.Head.Bytes()
	if bytes == 0 {
		f.whole = append(f.whole, object)
		return nil
	}
	m := f.memory.(*mapping)
	if f.lane == nil {
		f.lane, f.group = m.lane, newGroup(len(f.objects))
	}
	if f.pending == nil {
		f.pending = lists.Get().(*[]piece)
		*f.pending = (*f.pending)[:0]
	}
	on := forward(f.sink, f.index(object), bytes)
	first, chunk, step := len(*f.pending), m.chunk, on.step > 0 && on.step < m.chunk
	if step {
		chunk = on.step
	}
	for i, from := range l.Frames {
		if n := from.Bytes; n > 0 {
			*f.pending = split(*f.pending, slab.Pointer(into[i].Frame.Offset, n), m.base+from.Offset, n, chunk, f.group, object)
		}
	}
	pieces := (*f.pending)[first:]
	for i := range pieces {
		pieces[i].step = step
	}
	f.lane.forward(f.group, object, on, pieces)
	if f.pendingBytes += bytes; f.pendingBytes >= f.enough {
		f.submit()
	}
	return nil
}

// fits says what is wrong with regions for frames.
func (p *Path) fits(into []transfer.Region, frames []memory.Frame) error {
	if len(into) != len(frames) {
		return fmt.Errorf("%d regions for %d frames", len(into), len(frames))
	}
	for i, from := range frames {
		switch {
		case into[i].Frame.Bytes != from.Bytes:
			return fmt.Errorf("region %d has %d bytes for a frame of %d", i, into[i].Frame.Bytes, from.Bytes)
		case from.Bytes > 0 && into[i].Space != memory.Space(p.config.Slab):
			return fmt.Errorf("region %d does not lie in the slab of this worker", i)
		}
	}
	return nil
}

func (f *fetch) submit() {
	if f.pending != nil {
		f.lane.add(*f.pending)
		f.used = append(f.used, f.pending)
		f.pending, f.pendingBytes, f.enough = nil, 0, laterBytes
	}
}
