package pinned

import (
	"context"
	"fmt"

	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/cuda"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/borrow"
)

const (
	// partRefs is how many objects are asked for at once.
	partRefs = 1000
	// postBytes and postCopies bound what is submitted together; window is how many of
	// those are under way: one leaves the link idle between two.
	postBytes  = 64 << 20
	postCopies = 256
	window     = 2
)

// post is what was submitted together, behind one event.
type post struct {
	event *cuda.Event
	// objects are those whose last bytes are in it.
	objects []int
}

// fetch are the objects of one batch of loans. It is used by one goroutine.
type fetch struct {
	path   *Path
	sink   transfer.Sink
	batch  *borrow.Batch
	memory *mapping
	// first is the index in the request of the batch's first object.
	first int
	// copies, of so many bytes, are not submitted yet; objects end with them.
	copies  []cuda.Copy
	bytes   uint64
	objects []int
	// posted are under way, in their order.
	posted []post
}

// run copies all objects. Its error ends the fetch; when it returns nothing writes to any
// region.
func (f *fetch) run(ctx context.Context) error {
	err := f.copyAll(ctx)
	for len(f.posted) > 0 {
		// After an error the bytes must be left alone as well.
		if failed := f.landed(err == nil); err == nil {
			err = failed
		}
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return err
}

func (f *fetch) copyAll(ctx context.Context) error {
	for i := range f.batch.Objects {
		o := &f.batch.Objects[i]
		if o.Err != nil {
			f.sink.Done(f.first+i, o.Err)
			continue
		}
		into, err := f.sink.Place(ctx, f.first+i, o.Head)
		if err == nil {
			err = f.fits(into, o.Frames)
		}
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil:
			f.batch.End([]int{i})
			f.sink.Done(f.first+i, err)
			continue
		}
		for n, from := range o.Frames {
			if err := f.add(ctx, into[n].Frame, from); err != nil {
				return err
			}
		}
		f.objects = append(f.objects, i)
		if len(f.copies) == 0 { // it has no bytes, or the last of them are under way
			if err := f.submit(); err != nil {
				return err
			}
		}
	}
	return f.submit()
}

// fits says what is wrong with regions for frames.
func (f *fetch) fits(into []transfer.Region, frames []memory.Frame) error {
	if len(into) != len(frames) {
		return fmt.Errorf("%d regions for %d frames", len(into), len(frames))
	}
	for i, from := range frames {
		switch {
		case into[i].Frame.Bytes != from.Bytes:
			return fmt.Errorf("region %d has %d bytes for a frame of %d", i, into[i].Frame.Bytes, from.Bytes)
		case from.Bytes > 0 && into[i].Space != memory.Space(f.path.config.Slab):
			return fmt.Errorf("region %d does not lie in the slab of this worker", i)
		}
	}
	return nil
}

// add submits a frame in parts.
func (f *fetch) add(ctx context.Context, into, from memory.Frame) error {
	for done := uint64(0); done < from.Bytes; {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		n := min(from.Bytes-done, postBytes-f.bytes)
		to := f.path.config.Slab.Pointer(into.Offset+done, n)
		var err error
		if f.copies, err = f.memory.lent.Copies(f.copies, to, memory.Frame{Offset: from.Offset + done, Bytes: n}); err != nil {
			return err
		}
		done += n
		if f.bytes += n; f.bytes >= postBytes || len(f.copies) >= postCopies {
			if err := f.submit(); err != nil {
				return err
			}
		}
	}
	return nil
}

// submit has the device copy what was added, when there is room in the window.
func (f *fetch) submit() error {
	if why := f.memory.lent.Pageable(); why != nil {
		f.memory.told.Do(func() {
			f.path.config.Log.Warn("the host memory of a peer is not pinned here: it is read more slowly", "error", why)
		})
	}
	if len(f.copies) == 0 && len(f.objects) == 0 {
		return nil
	}
	if len(f.posted) == window {
		if err := f.landed(true); err != nil {
			return err
		}
	}
	event, err := f.path.event()
	if err != nil {
		return err
	}
	// Without copies it comes behind those before.
	f.posted = append(f.posted, post{event: event, objects: f.objects})
	f.objects = nil
	if len(f.copies) == 0 {
		return event.Record(f.path.stream)
	}
	err = f.path.stream.Copy(f.copies, event)
	f.copies, f.bytes = f.copies[:0], 0
	if err != nil {
		_ = f.path.stream.Sync() // some may be on their way; the first error tells
	}
	return err
}

// landed waits for the first post, and tells of its objects if that is wanted.
func (f *fetch) landed(tell bool) error {
	p := f.posted[0]
	f.posted = f.posted[1:]
	err := p.event.Sync()
	f.path.giveBack(p.event)
	if err != nil || !tell || len(p.objects) == 0 {
		return err
	}
	var lost error
	received := 0
	for n, held := range f.batch.End(p.objects) {
		i := p.objects[n]
		head := &f.batch.Objects[i].Head
		if !held {
			if lost == nil {
				lost = fmt.Errorf("%s: %w: its lease did not hold", head.Ref, transfer.ErrPeerLost)
			}
			continue
		}
		received += int(head.Bytes())
		f.sink.Done(f.first+i, nil)
	}
	f.path.config.Received(received)
	return lost
}
