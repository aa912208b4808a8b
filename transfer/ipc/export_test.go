package ipc

import (
	"context"

	"github.com/millrace/millrace/transfer"
)

// Look performs the lookups and the placing of Fetch for objects in a peer's object index, without
// copies.
func (p *Path) Look(ctx context.Context, at transfer.Peer, refs []transfer.Ref, sink transfer.Sink) error {
	g, err := p.lenders.Pin(ctx, at, len(refs))
	if err != nil {
		return err
	}
	defer g.End()
	f := p.newFetch(sink, g.Memory)
	defer f.close()
	f.guard, f.refs, f.enough = g, refs, 1<<62
	for first := 0; first < len(refs); first += stretch {
		count := min(stretch, len(refs)-first)
		frames, sum := f.find(first, count)
		if _, err := f.place(ctx, first, f.heads[:count], frames, sum); err != nil {
			return err
		}
	}
	return nil
}

// Tables is the number of tables for gathers.
const Tables = tables

// TakeTable takes a table for a gather, and returns the function that gives it back; nil: none is
// free.
func (p *Path) TakeTable() (give func()) {
	slot := p.gather.take()
	if slot < 0 {
		return nil
	}
	return func() { p.gather.give(slot) }
}
