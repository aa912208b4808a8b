package ucx

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/transfer"
)

// messageKind is what a message between peers says. Numbers are little-endian;
// peers run the same version of UCX, but not always of Millrace: a message that
// cannot be read fails its connection.
type messageKind uint8

const (
	// lease asks: ttl in ms (uint32), then task (uint64) and generation (uint32)
	// of each object.
	messageLease messageKind = iota + 1
	// leased answers: for each object a grant.
	messageLeased
	// release gives back: lease (uint64) of each object.
	messageRelease
	// released answers: a byte for each lease, 1 if it held.
	messageReleased
	// bye: the sender closes the connection.
	messageBye
	// read asks for a range of the slab, on lanes that cannot read by themselves:
	// offset (uint64) and length (uint64).
	messageRead
	// data answers: the bytes.
	messageData
)

// A message begins with the receiver's token, the number of the request, kind
// and count.
type preamble struct {
	token   uint64
	request uint64
	kind    messageKind
	count   uint32
}

func (p preamble) header() (h header) {
	binary.LittleEndian.PutUint64(h[0:], p.token)
	binary.LittleEndian.PutUint64(h[8:], p.request)
	h[16] = byte(p.kind)
	binary.LittleEndian.PutUint32(h[20:], p.count)
	return h
}

func (h header) preamble() preamble {
	return preamble{
		token: binary.LittleEndian.Uint64(h[0:]), request: binary.LittleEndian.Uint64(h[8:]),
		kind: messageKind(h[16]), count: binary.LittleEndian.Uint32(h[20:]),
	}
}

// grantKind says what a grant holds.
type grantKind uint8

const (
	// grantLease: lease, description, offsets of the frames in the slab.
	grantLease grantKind = iota
	// grantInline: description, bytes.
	grantInline
	// grantMissing: the object is not here.
	grantMissing
	// grantError: it is here and cannot be read, and why.
	grantError
	// grantElsewhere: it is here, but not in memory that this path reads, and where.
	grantElsewhere
	// grantLater: the answer had no room for it; ask again.
	grantLater
)

// grant is what becomes of one object of a lease request.
type grant struct {
	kind    grantKind
	lease   transfer.LeaseID
	head    transfer.Head
	offsets []uint64
	// bytes are all frames, one behind the other.
	bytes []byte
	text  string
}

// describedBytes is the size of a grant with a description, without bulk.
func describedBytes(h transfer.Head) int {
	return 1 + 8 + 4 + 4 + 4 + len(h.Header) + 8*len(h.FrameBytes)
}

func appendDescription(b []byte, h transfer.Head) []byte {
	b = binary.LittleEndian.AppendUint64(b, uint64(h.Ref.Task))
	b = binary.LittleEndian.AppendUint32(b, uint32(h.Ref.Generation))
	b = binary.LittleEndian.AppendUint32(b, uint32(len(h.Header)))
	b = binary.LittleEndian.AppendUint32(b, uint32(len(h.FrameBytes)))
	b = append(b, h.Header...)
	for _, n := range h.FrameBytes {
		b = binary.LittleEndian.AppendUint64(b, n)
	}
	return b
}

var errTruncated = errors.New("a message ends in its middle")

// reader takes a message apart. After the first error all it returns is zero.
type reader struct {
	b   []byte
	err error
}

func (r *reader) take(n uint64) []byte {
	if r.err != nil || n > uint64(len(r.b)) {
		r.err = errTruncated
		return nil
	}
	out := r.b[:n:n]
	r.b = r.b[n:]
	return out
}

func (r *reader) u8() uint8 {
	if b := r.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (r *reader) u32() uint32 {
	if b := r.take(4); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

func (r *reader) u64() uint64 {
	if b := r.take(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

func (r *reader) u64s(n uint32) []uint64 {
	b := r.take(8 * uint64(n))
	if len(b) == 0 {
		return nil
	}
	out := make([]uint64, n)
	for i := range out {
		out[i] = binary.LittleEndian.Uint64(b[8*i:])
	}
	return out
}

func (r *reader) refs(n uint32) []transfer.Ref {
	b := r.take(12 * uint64(n))
	if len(b) == 0 {
		return nil
	}
	out := make([]transfer.Ref, n)
	for i := range out {
		out[i].Task = ids.TaskID(binary.LittleEndian.Uint64(b[12*i:]))
		out[i].Generation = ids.Attempt(binary.LittleEndian.Uint32(b[12*i+8:]))
	}
	return out
}

// grant reads one of a peer whose slab has the given size. Its bytes lie in the
// message.
func (r *reader) grant(slabBytes uint64) grant {
	g := grant{kind: grantKind(r.u8())}
	switch g.kind {
	case grantMissing, grantLater:
		return g
	case grantError, grantElsewhere:
		g.text = string(r.take(uint64(r.u32())))
		return g
	case grantLease:
		g.lease = transfer.LeaseID(r.u64())
	case grantInline:
	default:
		r.fail(fmt.Errorf("a grant of kind %d", g.kind))
		return g
	}
	g.head.Ref.Task = ids.TaskID(r.u64())
	g.head.Ref.Generation = ids.Attempt(r.u32())
	header, frames := r.u32(), r.u32()
	g.head.Header = append([]byte(nil), r.take(uint64(header))...)
	g.head.FrameBytes = r.u64s(frames)
	if r.err != nil {
		return g
	}
	if g.kind == grantInline {
		var sum uint64
		for _, n := range g.head.FrameBytes {
			if sum += n; n > uint64(len(r.b)) || sum > uint64(len(r.b)) {
				r.fail(errTruncated)
				return g
			}
		}
		g.bytes = r.take(sum)
		return g
	}
	g.offsets = r.u64s(frames)
	if r.err != nil {
		return g
	}
	for i, n := range g.head.FrameBytes {
		if f := (memory.Frame{Offset: g.offsets[i], Bytes: n}); n > 0 && !f.Within(slabBytes) {
			r.fail(fmt.Errorf("frame %d of %s at [%d, +%d), outside of the slab of %d bytes", i, g.head.Ref, f.Offset, n, slabBytes))
		}
	}
	return g
}

func (r *reader) fail(err error) {
	if r.err == nil {
		r.err = err
	}
}
