package native

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/memory"
	hostmemory "github.com/millrace/millrace/memory/host"
	"github.com/millrace/millrace/memory/ledger"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/objindex"
	"github.com/millrace/millrace/worker/device"
	"github.com/millrace/millrace/worker/store"
)

const madeBytes = 64 << 10

// maker is a device whose calls make frames: "two" makes two of half the size, "fails" fails at its
// end, and all others make one. A call is over when there is a value in gate.
type maker struct {
	device.Device // nil: no other method is called
	gate          chan struct{}

	mu sync.Mutex
	// frames are those of each call, guarded by mu.
	frames map[string][]memory.Frame
}

type making struct {
	m      *maker
	name   string
	frames []memory.Frame
}

func (m *maker) Prepare(call device.Call) (device.Prepared, error) {
	return &making{m: m, name: call.Op}, nil
}

func (c *making) OutputBytes() []uint64 {
	if c.name == "small" {
		return []uint64{madeBytes / 2}
	}
	return []uint64{madeBytes}
}

func (c *making) Run(context.Context, device.Allocator) (device.Result, error) {
	return device.Result{}, errors.New("it was to be started")
}

func (c *making) Start(_ context.Context, alloc device.Allocator) (device.Started, error) {
	sizes := c.OutputBytes()
	if c.name == "two" {
		sizes = []uint64{madeBytes / 2, madeBytes / 2}
	}
	for _, n := range sizes {
		f, err := alloc(n)
		if err != nil {
			return nil, err
		}
		c.frames = append(c.frames, f)
	}
	c.m.mu.Lock()
	c.m.frames[c.name] = c.frames
	c.m.mu.Unlock()
	return c, nil
}

func (c *making) Header() []byte { return []byte("head of " + c.name) }

func (c *making) Done() bool { return len(c.m.gate) > 0 }

func (c *making) Finish() (device.Result, error) {
	<-c.m.gate
	if strings.HasPrefix(c.name, "fails") {
		return device.Result{}, errors.New("it failed")
	}
	return device.Result{Header: c.Header(), Frames: c.frames}, nil
}

// made is a slot with such a device. Its results are published in a shared object index.
type made struct {
	*maker
	t       *testing.T
	n       *Slots
	objects *store.Store
	reader  *objindex.Reader
	*owner
	// looks gets a value each time the slot polls for notifications, which it does after
	// overlapWork.
	looks chan struct{}
	tasks int
}

