package ucx

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/transfer"
)

// The reader's side of the rings. Reads of a staged route are wanted first. They are packed into
// pieces of at most one slot, so that many small reads need one request. Several pieces are in
// progress at the same time, so that the copy at the source, the network and the copy here overlap.

const (
	// maxPieces is the number of pieces of a connection in progress.
	maxPieces = maxStagings
	// leastPiece is the size of the smallest piece that is cut from a longer queue. The smaller the
	// pieces, the sooner the copies overlap; the larger, the fewer messages there are.
	leastPiece = 512 << 10
	// partial is the number of pieces in progress from which on a piece must be full: meanwhile
	// further reads may come that go with it.
	partial = 2
	// leastPart is the smallest part that is cut from a read to fill a piece.
	leastPart = 64 << 10
)

// pieceState says what a piece waits for.
type pieceState int

const (
	// pieceAsks: the source copies the bytes to a slot of its ring.
	pieceAsks pieceState = iota
	// pieceQueues: a slot of our ring must become free.
	pieceQueues
	// pieceReads: reads are in progress.
	pieceReads
	// pieceStores: the bytes are copied from our slot to the slab.
	pieceStores
)

// piece is a group of wanted reads that are done together; owned by the progress thread.
type piece struct {
	conn  *conn
	parts []part
	// bytes is the size of the piece in a slot.
	bytes uint64
	state pieceState
	// theirs is the slot of the source's ring, which lies at offset in the ring; -1: none. ours is
	// the slot of our ring; -1: none.
	theirs int64
	offset uint64
	ours   int
}

// part says that the bytes of a read lie in the slots from at on. The read is nil if its fetch was
// given up.
type part struct {
	read *read
	at   uint64
}

// want takes the reads of a batch on a staged route. Their remote addresses are those of the
// source's slab, registered there or not.
func (l *loop) want(n *conn, b *batch, reads []*read) {
	if !l.admit(n, b, reads) {
		return
	}
	for _, r := range reads {
		n.wanted += r.length
		if r.length <= smallBytes {
			n.wantedSmall = append(n.wantedSmall, r)
		} else {
			n.wantedLarge = append(n.wantedLarge, r)
		}
	}
}

// take takes the reads of a batch by the route of the connection.
func (l *loop) take(n *conn, b *batch, reads []*read) {
	if n.route.staged() {
		l.want(n, b, reads)
	} else {
		l.queue(n, b, reads)
	}
}

// beginPieces begins the pieces that are due.
func (l *loop) beginPieces(n *conn) {
	for n.wanted > 0 && n.failure == nil && len(n.pieces) < maxPieces {
		p := l.form(n)
		if p == nil {
			return
		}
		n.pieces = append(n.pieces, p)
		if n.route.stagedSource {
			l.askForSlot(p)
		} else {
			l.takeSlot(p)
		}
	}
}

// form cuts a piece from the wanted reads, the small ones first. Its size is a quarter of all that
// is wanted, within bounds, so that the first of a few bytes are not delayed. It returns nil if
// there is nothing to do yet.
func (l *loop) form(n *conn) *piece {
	size := min(max(n.wanted/4, leastPiece), memory.StageBytes) &^ (partAlignment - 1)
	if n.wanted < size && len(n.pieces) >= partial {
		return nil
	}
	p := &piece{conn: n, state: pieceAsks, theirs: -1, ours: -1}
	for _, queue := range []*[]*read{&n.wantedSmall, &n.wantedLarge} {
		for len(*queue) > 0 && len(p.parts) < maxParts {
			r := (*queue)[0]
			if r.batch.dropped(l) {
				n.wanted -= r.length
				(*queue)[0] = nil
				*queue = (*queue)[1:]
				continue
			}
			at := aligned(p.bytes)
			if at >= size || at > 0 && size-at < min(leastPart, r.length) {
				return p
			}
			if size-at < r.length {
				r = r.split(size - at)
			} else {
				(*queue)[0] = nil
				*queue = (*queue)[1:]
			}
			n.wanted -= r.length
			p.parts = append(p.parts, part{r, at})
			p.bytes = at + r.length
		}
	}
	if len(p.parts) == 0 {
		return nil
	}
	return p
}

// split cuts the first n bytes off a read, and returns them as a read of the same batch.
func (r *read) split(n uint64) *read {
	first := *r
	first.length = n
	r.local, r.remote, r.length = r.local+n, r.remote+n, r.length-n
	r.batch.left++
	return &first
}

// askForSlot asks the source to copy the bytes to a slot of its ring.
func (l *loop) askForSlot(p *piece) {
	n := p.conn
	payload := make([]byte, 0, 16*len(p.parts))
	for _, x := range p.parts {
		payload = binary.LittleEndian.AppendUint64(payload, x.read.remote-n.base)
		payload = binary.LittleEndian.AppendUint64(payload, x.read.length)
	}
	l.request(n, messageStage, len(p.parts), payload, func(a answer, err error) {
		if err == nil {
			err = p.gotSlot(a)
		}
		if errors.Is(err, transfer.ErrProtocol) {
			l.fail(n, err) // the source lends a slot that nobody would give back
		}
		if err != nil {
			l.finish(p, err)
			return
		}
		l.takeSlot(p)
	})
}

// gotSlot parses the answer of the source.
func (p *piece) gotSlot(a answer) error {
	if a.count == 0 {
		return fmt.Errorf("%w: it could not copy to its ring: %.500s", transfer.ErrPeerLost, a.payload)
	}
	r := &reader{b: a.payload}
	offset, slot := r.u64(), r.u32()
	f := memory.Frame{Offset: offset, Bytes: memory.StageBytes}
	if r.err != nil || offset < memory.HeaderBytes || !f.Within(p.conn.offer.ringBytes) {
		return fmt.Errorf("%w: slot %d at [%d, +%d) of a ring of %d bytes", transfer.ErrProtocol, slot, offset, f.Bytes, p.conn.offer.ringBytes)
	}
	p.theirs, p.offset = int64(slot), offset
	return nil
}

