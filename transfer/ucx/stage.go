package ucx

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/transfer"
)

// The source's side of the rings: a reader asks for ranges of the slab, which are copied to a slot
// of the ring. The reader reads the slot and gives it back.

// stage takes the request of a reader. It returns false if the request makes no sense.
func (l *loop) stage(n *conn, request uint64, frames []memory.Frame) bool {
	pieces, bytes := pack(frames)
	if l.c.out == nil || len(frames) == 0 || bytes > memory.StageBytes {
		return false
	}
	for _, f := range frames {
		if f.Bytes == 0 || !f.Within(l.c.config.Space.Size()) {
			return false
		}
	}
	if !l.stager.ask(&staging{conn: n, request: request, pieces: pieces}) {
		return false
	}
	l.loadNext()
	return true
}

// pack returns where ranges of a slab lie in a slot, and their size there. If they do not fit into
// a slot, that size is larger than a slot.
func pack(frames []memory.Frame) (pieces []memory.Piece, bytes uint64) {
	pieces = make([]memory.Piece, 0, len(frames))
	for _, f := range frames {
		at := aligned(bytes)
		if f.Bytes > memory.StageBytes || at+f.Bytes > memory.StageBytes {
			return nil, memory.StageBytes + 1
		}
		pieces, bytes = append(pieces, memory.Piece{At: at, Frame: f}), at+f.Bytes
	}
	return pieces, bytes
}

// loadNext begins the copies of the requests for which there are slots. The copies do not need the
// progress thread. Leases are not checked: as with one-sided reads, the release of the lease tells
// the reader whether the bytes were valid.
func (l *loop) loadNext() {
	for x := l.stager.next(); x != nil; x = l.stager.next() {
		x.conn.copying++
		l.c.serving.Go(func() {
			err := l.c.out.load(x.slot, x.pieces)
			l.c.do(func(l *loop) { l.loaded(x, err) }) // the thread runs: it waits for conn.copying
		})
	}
}

// loaded handles the end of a copy to a slot.
func (l *loop) loaded(x *staging, err error) {
	n := x.conn
	n.copying--
	p := preamble{token: n.theirs, request: x.request, kind: messageStaged}
	switch {
	case n.failure != nil:
		l.stager.back(x)
	case err != nil:
		l.stager.back(x)
		text := err.Error()
		l.send(n, p, len(text), func(b []byte) []byte { return append(b, text...) })
	default:
		l.stager.told(x, time.Now())
		p.count = 1
		l.send(n, p, 12, func(b []byte) []byte {
			b = binary.LittleEndian.AppendUint64(b, l.c.out.slots[x.slot].Offset())
			return binary.LittleEndian.AppendUint32(b, uint32(x.slot))
		})
	}
	l.loadNext()
	l.settle(n)
}

// unstage takes back a slot from a reader. It returns false if the reader has no such slot.
func (l *loop) unstage(n *conn, slot uint32) bool {
	x := l.stager.find(n, slot)
	if x == nil {
		return false
	}
	l.stager.returned(x, time.Now())
	l.loadNext()
	return true
}

// takeBackSlots ends the connections that keep slots for too long and give none back. Nothing that
// such a reader still reads counts, because it gets no confirmation of its leases any more.
func (l *loop) takeBackSlots(now time.Time) {
	for _, n := range l.stager.overdue(now, l.c.config.slotTime) {
		l.hangUp(n, fmt.Errorf("%w: the reader has kept a slot of the ring for more than %v, and given none back", transfer.ErrPeerLost, l.c.config.slotTime))
	}
}

// inRing says whether a reader may be sent a range of the ring: the header page, or a part of a
// slot that it has.
func (l *loop) inRing(n *conn, f memory.Frame) bool {
	if l.c.out == nil {
		return false
	}
	if f.Within(memory.HeaderBytes) {
		return true
	}
	for _, x := range l.stager.lent {
		at := l.c.out.slots[x.slot].Offset()
		if x.conn == n && !x.since.IsZero() && f.Offset >= at && (memory.Frame{Offset: f.Offset - at, Bytes: f.Bytes}).Within(memory.StageBytes) {
			return true
		}
	}
	return false
}
