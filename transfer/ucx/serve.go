package ucx

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/transfer"
)

const (
	// maxRefs is how many objects one lease request may name.
	maxRefs = 512
	// inlineRoom bounds the bulk that travels inside one answer, answerRoom the
	// whole answer: what does not fit is asked for again.
	inlineRoom = 1 << 20
	answerRoom = 8 << 20
	maxTTL     = 10 * time.Minute
	// maxLeases is how many leases one connection may hold.
	maxLeases = 1 << 18
)

func readerOf(r *millracev1.ConnectLaneRequest) transfer.Reader {
	return transfer.Reader{Worker: ids.WorkerID(r.GetReaderWorkerId())}
}

// refusal makes a status of an error.
func refusal(err error) error {
	code := codes.Unavailable
	if errors.Is(err, ErrNoLane) {
		code = codes.FailedPrecondition
	}
	return status.Error(code, err.Error())
}

// free gives the memory of a message back.
func (l *loop) free(handle uint64) { l.orders = append(l.orders, op{kind: opFree, local: handle}) }

// message handles one that came. Its bytes are the engine's until it is told
// otherwise, which is at once.
func (l *loop) message(e *event) {
	kept := false
	defer func() {
		if !kept {
			l.free(e.tag)
		}
	}()
	r := &reader{b: l.engine.message(e)}
	p := e.header.preamble()
	n := l.conns[p.token]
	if n == nil || n.failure != nil {
		return // of another life, or too late
	}
	n.quiet = time.Time{}
	switch p.kind {
	case messageLease:
		ttl := min(time.Duration(r.u32())*time.Millisecond, maxTTL)
		refs := r.refs(p.count)
		if r.err == nil && len(refs) > 0 && len(refs) <= maxRefs && len(n.leases)+len(refs) <= maxLeases && ttl > 0 && n.bytes == 0 {
			l.serve(func() { l.c.lease(l, n, p.request, ttl, refs) })
			return
		}
	case messageRelease:
		leases := make([]transfer.LeaseID, 0, min(p.count, maxRefs))
		for range min(p.count, maxRefs) {
			leases = append(leases, transfer.LeaseID(r.u64()))
		}
		if r.err == nil && p.count <= maxRefs && n.bytes == 0 {
			l.release(n, p.request, leases)
			return
		}
	case messageRead:
		frame := memory.Frame{Offset: r.u64(), Bytes: r.u64()}
		// Only out of host memory: UCX copies what is short with the processor, which faults on a GPU's addresses.
		if r.err == nil && l.c.slab == nil && frame.Within(l.c.config.Space.Size()) && frame.Bytes <= messageChunkBytes && n.bytes == 0 {
			// Out of the slab as it is. What the reader makes of it is decided when it
			// gives the lease back, like with reads that we do not see.
			l.orders = append(l.orders, op{
				kind: opSend, endpoint: n.endpoint, local: l.c.base + frame.Offset, length: frame.Bytes,
				header: preamble{token: n.theirs, request: p.request, kind: messageData}.header(),
			})
			return
		}
	case messageData:
		if f, ok := n.asked[p.request]; ok && uint64(len(r.b)) == f.read.length {
			delete(n.asked, p.request)
			l.engine.fill(f.read.local, r.b)
			n.landed(f.small)
			f.read.batch.landed(l, nil)
			return
		}
	case messageLeased, messageReleased:
		l.answered(n, p, r, answer{r.b, e.tag, &kept})
		return
	case messageBye:
		l.fail(n, fmt.Errorf("%w: the peer closed the lane", transfer.ErrPeerLost))
		return
	}
	l.fail(n, fmt.Errorf("%w: a message of kind %d with %d parts that makes no sense", transfer.ErrProtocol, p.kind, p.count))
}

// ask has the peer send what is to be read.
func (l *loop) ask(n *conn, r *read, small bool) {
	n.lastCall++
	n.asked[n.lastCall] = flight{n, r, small}
	l.send(n, preamble{token: n.theirs, request: n.lastCall, kind: messageRead}, 16, func(b []byte) []byte {
		b = binary.LittleEndian.AppendUint64(b, r.remote-n.base)
		return binary.LittleEndian.AppendUint64(b, r.length)
	})
}

// answered hands an answer to who waits for it. Leases that nobody waits for any
// more are given back.
func (l *loop) answered(n *conn, p preamble, r *reader, a answer) {
	c := n.calls[p.request]
	if c == nil {
		return
	}
	delete(n.calls, p.request)
	if c.answer != nil {
		c.answer(a, nil)
		return
	}
	if p.kind != messageLeased {
		return
	}
	var leases []transfer.LeaseID
	for range p.count {
		if g := r.grant(n.bytes); r.err == nil && g.lease != 0 {
			leases = append(leases, g.lease)
		}
	}
	l.giveBack(n, leases)
}

// giveBack releases leases whose fate does not matter.
func (l *loop) giveBack(n *conn, leases []transfer.LeaseID) {
	if len(leases) > 0 {
		l.request(n, messageRelease, len(leases), leasesPayload(leases), func(answer, error) {})
	}
}

func leasesPayload(leases []transfer.LeaseID) []byte {
	b := make([]byte, 0, 8*len(leases))
	for _, id := range leases {
		b = binary.LittleEndian.AppendUint64(b, uint64(id))
	}
	return b
}

