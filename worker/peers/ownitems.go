package peers

import (
	"context"

	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/transfer"
)

// copyOwn carries out a fetch of items whose lists are here, in a tier below the slab: it copies
// the frames of the items into the slab, from where they are. So the lists stay there, and only the
// items need room.
func (f *fetch) copyOwn(ctx context.Context) error {
	source := f.peers.config.Store.Source()
	for i := range f.refs {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		leased := source.Lease(transfer.Reader{Worker: f.peer.Worker}, f.refs[i:i+1], 0)[0]
		if leased.Err != nil {
			f.Done(i, leased.Err)
			continue
		}
		into, err := f.Place(ctx, i, leased.Head)
		for n := 0; n < len(into) && err == nil; n++ {
			err = copyRegion(ctx, into[n], leased.Regions[n])
		}
		source.Release([]transfer.LeaseID{leased.Lease})
		f.Done(i, err)
	}
	return nil
}

// copyRegion copies the bytes of a region to one of the slab with the same size.
func copyRegion(ctx context.Context, to, from transfer.Region) error {
	target, data := to.Bytes(), from.Bytes()
	reader, _ := from.Space.(memory.Reader)
	staged, _ := to.Space.(memory.Staged)
	var buffer []byte
	if target == nil && data == nil {
		buffer = make([]byte, min(from.Frame.Bytes, memory.StageBytes))
	}
	for at := uint64(0); at < from.Frame.Bytes; {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		n := min(from.Frame.Bytes-at, memory.StageBytes)
		part := buffer
		switch {
		case data != nil:
			part = data[at : at+n]
		case target != nil:
			part = target[at : at+n]
		}
		part = part[:n]
		if data == nil {
			if err := reader.ReadInto(from.Frame.Offset+at, part); err != nil {
				return err
			}
		}
		if target == nil {
			if err := staged.WriteFrom(to.Frame.Offset+at, part); err != nil {
				return err
			}
		} else if data != nil {
			copy(target[at:], part)
		}
		at += n
	}
	return nil
}
