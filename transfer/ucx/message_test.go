package ucx

import (
	"encoding/binary"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/millrace/millrace/memory"
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
func (q *quiet) signal()        {}
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
	if c.out != nil {
		l.stager.free = c.out.free()
	}
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

// heapSlot is a slot of a ring in the heap. Its copies copy nothing.
type heapSlot struct{ offset uint64 }

func (heapSlot) Bytes() []byte         { return nil }
func (heapSlot) Load(...memory.Piece)  {}
func (heapSlot) Store(...memory.Piece) {}
func (heapSlot) Wait() error           { return nil }
func (heapSlot) Free()                 {}
func (s heapSlot) Offset() uint64      { return s.offset }

// heapRing returns a ring of three slots.
func heapRing() *ring {
	r := &ring{bytes: make([]byte, memory.HeaderBytes+3*memory.StageBytes)}
	for i := range 3 {
		r.slots = append(r.slots, heapSlot{memory.HeaderBytes + uint64(i)*memory.StageBytes})
	}
	return r
}

// stagingLoop returns a loop whose slab lies on a GPU and has 1000 bytes.
func stagingLoop(t *testing.T) (*loop, *quiet) {
	t.Helper()
	data := flat(make([]byte, 1000))
	return loopOf(t, &Context{config: Config{Space: &data, Source: lender{}, SourceIsQuick: true}.withDefaults(), slab: new(cuda.Slab), out: heapRing()})
}

// settleOrders waits for the copies that were begun, and runs what they ordered.
func (l *loop) settleOrders() {
	for {
		l.c.serving.Wait()
		orders := l.c.orders
		if l.c.orders = nil; len(orders) == 0 {
			return
		}
		for _, f := range orders {
			f(l)
		}
	}
}

// numbers encodes numbers of a message.
func numbers(n ...uint64) (b []byte) {
	for _, x := range n {
		b = binary.LittleEndian.AppendUint64(b, x)
	}
	return b
}

// sends returns the kinds of the messages that were ordered, and forgets them.
func (l *loop) sends() (kinds []messageKind) {
	for _, o := range l.orders {
		if o.kind == opSend {
			kinds = append(kinds, o.header.preamble().kind)
		}
	}
	l.orders = nil
	return kinds
}

// TestASlotIsLentReadAndGivenBack: a reader gets a slot with the bytes that it asks for, may be
// sent these bytes and the header page, and no others, until it gives the slot back.
func TestASlotIsLentReadAndGivenBack(t *testing.T) {
	read := func(offset, length uint64) (sent, failed bool) {
		l, q := stagingLoop(t)
		l.came(q, preamble{token: 1, request: 1, kind: messageStage, count: 2}, numbers(10, 100, 990, 10))
		l.settleOrders()
		if kinds := l.sends(); len(kinds) != 1 || kinds[0] != messageStaged {
			t.Fatalf("the answer is %v", kinds)
		}
		slot := l.stager.lent[0].slot
		l.came(q, preamble{token: 1, request: 2, kind: messageRead, count: uint32(keyRing)}, numbers(offset+l.c.out.slots[slot].Offset(), length))
		sent = len(l.sends()) > 0 && l.conns[1].failure == nil
		l.came(q, preamble{token: 1, kind: messageUnstage}, []byte{byte(slot), 0, 0, 0})
		if len(l.stager.free) != len(l.c.out.slots) {
			t.Errorf("%d of %d slots are free in the end", len(l.stager.free), len(l.c.out.slots))
		}
		return sent, l.conns[1].failure != nil
	}
	for _, x := range []struct {
		name           string
		offset, length uint64
		sent           bool
	}{
		{"all of its slot", 0, 110, true},
		{"the end of its slot", memory.StageBytes - 1, 1, true},
		{"beyond its slot", memory.StageBytes - 1, 2, false},
		{"more than one message", 0, messageChunkBytes + 1, false},
		{"a large offset", ^uint64(0) - 3*memory.StageBytes, 4, false},
	} {
		if sent, failed := read(x.offset, x.length); sent != x.sent || failed == x.sent {
			t.Errorf("%s: sent %v, failed %v", x.name, sent, failed)
		}
	}
}

// TestWrongRequestsForSlotsEndTheConnection: and take no slot.
func TestWrongRequestsForSlotsEndTheConnection(t *testing.T) {
	for name, x := range map[string]struct {
		kind    messageKind
		count   uint32
		payload []byte
	}{
		"no range":           {messageStage, 0, nil},
		"an empty range":     {messageStage, 1, numbers(10, 0)},
		"outside":            {messageStage, 1, numbers(999, 2)},
		"a large offset":     {messageStage, 1, numbers(^uint64(0), 2)},
		"less than it says":  {messageStage, 2, numbers(10, 10)},
		"too many ranges":    {messageStage, maxParts + 1, make([]byte, 16*(maxParts+1))},
		"a slot of nobody":   {messageUnstage, 0, []byte{0, 0, 0, 0}},
		"no slot":            {messageUnstage, 0, []byte{255, 255, 255, 255}},
		"half a slot number": {messageUnstage, 0, []byte{0, 0}},
	} {
		l, q := stagingLoop(t)
		l.came(q, preamble{token: 1, request: 1, kind: x.kind, count: x.count}, x.payload)
		l.settleOrders()
		if l.conns[1].failure == nil || len(l.stager.free) != len(l.c.out.slots) {
			t.Errorf("%s: failed: %v, %d slots are free", name, l.conns[1].failure, len(l.stager.free))
		}
	}
	l, q := stagingLoop(t)
	for i := range maxStagings + 1 {
		if l.conns[1].failure != nil {
			t.Errorf("request %d: %v", i, l.conns[1].failure)
		}
		l.came(q, preamble{token: 1, request: 1, kind: messageStage, count: 1}, numbers(0, 1))
	}
	l.settleOrders()
	if l.conns[1].failure == nil || len(l.stager.free) != len(l.c.out.slots) {
		t.Errorf("too many requests: %v, %d slots are free", l.conns[1].failure, len(l.stager.free))
	}
}

// TestASlotThatIsKeptEndsTheConnection: a reader that keeps a slot for too long loses its
// connection, and another reader gets the slot.
func TestASlotThatIsKeptEndsTheConnection(t *testing.T) {
	l, q := stagingLoop(t)
	for range len(l.c.out.slots) {
		l.came(q, preamble{token: 1, request: 1, kind: messageStage, count: 1}, numbers(0, 1))
	}
	l.settleOrders()
	l.conns[3] = &conn{token: 3, theirs: 3, calls: make(map[uint64]*call)}
	l.came(q, preamble{token: 3, request: 1, kind: messageStage, count: 1}, numbers(0, 1))
	l.settleOrders()
	l.sends()
	l.takeBackSlots(time.Now())
	if len(l.stager.waiting) != 1 || l.conns[1].failure != nil {
		t.Fatalf("%d requests wait, and at once %v", len(l.stager.waiting), l.conns[1].failure)
	}
	l.takeBackSlots(time.Now().Add(l.c.config.slotTime + time.Second))
	l.settleOrders()
	if kinds := l.sends(); l.conns[1].failure == nil || l.conns[3].failure != nil || len(l.stager.lent) != 1 || !slices.Contains(kinds, messageStaged) {
		t.Errorf("the first has failed: %v, %d slots are lent, the messages were %v", l.conns[1].failure, len(l.stager.lent), kinds)
	}
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
	f.Add(uint64(1), uint64(9), byte(messageLease), uint32(1), append([]byte{100, 0, 0, 0}, make([]byte, refBytes)...))
	f.Add(uint64(1), uint64(9), byte(messageRelease), uint32(1), []byte{7, 0, 0, 0, 0, 0, 0, 0})
	f.Add(uint64(1), uint64(9), byte(messageRead), uint32(0), make([]byte, 16))
	f.Add(uint64(2), uint64(3), byte(messageData), uint32(0), make([]byte, 10))
	f.Add(uint64(2), uint64(4), byte(messageLeased), uint32(1), make([]byte, 40))
	f.Add(uint64(2), uint64(5), byte(messageReleased), uint32(1), []byte{1})
	f.Add(uint64(2), uint64(0), byte(messageBye), uint32(0), []byte{})
	f.Add(uint64(1), uint64(9), byte(messageStage), uint32(2), numbers(0, 100, 900, 100))
	f.Add(uint64(1), uint64(9), byte(messageUnstage), uint32(0), make([]byte, 4))
	f.Add(uint64(1), uint64(9), byte(messageRead), uint32(keyRing), numbers(memory.HeaderBytes, 100))
	f.Add(uint64(2), uint64(4), byte(messageStaged), uint32(1), make([]byte, 12))
	f.Fuzz(func(t *testing.T, token, request uint64, kind byte, count uint32, payload []byte) {
		staging, sq := stagingLoop(t)
		staging.came(sq, preamble{token: 1, request: 1, kind: messageStage, count: 1}, numbers(0, 1))
		staging.settleOrders()
		staging.came(sq, preamble{token: token, request: request, kind: messageKind(kind), count: count}, payload)
		staging.settleOrders()
		base, size := staging.c.out.base(), staging.c.out.size()
		for _, o := range staging.orders {
			if o.kind == opSend && o.remote == 0 && o.length > 0 && (o.local < base || o.length > size || o.local-base > size-o.length) {
				t.Errorf("[%#x, +%d) would be sent, the ring is [%#x, +%d)", o.local, o.length, base, size)
			}
		}
		if lent := len(staging.stager.lent); lent+len(staging.stager.free) != len(staging.c.out.slots) {
			t.Errorf("%d slots are lent and %d free", lent, len(staging.stager.free))
		}
		l, q := loopOf(t, &Context{config: Config{Space: &data, Source: lender{}, SourceIsQuick: true, InlineBytes: 100}.withDefaults()})
		l.came(q, preamble{token: token, request: request, kind: messageKind(kind), count: count}, payload)
		for _, o := range l.orders {
			if o.kind == opSend && o.remote == 0 && o.length > 0 && (o.local > 1000 || o.length > 1000-o.local) {
				t.Errorf("[%d, +%d) of a slab of 1000 bytes would be sent", o.local, o.length)
			}
		}
	})
}
