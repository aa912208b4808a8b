package ucx

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/transfer"
)

const (
	// maxRefs is how many objects one lease request may name.
	maxRefs = 512
	// inlineRoom bounds the object bytes that travel inside one answer, and answerRoom the whole
	// answer. The reader asks again for objects that did not fit.
	inlineRoom = 1 << 20
	answerRoom = 8 << 20
	// maxTTL is the longest lease that a reader gets: a reader that is stopped keeps objects no
	// longer than that.
	maxTTL = 10 * time.Minute
	// maxLeases is how many leases one connection may hold.
	maxLeases = 1 << 18
)

func readerOf(r *workerv1.ConnectRequest) transfer.Reader {
	return transfer.Reader{Worker: ids.WorkerID(r.GetReaderWorkerId())}
}

// refusal converts an error into a gRPC status.
func refusal(err error) error {
	code := codes.Unavailable
	if errors.Is(err, ErrNoConnection) {
		code = codes.FailedPrecondition
	}
	return status.Error(code, err.Error())
}

// free frees the memory of a message.
func (l *loop) free(handle uint64) { l.orders = append(l.orders, op{kind: opFree, local: handle}) }

// message handles a message. Its bytes are freed when message returns, unless the receiver of an
// answer keeps them.
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
		return // for an earlier connection, or too late
	}
	n.quiet = time.Time{}
	switch p.kind {
	case messageLease:
		ttl := min(time.Duration(r.u32())*time.Millisecond, maxTTL)
		refs := r.refs(p.count)
		if r.err == nil && len(refs) > 0 && len(refs) <= maxRefs && len(n.leases)+len(refs) <= maxLeases && ttl > 0 && n.serves() {
			l.serve(func() { l.c.lease(l, n, p.request, ttl, refs) })
			return
		}
	case messageRelease:
		leases := make([]transfer.LeaseID, 0, min(p.count, maxRefs))
		for range min(p.count, maxRefs) {
			leases = append(leases, transfer.LeaseID(r.u64()))
		}
		if r.err == nil && p.count <= maxRefs && n.serves() {
			l.release(n, p.request, leases)
			return
		}
	case messageRead:
		frame := memory.Frame{Offset: r.u64(), Bytes: r.u64()}
		if r.err == nil && n.serves() && l.sendBytes(n, p.request, remoteKey(p.count), frame) {
			return
		}
	case messageData:
		if f, ok := n.asked[p.request]; ok && uint64(len(r.b)) == f.read.length {
			delete(n.asked, p.request)
			l.engine.fill(f.read.local, r.b)
			n.ended(f.small)
			f.read.batch.ended(l, nil)
			return
		}
	case messageStage:
		if frames := r.frames(min(p.count, maxParts+1)); r.err == nil && p.count <= maxParts && n.serves() && l.stage(n, p.request, frames) {
			return
		}
	case messageUnstage:
		if slot := r.u32(); r.err == nil && n.serves() && l.unstage(n, slot) {
			return
		}
	case messageLeased, messageReleased, messageStaged:
		l.answered(n, p, r, answer{p.count, r.b, e.tag, &kept})
		return
	case messageBye:
		l.fail(n, fmt.Errorf("%w: the peer closed the connection", transfer.ErrPeerLost))
		return
	}
	l.fail(n, fmt.Errorf("%w: a message of kind %d with %d parts that makes no sense", transfer.ErrProtocol, p.kind, p.count))
}

// sendBytes answers messageRead. It returns false if a reader may not be sent that memory.
func (l *loop) sendBytes(n *conn, request uint64, key remoteKey, f memory.Frame) bool {
	var base uint64
	switch {
	case f.Bytes > messageChunkBytes:
		return false
	// Only from host memory: UCX copies short messages with the CPU, which faults on a GPU's
	// addresses. The bytes are sent directly from the slab, without a check of the lease. As with
	// one-sided reads, the release of the lease tells the reader whether they were valid.
	case key == keySlab && l.c.slab == nil && f.Within(l.c.config.Space.Size()):
		base = l.c.base
	case key == keyRing && l.inRing(n, f):
		base = l.c.out.base()
	default:
		return false
	}
	l.orders = append(l.orders, op{
		kind: opSend, endpoint: n.endpoint, local: base + f.Offset, length: f.Bytes,
		header: preamble{token: n.theirs, request: request, kind: messageData}.header(),
	})
	return true
}

// ask asks the peer to send the bytes of a read.
func (l *loop) ask(n *conn, r *read, small bool) {
	n.lastCall++
	n.asked[n.lastCall] = flight{n, r, small}
	base := n.base
	if r.key == keyRing {
		base = n.offer.ringBase
	}
	l.send(n, preamble{token: n.theirs, request: n.lastCall, kind: messageRead, count: uint32(r.key)}, 16, func(b []byte) []byte {
		b = binary.LittleEndian.AppendUint64(b, r.remote-base)
		return binary.LittleEndian.AppendUint64(b, r.length)
	})
}

// answered passes an answer to the call that waits for it. If the caller has stopped waiting,
// answered gives back the leases that were granted.
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

// giveBack releases leases without waiting for the result.
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

// lease answers a lease request. It runs on the progress thread if the source is quick, and
// otherwise on a goroutine of its own, because it may block.
func (c *Context) lease(l *loop, n *conn, request uint64, ttl time.Duration, refs []transfer.Ref) {
	leased := c.config.Source.Lease(n.reader, refs, ttl)
	a := c.answer(leased, n.noInline)
	p := preamble{token: n.theirs, request: request, kind: messageLeased, count: uint32(len(leased))}
	var m outgoing
	var held []transfer.LeaseID
	for {
		m = composed(c.engine, p, a.bytes, a.append)
		var spent []transfer.LeaseID
		var objects []int
		held, spent, objects = a.leases()
		if len(spent) == 0 || a.confirm(objects, c.config.Source.Release(spent)) {
			break
		}
		// A lease ended while its bytes were copied: compose the answer again, without that object.
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

// release answers a request to release leases.
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
		l.c.do(answer) // if false, the thread has ended, and so has the connection
	})
}
