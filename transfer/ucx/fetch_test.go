package ucx

import (
	"errors"
	"testing"

	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/transfertest"
)

// quietEngine is an engine that accepts everything and reports nothing. The test reports the events
// itself.
type quietEngine struct{ engine }

func (quietEngine) signal()       {}
func (quietEngine) release(int32) {}

// TestAReadThatEndsWithItsConnectionFailsTheFetch: a connection fails while a read is posted. UCX
// then reports the success of the read together with the end of the endpoint. The fetch must hear
// of it: the source can no longer confirm the lease.
func TestAReadThatEndsWithItsConnectionFailsTheFetch(t *testing.T) {
	c := &Context{config: Config{}.withDefaults(), engine: quietEngine{}}
	l := &loop{c: c, engine: c.engine, conns: map[uint64]*conn{}}
	n := &conn{token: 1, bytes: 1 << 20, calls: map[uint64]*call{}, gone: make(chan struct{})}
	l.conns[n.token] = n
	f := &fetch{
		path: &Path{c: c}, conn: n, refs: make([]transfer.Ref, 1), objects: make([]object, 1), left: 1, box: mailbox{ready: make(chan struct{}, 1)},
	}
	f.objects[0].grant = grant{kind: grantLease, lease: 7, offsets: []uint64{0}}
	f.get(0, []transfer.Region{{Frame: memory.Frame{Bytes: 4096}}})
	for _, order := range c.orders {
		order(l)
	}
	l.schedule(n)
	lost := errors.New("the endpoint failed")
	l.fail(n, lost)
	l.handle(&event{kind: eventGet, tag: 0})
	l.handle(&event{kind: eventClosed, tag: n.token})
	for _, n := range l.conns {
		l.confirm(n) // as the next turn does
	}
	f.box.drain()
	if !errors.Is(f.err, lost) {
		t.Errorf("the fetch has the error %v", f.err)
	}
	if f.reading.Load() != 0 {
		t.Error("the fetch still waits for the read")
	}
}

// TestInlineBytesNeedMemoryOfTheProcessor: a peer sends an object inside its answer, but the place
// of the object lies on a device. The bytes cannot be copied there, so the object must not count as
// fetched.
func TestInlineBytesNeedMemoryOfTheProcessor(t *testing.T) {
	space := transfertest.NewFar(t, 1<<20)
	f := &fetch{path: &Path{c: &Context{config: Config{Space: space}}}}
	g := &grant{kind: grantInline, head: transfer.Head{FrameBytes: []uint64{0, 100}}, bytes: make([]byte, 100)}
	regions := []transfer.Region{{Space: space}, {Space: space, Frame: memory.Frame{Offset: 4096, Bytes: 100}}}
	if err := f.check(regions, g); !errors.Is(err, transfer.ErrProtocol) {
		t.Errorf("got %v", err)
	}
	regions[1].Space = transfertest.Heap(make([]byte, 8192))
	if err := f.check(regions, g); err != nil {
		t.Error(err)
	}
}
