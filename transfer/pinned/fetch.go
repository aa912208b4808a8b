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
	// partRefs is the number of objects in one lease request.
	partRefs = 1000
	// postBytes and postCopies bound one submission. window is the number of concurrent
	// submissions: with one the link would idle between two.
	postBytes  = 64 << 20
	postCopies = 256
	window     = 2
)

// post is a set of copies that was submitted together, with one event behind it.
type post struct {
	event *cuda.Event
	// objects are the objects whose last bytes are in this post.
	objects []int
}

// fetch reads the objects of one batch of leases. One goroutine uses it.
type fetch struct {
	path   *Path
	sink   transfer.Sink
	batch  *borrow.Batch
	memory *mapping
	// first is the index in the request of the batch's first object.
	first int
	// copies, with the given bytes, are not submitted yet. objects are the objects whose last bytes
	// are among them.
	copies  []cuda.Copy
	bytes   uint64
	objects []int
	// posted are the submissions under way, in order.
	posted []post
}

// run copies all objects. An error ends the fetch. When run returns, no copy writes to any region.
func (f *fetch) run(ctx context.Context) error {
	err := f.copyAll(ctx)
	for len(f.posted) > 0 {
		// Also after an error the posted copies must end before their memory can be released.
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
		if len(f.copies) == 0 { // it has no bytes, or its last bytes are submitted
			if err := f.submit(); err != nil {
				return err
			}
		}
	}
	return f.submit()
}

// fits returns an error if the regions do not fit the frames.
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

// add adds the copies of one frame and submits whenever a limit is reached.
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

// submit submits the added copies as soon as the window has room.
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
	// A post without copies is over when the earlier ones are.
	f.posted = append(f.posted, post{event: event, objects: f.objects})
	f.objects = nil
	if len(f.copies) == 0 {
		return event.Record(f.path.stream)
	}
	err = f.path.stream.Copy(f.copies, event)
	f.copies, f.bytes = f.copies[:0], 0
	if err != nil {
		_ = f.path.stream.Sync() // some copies may be under way; the first error is returned
	}
	return err
}

// landed waits for the first post. If tell is true it reports the post's objects to the sink.
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
