package transfertest

import (
	"context"

	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/transfer"
)

// Batching is a Sink that takes many objects in one call.
type Batching struct {
	*Sink
	// Most is the largest number of objects per call; 0: no limit.
	Most int
}

// Capabilities is part of transfer.Sink.
func (b Batching) Capabilities() transfer.SinkCapabilities {
	return transfer.SinkCapabilities{Batch: b}
}

// PlaceBatch is part of transfer.Batcher.
func (b Batching) PlaceBatch(ctx context.Context, first int, heads []transfer.Head, into []memory.Frame) (transfer.Placed, error) {
	placed := transfer.Placed{Frames: into}
	for i, head := range heads {
		if b.Most > 0 && i == b.Most {
			return placed, nil
		}
		regions, err := b.Place(ctx, first+i, head)
		if err != nil {
			return placed, err
		}
		for _, r := range regions {
			if placed.Space != nil && placed.Space != r.Space {
				return placed, nil
			}
			placed.Space, placed.Frames = r.Space, append(placed.Frames, r.Frame)
		}
		placed.Objects++
	}
	return placed, nil
}

// DoneBatch is part of transfer.Batcher.
func (b Batching) DoneBatch(first, count int) {
	for i := first; i < first+count; i++ {
		b.Done(i, nil)
	}
}
