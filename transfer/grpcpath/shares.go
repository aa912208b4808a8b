package grpcpath

import (
	"context"
	"errors"
	"sync"

	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/transfer"
)

// manyObjects is the number of objects from which each connection fetches a share of them, and each
// object travels over one connection. With fewer of them, large objects travel over several.
const manyObjects = 64

// fetchShares fetches many objects, a share over each connection. A stream of small objects is
// limited by what its two ends do for each object, and not by its bytes.
func (p *Path) fetchShares(ctx context.Context, peer transfer.Peer, refs []transfer.Ref, sink transfer.Sink) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var one sync.Mutex
	var wait sync.WaitGroup
	errs := make([]error, p.config.Streams)
	for k := range p.config.Streams {
		first, end := len(refs)*k/p.config.Streams, len(refs)*(k+1)/p.config.Streams
		wait.Go(func() {
			errs[k] = p.fetch(ctx, peer, refs[first:end], &share{sink: sink, first: first, one: &one}, part{})
			if errs[k] != nil {
				cancel(errs[k])
			}
		})
	}
	wait.Wait()
	return causeOf(errs)
}

// causeOf returns the error that ended streams of which each cancelled the others. It prefers an
// error that is not such a cancellation. It returns nil if no stream failed.
func causeOf(errs []error) (cause error) {
	for _, err := range errs {
		if err != nil && (cause == nil || errors.Is(cause, context.Canceled)) {
			cause = err
		}
	}
	return cause
}

// share is the sink of one of several streams that run at the same time. They share a sink, which
// one of them calls at a time.
type share struct {
	sink  transfer.Sink
	first int
	one   *sync.Mutex
}

// Capabilities is part of transfer.Sink.
func (s *share) Capabilities() transfer.SinkCapabilities {
	if s.sink.Capabilities().Batch == nil {
		return transfer.SinkCapabilities{}
	}
	return transfer.SinkCapabilities{Batch: s}
}

// PlaceBatch is part of transfer.Batcher.
func (s *share) PlaceBatch(ctx context.Context, first int, heads []transfer.Head, into []memory.Frame) (transfer.Placed, error) {
	s.one.Lock()
	defer s.one.Unlock()
	return s.sink.Capabilities().Batch.PlaceBatch(ctx, s.first+first, heads, into)
}

// DoneBatch is part of transfer.Batcher.
func (s *share) DoneBatch(first, count int) {
	s.one.Lock()
	defer s.one.Unlock()
	s.sink.Capabilities().Batch.DoneBatch(s.first+first, count)
}

// Place is part of transfer.Sink.
func (s *share) Place(ctx context.Context, index int, head transfer.Head) ([]transfer.Region, error) {
	s.one.Lock()
	defer s.one.Unlock()
	return s.sink.Place(ctx, s.first+index, head)
}

// Done is part of transfer.Sink.
func (s *share) Done(index int, err error) {
	s.one.Lock()
	defer s.one.Unlock()
	s.sink.Done(s.first+index, err)
}