// takeSlot takes a slot of our ring if the route needs one, and then reads.
func (l *loop) takeSlot(p *piece) {
	switch {
	case !p.conn.route.stagedReader:
	case len(l.inFree) == 0:
		p.state = pieceQueues
		l.queued = append(l.queued, p)
		return
	default:
		last := len(l.inFree) - 1
		p.ours, l.inFree = l.inFree[last], l.inFree[:last]
	}
	l.readPiece(p)
}

// giveSlot gives the slot of a piece to the piece that waits longest.
func (l *loop) giveSlot(p *piece) {
	if p.ours < 0 {
		return
	}
	l.inFree = append(l.inFree, p.ours)
	p.ours = -1
	if len(l.queued) > 0 {
		next := l.queued[0]
		l.queued[0] = nil
		l.queued = l.queued[1:]
		l.takeSlot(next)
	}
}

// readPiece posts the reads of a piece.
func (l *loop) readPiece(p *piece) {
	n, c := p.conn, l.c
	if !slices.ContainsFunc(p.parts, func(x part) bool { return x.read != nil }) {
		l.gotPiece(p, nil)
		return
	}
	p.state = pieceReads
	b := &batch{done: func(l *loop, err error) { l.gotPiece(p, err) }, cancelled: new(atomic.Bool), moved: new(atomic.Uint64)}
	remote := n.offer.ringBase + p.offset
	chunk := n.route.chunk()
	var reads []*read
	if p.theirs >= 0 && p.ours >= 0 {
		reads = appendReads(reads, b, c.in.address(p.ours), remote, p.bytes, chunk, c.in.memory)
	} else {
		for _, x := range p.parts {
			switch {
			case x.read == nil:
			case p.ours >= 0:
				reads = appendReads(reads, b, c.in.address(p.ours)+x.at, x.read.remote, x.read.length, chunk, c.in.memory)
			default:
				reads = appendReads(reads, b, x.read.local, remote+x.at, x.read.length, chunk, x.read.memory)
			}
		}
	}
	if p.theirs >= 0 {
		for _, r := range reads {
			r.key = keyRing
		}
	}
	l.queue(n, b, reads)
}

// gotPiece handles the end of the reads of a piece: it gives the source's slot back, and begins the
// copy to the slab.
func (l *loop) gotPiece(p *piece, err error) {
	n, c := p.conn, l.c
	if p.theirs >= 0 {
		l.send(n, preamble{token: n.theirs, kind: messageUnstage}, 4, func(b []byte) []byte {
			return binary.LittleEndian.AppendUint32(b, uint32(p.theirs))
		})
	}
	var stores []memory.Piece
	for _, x := range p.parts {
		// The reads of proofs do not go to the slab.
		if p.ours >= 0 && x.read != nil && x.read.memory == c.slabMemory {
			stores = append(stores, memory.Piece{At: x.at, Frame: memory.Frame{Offset: x.read.local - c.base, Bytes: x.read.length}})
		}
	}
	if err != nil || len(stores) == 0 {
		l.finish(p, err)
		return
	}
	p.state = pieceStores
	c.serving.Go(func() {
		err := c.in.store(p.ours, stores)
		if err != nil {
			err = fmt.Errorf("copy to the GPU: %w", err)
		}
		c.do(func(l *loop) { l.finish(p, err) }) // the thread runs: it waits for conn.pieces
	})
}

// finish ends a piece.
func (l *loop) finish(p *piece, err error) {
	n := p.conn
	n.pieces = slices.DeleteFunc(n.pieces, func(x *piece) bool { return x == p })
	l.giveSlot(p)
	for _, x := range p.parts {
		if x.read != nil {
			x.read.batch.ended(l, err)
		}
	}
	l.settle(n)
}

// failPieces ends what is wanted on a connection that has failed, and the pieces that wait for a
// slot. The other pieces end by themselves: their reads and their requests fail.
func (l *loop) failPieces(n *conn, err error) {
	wanted := slices.Concat(n.wantedSmall, n.wantedLarge)
	n.wantedSmall, n.wantedLarge, n.wanted = nil, nil, 0
	for _, r := range wanted {
		r.batch.ended(l, err)
	}
	for _, p := range slices.Clone(n.pieces) {
		if p.state == pieceQueues {
			l.queued = slices.DeleteFunc(l.queued, func(x *piece) bool { return x == p })
			l.finish(p, err)
		}
	}
}

// dropPieces ends the reads of a fetch that was given up, unless something writes to their regions.
func (l *loop) dropPieces(n *conn, cancelled *atomic.Bool) {
	keep := func(q []*read) []*read {
		return slices.DeleteFunc(q, func(r *read) bool {
			if r.batch.cancelled != cancelled {
				return false
			}
			n.wanted -= r.length
			r.batch.ended(l, errDropped)
			return true
		})
	}
	n.wantedSmall, n.wantedLarge = keep(n.wantedSmall), keep(n.wantedLarge)
	for _, p := range n.pieces {
		if p.state == pieceStores || p.state == pieceReads && p.ours < 0 {
			continue
		}
		for i := range p.parts {
			if r := p.parts[i].read; r != nil && r.batch.cancelled == cancelled {
				p.parts[i].read = nil
				r.batch.ended(l, errDropped)
			}
		}
	}
}
