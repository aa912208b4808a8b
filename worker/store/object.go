package store

import (
	"fmt"

	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/ledger"
	"github.com/millrace/millrace/transfer"
)

// Object is a sealed object for a reader. Its header never changes. Its bytes stay while they are
// pinned, and their place stays while a pin or a reservation holds them there.
type Object struct {
	ID ledger.ObjectID
	// Header is nil exactly if HeaderAt is set.
	Header []byte
	// Frames are the places of the bytes in the slab. If InSlab is false, only their sizes are
	// valid.
	Frames []memory.Frame
	// HeaderAt is the place of a large header, which an object has instead of frames. Its size is 0
	// for all other objects. See ReadHeader.
	HeaderAt memory.Frame
	InSlab   bool
}

// Bytes is the size that the scheduler counts: frames and header.
func (o Object) Bytes() (n uint64) {
	return o.Placed() + uint64(len(o.Header))
}

// Placed is the number of bytes that have a place in the slab or in a tier below, and need a pin to
// stay there; 0 for a small header.
func (o Object) Placed() (n uint64) {
	for _, f := range o.Frames {
		n += f.Bytes
	}
	return n + o.HeaderAt.Bytes
}

// HasPlace says whether the ledger knows the object, which is so for all but small headers.
func (o Object) HasPlace() bool { return len(o.Frames) > 0 || o.HeaderAt.Bytes > 0 }

// inFrame marks objects in the ledger whose only frame is their header.
var inFrame = []byte("the frame")

// objectOf converts a ledger object for readers.
func objectOf(v ledger.Object) Object {
	if len(v.Header) > 0 && &v.Header[0] == &inFrame[0] {
		return Object{ID: v.ID, HeaderAt: v.Frames[0], InSlab: v.InSlab}
	}
	return Object{ID: v.ID, Header: v.Header, Frames: v.Frames, InSlab: v.InSlab}
}

// ReadHeader returns the header of an object. REQUIRES: a large header is in the slab, and stays
// there during the call.
func (s *Store) ReadHeader(o Object) ([]byte, error) {
	if o.HeaderAt.Bytes == 0 {
		return o.Header, nil
	}
	return copyOf(transfer.Region{Space: s.space, Frame: o.HeaderAt})
}

// copyOf returns a copy of the bytes of a region.
func copyOf(r transfer.Region) ([]byte, error) {
	out := make([]byte, r.Frame.Bytes)
	if from, ok := r.Space.(memory.Reader); ok {
		if err := from.ReadInto(r.Frame.Offset, out); err != nil {
			return nil, fmt.Errorf("store: %w", err)
		}
		return out, nil
	}
	copy(out, r.Space.Bytes(r.Frame.Offset, r.Frame.Bytes))
	return out, nil
}
