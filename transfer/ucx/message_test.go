package ucx

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/millrace/millrace/memory/cuda"
	"github.com/millrace/millrace/transfer"
)

// quiet is an engine without the UCX library, to test how the progress thread handles messages. The
// test checks the calls that the thread makes; each write into memory must have the length that was
// asked for.
type quiet struct {
	engine
	t *testing.T
	// came is the last message. asked is the number of bytes that fill may write.
	came  []byte
	asked int
}

func (q *quiet) message(*event) []byte { return q.came }
func (q *quiet) buffer(n int) ([]byte, uint64) {
	if n > answerRoom+1<<20 {
		q.t.Errorf("a message of %d bytes would be composed", n)
	}
	return make([]byte, n), 1
}
func (q *quiet) discard(uint64) {}
func (q *quiet) fill(_ uint64, b []byte) {
	if len(b) != q.asked {
		q.t.Errorf("%d bytes would be written where %d were asked for", len(b), q.asked)
	}
}

// loopOf returns a loop with two connections: token 1 belongs to a reader, token 2 to a source.
func loopOf(t *testing.T, c *Context) (*loop, *quiet) {
	t.Helper()
	q := &quiet{t: t, asked: 10}
	c.engine = q
	l := &loop{c: c, engine: q, conns: make(map[uint64]*conn)}
	for token, bytes := range map[uint64]uint64{1: 0, 2: 1000} {
		n := &conn{token: token, theirs: token, bytes: bytes, asked: make(map[uint64]flight), calls: make(map[uint64]*call), leases: map[transfer.LeaseID]bool{7: true}}
		b := &batch{done: func(*loop, error) {}, left: 1, moved: new(atomic.Uint64)}
		n.asked[3] = flight{n, &read{batch: b, length: 10}, true}
		n.smallPosted = 1
		n.calls[4] = &call{}
		n.calls[5] = &call{func(answer, error) {}}
		l.conns[token] = n
	}
	return l, q
}

func (l *loop) came(q *quiet, p preamble, payload []byte) {
	q.came = payload
	l.message(&event{kind: eventMessage, tag: 99, length: uint64(len(payload)), header: p.header()})
}

// TestMemoryOfAGPUIsNotSentInMessages: UCX copies short messages with the CPU, which faults on a
// GPU's addresses.
func TestMemoryOfAGPUIsNotSentInMessages(t *testing.T) {
	data := flat(make([]byte, 1000))
	for _, slab := range []*cuda.Slab{nil, new(cuda.Slab)} {
		l, q := loopOf(t, &Context{config: Config{Space: &data, Source: lender{}, SourceIsQuick: true}.withDefaults(), slab: slab})
		l.came(q, preamble{token: 1, request: 9, kind: messageRead}, append(make([]byte, 8), 100, 0, 0, 0, 0, 0, 0, 0))
		sends := 0
		for _, o := range l.orders {
			if o.kind == opSend {
				sends++
			}
		}
		if failed := l.conns[1].failure != nil; failed != (slab != nil) || (sends > 0) != (slab == nil) {
			t.Errorf("on a GPU %v: failed %v, %d sends", slab != nil, failed, sends)
		}
	}
}

// lender is a source that grants nothing.
type lender struct{}

func (lender) Lease(_ transfer.Reader, refs []transfer.Ref, _ time.Duration) []transfer.Leased {
	out := make([]transfer.Leased, len(refs))
	for i := range out {
		out[i].Err = transfer.ErrNotHere
	}
	return out
}
func (lender) Release(leases []transfer.LeaseID) []bool { return make([]bool, len(leases)) }

func (lender) Renew(leases []transfer.LeaseID, _ time.Duration) []bool {
	return make([]bool, len(leases))
}

// FuzzHandledMessages: for any message on a connection, the progress thread answers or ends the
// connection. It reads nothing outside of the slab, and writes only the bytes that were asked for.
func FuzzHandledMessages(f *testing.F) {
	data := flat(make([]byte, 1000))
	f.Add(uint64(1), uint64(9), byte(messageLease), uint32(1), append([]byte{100, 0, 0, 0}, make([]byte, 12)...))
	f.Add(uint64(1), uint64(9), byte(messageRelease), uint32(1), []byte{7, 0, 0, 0, 0, 0, 0, 0})
	f.Add(uint64(1), uint64(9), byte(messageRead), uint32(0), make([]byte, 16))
	f.Add(uint64(2), uint64(3), byte(messageData), uint32(0), make([]byte, 10))
	f.Add(uint64(2), uint64(4), byte(messageLeased), uint32(1), make([]byte, 40))
	f.Add(uint64(2), uint64(5), byte(messageReleased), uint32(1), []byte{1})
	f.Add(uint64(2), uint64(0), byte(messageBye), uint32(0), []byte{})
	f.Fuzz(func(t *testing.T, token, request uint64, kind byte, count uint32, payload []byte) {
		l, q := loopOf(t, &Context{config: Config{Space: &data, Source: lender{}, SourceIsQuick: true, InlineBytes: 100}.withDefaults()})
		l.came(q, preamble{token: token, request: request, kind: messageKind(kind), count: count}, payload)
		for _, o := range l.orders {
			if o.kind == opSend && o.remote == 0 && o.length > 0 && (o.local > 1000 || o.length > 1000-o.local) {
				t.Errorf("[%d, +%d) of a slab of 1000 bytes would be sent", o.local, o.length)
			}
		}
	})
}
