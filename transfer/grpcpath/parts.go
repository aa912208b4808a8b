package grpcpath

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/millrace/millrace/transfer"
)

const (
	maxParts = 16
	// partBytes is the unit of shares: a share is a multiple of it. So an object whose frames are
	// not larger than this travels in one stream.
	partBytes = 8 << 20
)

// part is a share of every frame of an object. of is the number of parts; 0 and 1 mean the whole
// object.
type part struct{ index, of uint32 }

// bounds returns the range of a frame of n bytes that belongs to the part.
func (p part) bounds(n uint64) (begin, end uint64) {
	if p.of < 2 {
		return 0, n
	}
	share := (n + uint64(p.of) - 1) / uint64(p.of)
	share = (share + partBytes - 1) / partBytes * partBytes
	begin = min(uint64(p.index)*share, n)
	return begin, min(begin+share, n)
}

// fetchParts fetches objects, the large ones over several connections. The first stream fetches
// part 0 of each object, which is all of a small one, and brings the head. It starts the other
// streams for each large object, and waits for them before it places the next one: they end at
// about the same time as its own part. A single stream is limited by the one goroutine that writes
// and the one that reads.
func (p *Path) fetchParts(ctx context.Context, peer transfer.Peer, refs []transfer.Ref, sink transfer.Sink) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	first := &firstPart{sink: sink, early: map[int]error{}, begin: func(index int, head transfer.Head, regions []transfer.Region) *others {
		if !(part{1, uint32(p.config.Streams)}).needed(head) {
			return nil
		}
		o := &others{index: index, parts: make([]otherPart, p.config.Streams), errs: make([]error, p.config.Streams)}
		for k := 1; k < p.config.Streams; k++ {
			mine := part{uint32(k), uint32(p.config.Streams)}
			if !mine.needed(head) {
				continue
			}
			o.wait.Go(func() {
				o.parts[k] = otherPart{head: head, regions: regions}
				if o.errs[k] = p.fetch(ctx, peer, []transfer.Ref{head.Ref}, &o.parts[k], mine); o.errs[k] != nil {
					cancel(o.errs[k])
				}
			})
		}
		return o
	}}
	err := p.fetch(ctx, peer, refs, first, part{0, uint32(p.config.Streams)})
	if err != nil {
		cancel(err)
	}
	// Prefer the error of another part: part 0 was then only cancelled. If the others were only
	// cancelled, the error of part 0 is the cause.
	if other := first.finish(); other != nil && (!errors.Is(other, context.Canceled) || err == nil) {
		return other
	}
	return err
}

// needed says whether a part contains any byte of an object.
func (p part) needed(head transfer.Head) bool {
	for _, n := range head.FrameBytes {
		if begin, end := p.bounds(n); begin < end {
			return true
		}
	}
	return false
}

// others are the streams besides the first one for one object. Each writes its own element of parts
// and of errs, the error that ended it.
type others struct {
	index int
	wait  sync.WaitGroup
	parts []otherPart
	errs  []error
	// done: part 0 has come, with the error err.
	done bool
	err  error
}

// object returns the first error of the object itself, nil if all other parts have come.
func (o *others) object() error {
	for i := range o.parts {
		if err := o.parts[i].err; err != nil {
			return err
		}
	}
	return nil
}

// firstPart is the sink of part 0 of all objects. It starts the other streams of an object when the
// object has a place.
type firstPart struct {
	sink  transfer.Sink
	begin func(index int, head transfer.Head, regions []transfer.Region) *others
	// others are the other streams of the object that was placed last. It is nil after finish, and
	// for a small object.
	others *others
	// early has the errors of objects whose other parts ended before part 0.
	early map[int]error
	// failed is the error of a stream, which ends the fetch.
	failed error
}

// Capabilities is part of transfer.Sink: the sink has no optional ability.
func (*firstPart) Capabilities() transfer.SinkCapabilities { return transfer.SinkCapabilities{} }

// Place is part of transfer.Sink.
func (f *firstPart) Place(ctx context.Context, index int, head transfer.Head) ([]transfer.Region, error) {
	if err := f.finish(); err != nil {
		return nil, err
	}
	regions, err := f.sink.Place(ctx, index, head)
	if err == nil && head.Fits(regions) == nil {
		f.others = f.begin(index, head, regions)
	}
	return regions, err
}

// Done is part of transfer.Sink. The object is done when its other parts are.
func (f *firstPart) Done(index int, err error) {
	if o := f.others; o != nil && o.index == index {
		o.done, o.err = true, err
		return
	}
	f.sink.Done(index, cmp.Or(err, f.early[index]))
}

// finish waits for the other streams of the last object.
func (f *firstPart) finish() error {
	o := f.others
	if o == nil {
		return f.failed
	}
	f.others = nil
	o.wait.Wait()
	switch f.failed = causeOf(o.errs); {
	case f.failed != nil:
	case o.done:
		f.sink.Done(o.index, cmp.Or(o.err, o.object()))
	default:
		f.early[o.index] = o.object()
	}
	return f.failed
}

// otherPart is the sink of any other part.
type otherPart struct {
	head    transfer.Head
	regions []transfer.Region
	err     error
}

// Capabilities is part of transfer.Sink: the sink has no optional ability.
func (*otherPart) Capabilities() transfer.SinkCapabilities { return transfer.SinkCapabilities{} }

// Place is part of transfer.Sink.
func (o *otherPart) Place(_ context.Context, _ int, head transfer.Head) ([]transfer.Region, error) {
	if len(head.FrameBytes) != len(o.head.FrameBytes) {
		return nil, fmt.Errorf("%s: %w: its parts differ", head.Ref, transfer.ErrProtocol)
	}
	return o.regions, nil
}

// Done is part of transfer.Sink.
func (o *otherPart) Done(_ int, err error) { o.err = err }