func newMade(t *testing.T) *made {
	t.Helper()
	slab, err := hostmemory.NewSlab(4<<20, memory.Identity{})
	if err != nil {
		t.Fatal(err)
	}
	published, err := objindex.New(0, 0)
	if err != nil {
		t.Fatal(err)
	}
	slots, err := published.NewReaderSlots()
	if err != nil {
		t.Fatal(err)
	}
	x := &made{maker: &maker{gate: make(chan struct{}, 10), frames: map[string][]memory.Frame{}}, t: t, owner: newOwner(), looks: make(chan struct{})}
	if x.reader, err = objindex.Open(published.File(), slots.File()); err != nil {
		t.Fatal(err)
	}
	if x.objects, err = store.New(slab, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	x.objects.PublishTo(published)
	x.n = New(Config{Slots: 1, Cores: 1, Device: x.maker, Store: x.objects, SpinTime: time.Hour})
	x.n.Load(true, 0)
	x.owner.polls = func() bool {
		select {
		case x.looks <- struct{}{}:
		default:
		}
		return false
	}
	x.n.Open(x.owner)
	t.Cleanup(func() {
		x.close()
		x.objects.Close()
		if err := errors.Join(x.reader.Close(), slots.Close(), published.Close(), slab.Close()); err != nil {
			t.Error(err)
		}
	})
	return x
}

// close ends the slot and checks that it has released the memory for further calls.
func (x *made) close() {
	x.n.Close()
	books, _, _ := x.objects.Stats()
	var sealed uint64
	for _, o := range x.objects.Inventory() {
		for _, f := range o.Frames {
			sealed += f.Bytes
		}
	}
	if books.ReservedBytes > 0 || books.HeldBytes != sealed {
		x.t.Errorf("%d bytes are held and %d reserved, sealed objects have %d", books.HeldBytes, books.ReservedBytes, sealed)
	}
	if err := x.objects.Check(); err != nil {
		x.t.Error(err)
	}
}

// begin starts a call and waits until the slot has done its work in overlapWork.
func (x *made) begin(name string) transfer.Ref {
	x.t.Helper()
	x.tasks++
	x.n.Start(0, runOf(x.tasks, name))
	for began := false; !began; {
		<-x.looks
		x.mu.Lock()
		_, began = x.frames[name]
		x.mu.Unlock()
	}
	<-x.looks // the first poll may have been before overlapWork
	<-x.looks
	return transfer.Ref{Task: ids.TaskID(x.tasks), Generation: 1}
}

// end lets the open call finish.
func (x *made) end(fails bool) {
	x.t.Helper()
	x.gate <- struct{}{}
	if r := <-x.ended; (r.Failure != nil) != fails {
		x.t.Fatalf("%s ended with %v", r.Call.Op, r.Failure)
	}
}

func (x *made) held() uint64 {
	books, _, _ := x.objects.Stats()
	return books.HeldBytes
}

// frame returns the frame of an object in the shared object index; ok is false if it is not found.
func (x *made) frame(ref transfer.Ref) (f memory.Frame, ok bool) {
	x.t.Helper()
	g, ok := x.reader.Pin()
	if !ok {
		x.t.Fatal("no slot")
	}
	defer g.End(0)
	var found objindex.Found
	found.Begin(1)
	o, ok := g.Find(ref, 4<<20, &found)
	if !ok {
		return f, false
	}
	return o.Frames[0], true
}

// While the device executes a call, its slot allocates memory for the next one, which uses it if it
// needs as much.
func TestMemoryForTheNextCallIsHadMeanwhile(t *testing.T) {
	x := newMade(t)
	x.begin("a")
	if held := x.held(); held != 2*madeBytes {
		t.Errorf("%d bytes are held for the first call and for the next", held)
	}
	x.end(false)
	x.begin("b")
	x.end(false)
	if a, b := x.frames["a"][0], x.frames["b"][0]; a.Bytes != madeBytes || b.Bytes != madeBytes || a.Offset == b.Offset {
		t.Errorf("a is at %+v, b at %+v", a, b)
	}
	if held := x.held(); held != 3*madeBytes {
		t.Errorf("%d bytes are held after the second call", held)
	}
	// The next call needs another size.
	x.begin("small")
	x.end(false)
	if held := x.held(); held != 2*madeBytes+2*madeBytes/2 {
		t.Errorf("%d bytes are held after a call of half the size", held)
	}
	// The next call needs as much, but not in one frame.
	x.begin("c")
	x.end(false)
	x.begin("two")
	x.end(false)
	if f := x.frames["two"]; len(f) != 2 || f[0].Bytes != madeBytes/2 || f[1].Bytes != madeBytes/2 {
		t.Errorf("two frames are %+v", f)
	}
	x.begin("fails")
	x.end(true)
	x.close()
	if n := len(x.objects.Inventory()); n != 5 {
		t.Errorf("%d results are there", n)
	}
}

// A result that is published in advance cannot be found before it is sealed, and never if it fails.
func TestAnUnfinishedResultIsNotFoundInTheIndex(t *testing.T) {
	x := newMade(t)
	ref := x.begin("a")
	if f, ok := x.frame(ref); ok || x.reader.Contains(ref) {
		t.Errorf("what is not made yet is found at %+v", f)
	}
	x.end(false)
	if f, ok := x.frame(ref); !ok || f != x.frames["a"][0] || !x.reader.Contains(ref) {
		t.Errorf("the result is found at %+v, %v; it is at %+v", f, ok, x.frames["a"])
	}
	ref = x.begin("fails")
	x.end(true)
	if f, ok := x.frame(ref); ok {
		t.Errorf("what was never made is found at %+v", f)
	}
	// Its memory is free for others once the slot has released it.
	x.begin("b")
	x.end(false)
	id := ledger.ObjectID{Task: ref.Task, Generation: ref.Generation}
	if _, there := x.objects.Held(id); there {
		t.Error("what failed is still there")
	}
}