// lease answers a lease request. It runs on the thread exactly if the source is
// quick, and otherwise where it may wait.
func (c *Context) lease(l *loop, n *conn, request uint64, ttl time.Duration, refs []transfer.Ref) {
	leased := c.config.Source.Lease(n.reader, refs, ttl)
	a := c.answer(leased)
	p := preamble{token: n.theirs, request: request, kind: messageLeased, count: uint32(len(leased))}
	var m letter
	var held []transfer.LeaseID
	for {
		m = composed(c.engine, p, a.bytes, a.append)
		var spent []transfer.LeaseID
		var objects []int
		held, spent, objects = a.leases()
		if len(spent) == 0 || a.confirm(objects, c.config.Source.Release(spent)) {
			break
		}
		// A lease ended while its bytes were copied: once more without that object.
		m.discard(c.engine)
	}
	for i, k := range a.kinds {
		if k == grantLease || k == grantInline {
			c.served.Add(leased[i].Head.Bytes())
		}
	}
	answer := func(l *loop) {
		if n.failure != nil {
			m.discard(c.engine)
			l.serve(func() { c.config.Source.Release(held) })
			return
		}
		for _, id := range held {
			n.leases[id] = true
		}
		l.sendComposed(n, m)
	}
	if c.config.SourceIsQuick {
		answer(l)
		return
	}
	if !c.do(answer) {
		m.discard(c.engine)
		c.config.Source.Release(held)
	}
}

// release answers a release.
func (l *loop) release(n *conn, request uint64, leases []transfer.LeaseID) {
	known := make([]transfer.LeaseID, 0, len(leases))
	index := make([]int, 0, len(leases))
	for i, id := range leases {
		if n.leases[id] {
			delete(n.leases, id)
			known, index = append(known, id), append(index, i)
		}
	}
	l.serve(func() {
		held := make([]byte, len(leases))
		for i, ok := range l.c.config.Source.Release(known) {
			if ok {
				held[index[i]] = 1
			}
		}
		p := preamble{token: n.theirs, request: request, kind: messageReleased, count: uint32(len(held))}
		answer := func(l *loop) {
			l.send(n, p, len(held), func(b []byte) []byte { return append(b, held...) })
		}
		if l.c.config.SourceIsQuick {
			answer(l)
			return
		}
		l.c.do(answer) // else nobody is left to be told
	})
}

// answering is an answer to a lease request that is being composed.
type answering struct {
	c      *Context
	leased []transfer.Leased
	kinds  []grantKind
	texts  []string
	bytes  int
}

func (c *Context) answer(leased []transfer.Leased) *answering {
	a := &answering{c: c, leased: leased, kinds: make([]grantKind, len(leased)), texts: make([]string, len(leased))}
	inline := 0
	for i := range leased {
		a.kinds[i], a.texts[i] = a.kind(&leased[i], inlineRoom-inline)
		if i > 0 && a.bytes+a.size(i) > answerRoom {
			a.kinds[i] = grantLater
		}
		if a.kinds[i] == grantInline {
			inline += int(leased[i].Head.Bytes())
		}
		a.bytes += a.size(i)
	}
	return a
}

func (a *answering) kind(l *transfer.Leased, room int) (grantKind, string) {
	switch {
	case errors.Is(l.Err, transfer.ErrNotHere):
		return grantMissing, ""
	case l.Err != nil:
		return grantError, l.Err.Error()
	}
	inPlace, inSlab := true, true
	for _, r := range l.Regions {
		if r.Frame.Bytes > 0 {
			inSlab = inSlab && r.Space == a.c.config.Space
			inPlace = inPlace && r.Bytes() != nil
		}
	}
	n := l.Head.Bytes()
	switch {
	case inPlace && (n == 0 || n <= uint64(max(0, min(room, a.c.config.InlineBytes)))):
		return grantInline, ""
	case !inSlab:
		return grantElsewhere, "it does not lie in the registered slab"
	}
	return grantLease, ""
}

func (a *answering) size(i int) int {
	h := a.leased[i].Head
	switch a.kinds[i] {
	case grantLease:
		return describedBytes(h) + 8 + 8*len(h.FrameBytes)
	case grantInline:
		return describedBytes(h) + int(h.Bytes())
	case grantError, grantElsewhere:
		return 1 + 4 + len(a.texts[i])
	case grantMissing, grantLater:
	}
	return 1
}

func (a *answering) append(b []byte) []byte {
	for i := range a.leased {
		l := &a.leased[i]
		b = append(b, byte(a.kinds[i]))
		switch a.kinds[i] {
		case grantLease:
			b = binary.LittleEndian.AppendUint64(b, uint64(l.Lease))
			b = appendDescription(b, l.Head)
			for _, r := range l.Regions {
				b = binary.LittleEndian.AppendUint64(b, r.Frame.Offset)
			}
		case grantInline:
			b = appendDescription(b, l.Head)
			for _, r := range l.Regions {
				b = append(b, r.Bytes()...)
			}
		case grantError, grantElsewhere:
			b = binary.LittleEndian.AppendUint32(b, uint32(len(a.texts[i])))
			b = append(b, a.texts[i]...)
		case grantMissing, grantLater:
		}
	}
	return b
}

// leases returns those that the reader is to hold, and those that end now, by
// object: what they protected was copied, or is not told of.
func (a *answering) leases() (held, spent []transfer.LeaseID, objects []int) {
	for i, l := range a.leased {
		switch {
		case l.Lease == 0:
		case a.kinds[i] == grantLease:
			held = append(held, l.Lease)
		default:
			spent, objects = append(spent, l.Lease), append(objects, i)
			a.leased[i].Lease = 0
		}
	}
	return held, spent, objects
}

// confirm takes note of which of the objects were protected while they were
// copied. It returns false if an answer that was composed must not be sent.
func (a *answering) confirm(objects []int, ok []bool) bool {
	good := true
	for k, i := range objects {
		if !ok[k] && a.kinds[i] == grantInline {
			a.bytes -= a.size(i)
			a.kinds[i] = grantMissing
			a.bytes += a.size(i)
			good = false
		}
	}
	return good
}
