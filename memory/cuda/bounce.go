package cuda

import (
	"errors"

	"github.com/millrace/millrace/memory"
)

const (
	// bounceRows is the number of rows of a bounce's table, counted as for NewGather. More pieces
	// are copied by the copy engine.
	bounceRows = 4096
	// bounceBlocks is the number of blocks that a gather to or from host memory uses. They have
	// enough loads outstanding to saturate the link to the host, and leave most of the device to
	// the kernels of tasks.
	bounceBlocks = 32
	// bouncePerCopy is what the kernel moves to or from host memory in the time that each further
	// copy takes the copy engine, at 50 GB/s.
	bouncePerCopy = 160 << 10
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
	// gather, if not nil, copies many small pieces by one launch. table is the index of the
	// bounce's own table.
	gather *Gather
	table  int
}

// newBounceGather loads the kernel for the given number of bounces in pinned memory, if kernels
// find that memory where the copy engine finds it.
func (d *Device) newBounceGather(pinned []byte, bounces int) (*Gather, error) {
	if err := d.findable(pinned); err != nil {
		return nil, err
	}
	return d.NewGather(bounces, bounceRows)
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

func (b *bounce) begin(pieces []memory.Piece, stream *Stream, now func(uint64, []byte) error, one func(host, device, n uint64) Copy) {
	if b.event == nil {
		for _, p := range pieces {
			if b.err == nil {
				b.err = now(p.Offset, b.data[p.At:p.At+p.Bytes])
			}
		}
		return
	}
	list := make([]Copy, 0, len(pieces))
	for _, p := range pieces {
		c := one(address(b.data[p.At:p.At+p.Bytes]), b.slab.Pointer(p.Offset, p.Bytes), p.Bytes)
		if last := len(list) - 1; last >= 0 && list[last].To+list[last].Bytes == c.To && list[last].From+list[last].Bytes == c.From {
			list[last].Bytes += c.Bytes
			continue
		}
		list = append(list, c)
	}
	if b.gather.pays(list) {
		b.err = b.gather.copy(b.table, list, stream, b.event)
	} else {
		b.err = stream.Copy(list, b.event)
	}
	if b.err != nil {
		// Some copies may be in progress.
		b.err = errors.Join(b.err, stream.Sync())
		return
	}
	b.begun = true
}

// pays says whether the gather kernel is the faster way for a list of copies between the device and
// host memory. It never is for a nil Gather.
func (g *Gather) pays(list []Copy) bool {
	if g == nil {
		return false
	}
	// work is the number of bytes, weighted by the time that the kernel takes for them: it copies
	// by words of 16 bytes, or of 4 bytes or single bytes if the two addresses are not equal modulo
	// the longer word.
	rows, work := uint64(0), uint64(0)
	for _, c := range list {
		rows += 1 + c.Bytes/GatherRow
		switch apart := c.To ^ c.From; {
		case apart%16 == 0:
			work += c.Bytes
		case apart%4 == 0:
			work += 2 * c.Bytes
		default:
			work += 8 * c.Bytes
		}
	}
	return rows <= bounceRows && GatherPays(len(list), work, bouncePerCopy)
}

// copy submits a gather of a list of copies between the device and host memory, with an event
// behind it. It uses a table until the event is reached.
func (g *Gather) copy(index int, list []Copy, stream *Stream, after *Event) error {
	bytes := uint64(0)
	for _, c := range list {
		bytes += c.Bytes
	}
	table := g.Table(index, bytes, bounceBlocks)
	for _, c := range list {
		table.Add(Row{To: c.To, From: c.From, Bytes: c.Bytes})
	}
	var batch Batch
	table.Launch(&batch, false)
	return stream.Submit(&batch, after)
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
