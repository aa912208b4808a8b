package ucx

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/transfer"
)

// messageKind is the kind of a message between peers. Numbers are little-endian. Peers run
// compatible versions of UCX, but not always the same version of Millrace: a message that cannot be
// parsed fails its connection.
type messageKind uint8

const (
	// messageLease asks for leases: TTL in ms (uint32), then task (uint64), generation (uint32) and
	// item (uint32) of each object.
	messageLease messageKind = iota + 1
	// messageLeased answers messageLease with a grant for each object.
	messageLeased
	// messageRelease releases leases: the ID (uint64) of each.
	messageRelease
	// messageReleased answers messageRelease: one byte for each lease, 1 if it held.
	messageReleased
	// messageBye announces that the sender closes the connection.
	messageBye
	// messageRead asks for a range of memory, on connections that cannot read by themselves: offset
	// (uint64) and length (uint64). The count is the remoteKey of the memory.
	messageRead
	// messageData answers messageRead with the bytes.
	messageData
	// messageStage asks for a slot of the source's ring with the bytes of ranges of its slab:
	// offset and length (uint64) of each.
	messageStage
	// messageStaged answers messageStage: the slot's offset in the ring (uint64) and its number
	// (uint32). With a count of 0 there is no slot, and the payload is the reason.
	messageStaged
	// messageUnstage gives a slot back: its number (uint32). It has no answer.
	messageUnstage
)

// refBytes is the size of an object's name in a message.
const refBytes = 8 + 4 + 4

// preamble is the beginning of every message: the receiver's token, the number of the request, the
// kind and the number of elements.
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

// grantKind says which fields a grant has.
type grantKind uint8

const (
	// grantLease: lease, description of the object, offsets of its frames in the slab.
	grantLease grantKind = iota
	// grantInline: description of the object, its bytes.
	grantInline
	// grantMissing: the object is not here.
	grantMissing
	// grantError: the object is here but cannot be read; with the reason.
	grantError
	// grantElsewhere: the object is here, but not in memory that this path reads; with the reason.
	grantElsewhere
	// grantLater: the answer had no room for the object; the reader must ask again.
	grantLater
)

// grant is the answer for one object of a lease request.
type grant struct {
	kind    grantKind
	lease   transfer.LeaseID
	head    transfer.Head
	offsets []uint64
	// bytes are the bytes of all frames, frame after frame.
	bytes []byte
	text  string
}

// describedBytes is the size of a grant with a description, without offsets or object bytes.
func describedBytes(h transfer.Head) int {
	return 1 + 8 + 4 + 4 + 4 + 4 + len(h.Header) + 8*len(h.FrameBytes)
}

func appendDescription(b []byte, h transfer.Head) []byte {
	b = binary.LittleEndian.AppendUint64(b, uint64(h.Ref.Task))
	b = binary.LittleEndian.AppendUint32(b, uint32(h.Ref.Generation))
	b = binary.LittleEndian.AppendUint32(b, uint32(h.Ref.Item))
	b = binary.LittleEndian.AppendUint32(b, uint32(len(h.Header)))
	b = binary.LittleEndian.AppendUint32(b, uint32(len(h.FrameBytes)))
	b = append(b, h.Header...)
	for _, n := range h.FrameBytes {
		b = binary.LittleEndian.AppendUint64(b, n)
	}
	return b
}

var errTruncated = errors.New("a message ends in its middle")

// reader parses a message. After the first error it returns only zero values.
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

func (r *reader) frames(n uint32) []memory.Frame {
	b := r.u64s(2 * n)
	out := make([]memory.Frame, len(b)/2)
	for i := range out {
		out[i] = memory.Frame{Offset: b[2*i], Bytes: b[2*i+1]}
	}
	return out
}

func (r *reader) refs(n uint32) []transfer.Ref {
	b := r.take(refBytes * uint64(n))
	if len(b) == 0 {
		return nil
	}
	out := make([]transfer.Ref, n)
	for i := range out {
		out[i].Task = ids.TaskID(binary.LittleEndian.Uint64(b[refBytes*i:]))
		out[i].Generation = ids.Attempt(binary.LittleEndian.Uint32(b[refBytes*i+8:]))
		out[i].Item = ids.Item(binary.LittleEndian.Uint32(b[refBytes*i+12:]))
	}
	return out
}

// grant parses one grant of a peer whose slab has the given size. The bytes of the grant lie in the
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
	g.head.Ref.Item = ids.Item(r.u32())
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
