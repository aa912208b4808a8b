package grpcpath

import (
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

// fetchParts fetches one object over several connections if the object is large. The first stream
// fetches part 0 and brings the head; it starts the other streams. A single stream is limited by
// the one goroutine that writes and the one that reads.
func (p *Path) fetchParts(ctx context.Context, peer transfer.Peer, ref transfer.Ref, sink transfer.Sink) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	first := &firstPart{sink: sink, begin: func(head transfer.Head, regions []transfer.Region) *others {
		o := &others{errs: make([]error, p.config.Streams)}
		for k := 1; k < p.config.Streams; k++ {
			mine := part{uint32(k), uint32(p.config.Streams)}
			if !mine.needed(head) {
				continue
			}
			o.wait.Go(func() {
				s := &otherPart{head: head, regions: regions}
				err := p.fetch(ctx, peer, []transfer.Ref{head.Ref}, s, mine)
				if o.errs[k] = errors.Join(err, s.err); o.errs[k] != nil {
					cancel(o.errs[k])
				}
			})
		}
		return o
	}}
	err := p.fetch(ctx, peer, []transfer.Ref{ref}, first, part{0, uint32(p.config.Streams)})
	failed := errors.Join(err, first.err)
	if failed != nil {
		cancel(failed)
	}
	if o := first.others; o != nil {
		o.wait.Wait()
		// Prefer the error of another part: part 0 was then only cancelled. If the others were only
		// cancelled, the error of part 0 is the cause.
		if err := first.others.cause(); err != nil && (!errors.Is(err, context.Canceled) || failed == nil) {
			return err
		}
	}
	if err != nil {
		return err
	}
	sink.Done(0, first.err)
	return nil
}

// cause returns why a part failed. It prefers an error that is not the cancellation of that part on
// behalf of another one. It returns nil if all parts have come.
func (o *others) cause() (cause error) {
	for _, err := range o.errs {
		if err != nil && (cause == nil || errors.Is(cause, context.Canceled)) {
			cause = err
		}
	}
	return cause
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

// others are the streams besides the first one. Each writes its own element of errs.
type others struct {
	wait sync.WaitGroup
	errs []error
}

// firstPart is the sink of part 0. It starts the other streams when the object has a place.
type firstPart struct {
	sink   transfer.Sink
	begin  func(transfer.Head, []transfer.Region) *others
	others *others
	err    error
}

// Capabilities is part of transfer.Sink: the sink has no optional ability.
func (*firstPart) Capabilities() transfer.SinkCapabilities { return transfer.SinkCapabilities{} }

// Place is part of transfer.Sink.
func (f *firstPart) Place(ctx context.Context, index int, head transfer.Head) ([]transfer.Region, error) {
	regions, err := f.sink.Place(ctx, index, head)
	if err == nil && head.Fits(regions) == nil {
		f.others = f.begin(head, regions)
	}
	return regions, err
}

// Done is part of transfer.Sink.
func (f *firstPart) Done(_ int, err error) { f.err = err }

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
