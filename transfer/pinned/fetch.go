package pinned

import (
	"context"
	"errors"
	"fmt"
	"slices"

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
	// stageWindow is the number of concurrent posts with parts on the peer's GPU, as many as a
	// connection may have places. While some are copied to this GPU, the peer's GPU copies the
	// next.
	stageWindow = 8
)

// post is a set of copies that end together. First one goroutine fills it, then posted has it.
type post struct {
	// copies, of the given bytes, read what lies in the peer's pinned memory.
	copies []cuda.Copy
	bytes  uint64
	// parts lie on the peer's GPU. Together they take the given bytes of a place. into has the
	// place of each part in our slab.
	parts  []borrow.Part
	into   []memory.Frame
	staged uint64
	// objects are the objects whose last bytes are in this post.
	objects []int

	// copying are the copies that were submitted, if there are no parts. Otherwise ended is closed
	// when nothing reads or writes any more; then err is set.
	copying *cuda.Copying
	ended   chan struct{}
	err     error
}

// empty says whether there is nothing to do.
func (p *post) empty() bool { return len(p.copies) == 0 && len(p.parts) == 0 && len(p.objects) == 0 }

// fetch reads the objects of one batch of leases. One goroutine uses it.
type fetch struct {
	path   *Path
	sink   transfer.Sink
	batch  *borrow.Batch
	memory *mapping
	// first is the index in the request of the batch's first object.
	first int
	// next is the post that is not submitted yet, posted are those under way, in order.
	next   *post
	posted []*post
	// refused are the objects with parts that the peer had no room for. full is the reason of the
	// first one: no other object on the GPU is asked for after it, since the peer may take seconds
	// for each refusal.
	refused map[int]error
	full    error
}

// run copies all objects. An error ends the fetch. When run returns, no copy writes to any region.
func (f *fetch) run(ctx context.Context) error {
	limited, cancel := context.WithCancel(ctx)
	defer cancel()
	err := f.copyAll(limited)
	if err != nil {
		cancel() // no post waits for the peer any longer
	}
	for len(f.posted) > 0 {
		// Also after an error the posted copies must end before their memory can be released.
		if failed := f.landed(err == nil); err == nil && failed != nil {
			err = failed
			cancel()
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
		if f.full != nil && slices.Contains(o.OnGPU, true) {
			f.batch.End([]int{i})
			f.sink.Done(f.first+i, fmt.Errorf("%s: %w", o.Head.Ref, f.full))
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
		for n := range o.Frames {
			if err := f.add(ctx, i, n, into[n].Frame); err != nil {
				return err
			}
		}
		f.next.objects = append(f.next.objects, i)
		if len(f.next.copies) == 0 && len(f.next.parts) == 0 { // it has no bytes, or its last bytes are submitted
			if err := f.submit(ctx); err != nil {
				return err
			}
		}
	}
	return f.submit(ctx)
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

// add adds the copies of one frame of an object, and submits whenever a limit is reached.
func (f *fetch) add(ctx context.Context, object, frame int, into memory.Frame) error {
	o := &f.batch.Objects[object]
	from := o.Frames[frame]
	onGPU := len(o.OnGPU) > 0 && o.OnGPU[frame]
	for done := uint64(0); done < from.Bytes && f.refused[object] == nil; {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		p, full := f.next, false
		if onGPU {
			at := borrow.NextPart(p.staged)
			n := min(from.Bytes-done, f.batch.StageBytes()-at)
			p.parts = append(p.parts, borrow.Part{Object: object, Frame: frame, Offset: done, Bytes: n})
			p.into = append(p.into, memory.Frame{Offset: into.Offset + done, Bytes: n})
			p.staged = at + n
			done += n
			full = borrow.NextPart(p.staged) >= f.batch.StageBytes() || len(p.parts) >= borrow.StageParts
		} else {
			n := min(from.Bytes-done, postBytes-p.bytes)
			var err error
			if p.copies, err = f.copies(p.copies, memory.Frame{Offset: into.Offset + done, Bytes: n}, from.Offset+done); err != nil {
				return err
			}
			p.bytes += n
			done += n
			full = p.bytes >= postBytes || len(p.copies) >= postCopies
		}
		if full {
			if err := f.submit(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// copies appends the copies to a frame of our slab from an offset in the peer's pinned memory.
func (f *fetch) copies(list []cuda.Copy, into memory.Frame, from uint64) ([]cuda.Copy, error) {
	to := f.path.config.Slab.Pointer(into.Offset, into.Bytes)
	return f.memory.lent.Copies(list, to, memory.Frame{Offset: from, Bytes: into.Bytes})
}

// submit submits the next post as soon as the window has room.
func (f *fetch) submit(ctx context.Context) error {
	p := f.next
	if p.empty() {
		return nil
	}
	most := window
	if len(p.parts) > 0 {
		most = stageWindow
	}
	for len(f.posted) >= most {
		if err := f.landed(true); err != nil {
			return err
		}
	}
	f.next = new(post)
	if len(p.parts) == 0 {
		err := f.begin(p)
		if err == nil {
			f.posted = append(f.posted, p)
		}
		return err
	}
	f.posted = append(f.posted, p)
	p.ended = make(chan struct{})
	go func() {
		defer close(p.ended)
		p.err = f.fetchStaged(ctx, p)
	}()
	return nil
}

// begin submits the copies of a post. A post without copies is over when the earlier ones are.
func (f *fetch) begin(p *post) (err error) {
	if why := f.memory.lent.Pageable(); why != nil {
		f.memory.told.Do(func() {
			f.path.config.Log.Warn("the host memory of a peer is not pinned here: it is read more slowly", "error", why)
		})
	}
	p.copying, err = f.path.copier.Start(p.copies, f.memory.lent.Kernels())
	return err
}

// fetchStaged lets the peer's GPU copy the parts of a post to the peer's pinned memory, and ours
// copy them, and what else the post has, from there. If the peer has no room for the parts, the
// error matches ErrUnreachable, and only the rest was copied. When it returns, no copy is under
// way.
func (f *fetch) fetchStaged(ctx context.Context, p *post) error {
	place, refused := f.batch.Stage(ctx, p.parts)
	switch {
	case refused == nil:
		defer place.End()
		for i, into := range p.into {
			var err error
			if p.copies, err = f.copies(p.copies, into, place.Parts[i].Offset); err != nil {
				return err
			}
		}
	case !errors.Is(refused, transfer.ErrUnreachable):
		return refused
	}
	if err := f.begin(p); err != nil {
		return err
	}
	if err := p.copying.Wait(); err != nil {
		return err
	}
	if refused == nil {
		f.memory.staged.Store(true)
	}
	return refused
}

// landed waits for the first post. If tell is true it reports the post's objects to the sink.
func (f *fetch) landed(tell bool) error {
	p := f.posted[0]
	f.posted = f.posted[1:]
	var err error
	if p.ended == nil {
		err = p.copying.Wait()
	} else {
		<-p.ended
		err = p.err
	}
	if errors.Is(err, transfer.ErrUnreachable) {
		// The peer has no room for these parts. Other objects do not depend on them.
		for _, part := range p.parts {
			f.refused[part.Object] = err
		}
		if f.full == nil {
			f.full = err
		}
		err = nil
	}
	if err != nil || !tell || len(p.objects) == 0 {
		return err
	}
	var lost error
	received := 0
	for n, held := range f.batch.End(p.objects) {
		i := p.objects[n]
		head := &f.batch.Objects[i].Head
		if why := f.refused[i]; why != nil {
			f.sink.Done(f.first+i, fmt.Errorf("%s: %w", head.Ref, why))
			continue
		}
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
