package cuda

import (
	"errors"

	"github.com/millrace/millrace/memory"
)

// bounce is host memory to and from which a slab's bytes are copied, with the copies that are in
// progress. Only one goroutine may use it at a time. It has the methods that the buffers of a slab
// and the slots of a ring have in common.
type bounce struct {
	slab *Slab
	data []byte
	// out and in are the streams of Load and of Store.
	out, in *Stream
	// event is recorded behind the copies that were begun. It is nil if data is not pinned: then
	// Load and Store themselves wait for the copies.
	event *Event
	begun bool
	err   error
}

// Bytes is part of memory.Buffer.
func (b *bounce) Bytes() []byte { return b.data }

// Load is part of memory.Buffer.
func (b *bounce) Load(pieces ...memory.Piece) {
	b.begin(pieces, b.out, b.slab.ReadInto, func(host, device, n uint64) Copy { return ToHost(host, device, n) })
}

// Store is part of memory.Buffer.
func (b *bounce) Store(pieces ...memory.Piece) {
	b.begin(pieces, b.in, b.slab.WriteFrom, func(host, device, n uint64) Copy { return ToDevice(device, host, n) })
}

func (b *bounce) begin(pieces []memory.Piece, stream *Stream, now func(uint64, []byte) error, copies func(host, device, n uint64) Copy) {
	if b.event == nil {
		for _, p := range pieces {
			if b.err == nil {
				b.err = now(p.Offset, b.data[p.At:p.At+p.Bytes])
			}
		}
		return
	}
	list := make([]Copy, len(pieces))
	for i, p := range pieces {
		list[i] = copies(address(b.data[p.At:p.At+p.Bytes]), b.slab.Pointer(p.Offset, p.Bytes), p.Bytes)
	}
	if b.err = stream.Copy(list, b.event); b.err != nil {
		// Some copies may be in progress.
		b.err = errors.Join(b.err, stream.Sync())
		return
	}
	b.begun = true
}

// Wait is part of memory.Buffer.
func (b *bounce) Wait() error {
	if b.begun {
		b.begun = false
		b.err = b.event.Sync()
	}
	err := b.err
	b.err = nil
	return err
}
