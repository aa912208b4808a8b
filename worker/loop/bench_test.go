package loop

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/memory"
	hostmemory "github.com/millrace/millrace/memory/host"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/borrow"
	"github.com/millrace/millrace/transfer/notify"
	"github.com/millrace/millrace/transfer/objindex"
	"github.com/millrace/millrace/transfer/route"
	"github.com/millrace/millrace/transfer/transfertest"
	"github.com/millrace/millrace/worker/device"
	"github.com/millrace/millrace/worker/lifecycle"
	"github.com/millrace/millrace/worker/native"
	"github.com/millrace/millrace/worker/session"
	"github.com/millrace/millrace/worker/store"
	"github.com/millrace/millrace/worker/tasklog"
)

// atOnce is a path to objects in host memory of peers; it stands for package ipc, which is the path
// to GPU memory.
type atOnce struct{ lenders *borrow.Path }

func (p *atOnce) Name() string { return "at once" }

func (p *atOnce) Capabilities() transfer.Capabilities { return transfer.Capabilities{Lend: p} }

func (p *atOnce) Close() error { return p.lenders.Close() }

func (p *atOnce) Fetch(ctx context.Context, at transfer.Peer, refs []transfer.Ref, sink transfer.Sink) error {
	return p.lenders.Fetch(ctx, at, refs, sink)
}

func (p *atOnce) CanLend(at transfer.Peer, ref transfer.Ref) bool {
	return p.lenders.CanLend(at, ref)
}

func (p *atOnce) Lend(at transfer.Peer, ref transfer.Ref, into *transfer.Loan) bool {
	return p.lenders.Lend(at, ref, into)
}

func (p *atOnce) Read(at transfer.Peer, bytes uint64) { p.lenders.Read(at, bytes) }

// instant is a device whose calls read each input once, make one frame, and take no time: Done
// returns false once and then true.
type instant struct {
	device.Device
	bytes  uint64
	header []byte
	over   time.Time
	looks  int
	frames [1]memory.Frame
}

func (d *instant) Reads(string) device.Reading { return device.ReadsOnce }

func (d *instant) Prepare(device.Call) (device.Prepared, error) { return d, nil }

func (d *instant) OutputBytes() []uint64 { return []uint64{d.bytes} }

func (d *instant) Run(context.Context, device.Allocator) (device.Result, error) {
	return device.Result{}, errors.New("it was to be started")
}

func (d *instant) Start(_ context.Context, alloc device.Allocator) (s device.Started, err error) {
	d.looks = 0
	d.frames[0], err = alloc(d.bytes)
	return d, err
}

func (d *instant) Done() bool {
	d.over = time.Now()
	d.looks++
	return d.looks > 1
}

func (d *instant) Header() []byte { return d.header }

func (d *instant) Finish() (device.Result, error) {
	return device.Result{Header: d.header, Frames: d.frames[:]}, nil
}

// neighbour is a peer in this process that publishes its results, sends notifications of them and
// subscribes to the worker's results.
type neighbour struct {
	peer  transfer.Peer
	index *objindex.Index
	*notify.Notifier
	reader atomic.Pointer[notify.Subscriber]
	// asked and heard count the subscriptions and notifications that the worker has sent.
	asked, heard atomic.Int64
}

// turningSlots are the slots of a worker whose only slot executes the turns of a benchmark, in its
// own thread, whenever it polls for notifications and has no run.
type turningSlots struct {
	*native.Slots
	turns chan func() (found bool)
	// run is the last run, and running: it is not handed back yet. over is the time when it was
	// handed back. They belong to the slot's thread.
	run     *native.Run
	running bool
	over    time.Time
}

// turningHost is the worker as these slots know it.
type turningHost struct {
	native.Host
	slots *turningSlots
}

func (s *turningSlots) Open(of native.Host) { s.Slots.Open(turningHost{of, s}) }

// Load never lets the slot block without polling.
func (s *turningSlots) Load(_ bool, free int) { s.Slots.Load(true, free) }

func (s *turningSlots) Start(slot int, r *native.Run) {
	s.run, s.running = r, true
	s.Slots.Start(slot, r)
}

func (h turningHost) Poll() bool {
	if h.slots.running {
		return h.Host.Poll()
	}
	turn, more := <-h.slots.turns
	return more && turn()
}

func (h turningHost) HandOver(runs []*native.Run) {
	h.Host.HandOver(runs)
	h.slots.running, h.slots.over = false, time.Now()
}

// BenchmarkStep measures the work of a worker for one task of a stencil of short calls: one input
// is the worker's own, the others are read in place at peers, which wait for the task's result. It
// reports medians of the times of the slot's thread: from the poll that finds the last notification
// until the inputs are known (notified), the task is handed to the slot (admitted) and submitted;
// from the end of the call until the slot would poll again (published); the sum of these (all); and
// the time of the work that is done while the device computes (overlap).
func BenchmarkStep(b *testing.B) {
	for _, peers := range []int{1, 2} {
		b.Run(fmt.Sprint(peers), func(b *testing.B) { benchmarkStep(b, peers) })
	}
}

func benchmarkStep(b *testing.B, peers int) {
	b.Helper()
	const bytes = 1 << 20
	check := func(err error) {
		b.Helper()
		if err != nil {
			b.Fatal(err)
		}
	}
	ended := func(end func() error) { b.Cleanup(func() { check(end()) }) }
	slabOf := func(size uint64) *hostmemory.Slab {
		slab, err := hostmemory.NewSlab(size, memory.Identity{})
		check(err)
		ended(slab.Close)
		return slab
	}
	indexOf := func() *objindex.Index {
		published, err := objindex.New(0, 0)
		check(err)
		ended(published.Close)
		return published
	}
	address := func(i int) string { return fmt.Sprintf("loop-bench-%d-%d-%d", os.Getpid(), peers, i) }
	dial := func(_ context.Context, at string) (net.Conn, error) { return net.Dial("unix", "@notify-"+at) }
	serve := func(h *notify.Notifier, at string) {
		l, err := net.Listen("unix", "@notify-"+at)
		check(err)
		ended(l.Close)
		go func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				go h.Serve(conn)
			}
		}()
	}
	log := slog.New(slog.DiscardHandler)
	header := []byte("a header of as many bytes")
	d := &instant{bytes: bytes, header: header}
	objects, err := store.New(slabOf(256<<20), log)
	check(err)
	b.Cleanup(objects.Close)
	published := indexOf()
	objects.PublishTo(published)
	for range peers {
		slots, err := published.NewReaderSlots()
		check(err)
		ended(slots.Close)
	}
	mapped := borrow.New(borrow.Config{})
	way := route.New(route.Config{Candidates: []route.Candidate{{Path: &atOnce{mapped}}}})
	ended(way.Close)
	var w *Worker
	var subscriptions atomic.Int64
	completions := notify.New(notify.Config{
		Dial: dial, Completed: func(x []notify.Completion) { w.Completed(x) }, Requested: func(s *notify.Subscriber, x []notify.Request) { w.Requested(s, x); subscriptions.Add(int64(len(x))) },
		Handle: func() { w.Handle() }, Left: func(s *notify.Subscriber) { w.Left(s) },
	})
	b.Cleanup(completions.Close)
	slots := &turningSlots{Slots: native.New(native.Config{Slots: 1, Device: d, Store: objects, SpinTime: time.Hour}), turns: make(chan func() bool)}
	w = New(Config{
		Registration: &workerv1.Registration{Slots: 1}, Sessions: SessionsBy(nil), Native: slots, Store: objects, Path: way, Notifier: completions, Logs: new(tasklog.Logs), Log: log,
	})
	w.peers.Begin(context.Background())
	serve(completions, address(0))
	own := func(act func()) {
		w.owning.Lock()
		act()
		w.settleQuietly()
		w.owning.Unlock()
	}
	say := func(m *workerv1.SessionResponse) {
		own(func() { w.handle(session.Message{Session: w.session, Response: m}) })
	}
	say(&workerv1.SessionResponse{
		Registered: &workerv1.Registered{WorkerId: 1, InlineResultBytes: 16},
		Ops:        []*workerv1.OpDefinition{{OpId: 1, Op: &millracev1.Op{Kind: millracev1.OpKind_OP_KIND_NATIVE, Name: "bench.point"}}},
	})
	us := transfer.Peer{Worker: 1, Name: "us", Address: address(0)}
	all := make([]*neighbour, peers)
	for i := range all {
		n := &neighbour{index: indexOf()}
		all[i] = n
		n.peer = transfer.Peer{Worker: ids.WorkerID(i + 2), Name: "peer", Address: address(i + 1)}
		slab := slabOf(16 << 20)
		server, err := borrow.Listen(n.peer.Address, borrow.ServerConfig{
			Space: slab, Source: transfertest.NewObjectsIn(transfertest.NewRoom(slab)), Index: n.index, Incarnation: "1",
		})
		check(err)
		ended(server.Close)
		check(mapped.Connect(b.Context(), n.peer))
		n.Notifier = notify.New(notify.Config{
			Dial: dial, Completed: func(x []notify.Completion) { n.heard.Add(int64(len(x))) }, Handle: func() {}, Left: func(*notify.Subscriber) {},
			Requested: func(s *notify.Subscriber, x []notify.Request) { n.reader.Store(s); n.asked.Add(int64(len(x))) },
		})
		b.Cleanup(n.Close)
		serve(n.Notifier, n.peer.Address)
		say(&workerv1.SessionResponse{Peers: []*workerv1.Peer{{WorkerId: uint32(n.peer.Worker), Name: "peer", DataAddress: n.peer.Address}}})
		n.SetPolling(true)
	}
	taskOf := func(step, at int) uint64 { return uint64(step*(peers+1) + at + 1) }
	refOf := func(step, at int) transfer.Ref {
		return transfer.Ref{Task: ids.TaskID(taskOf(step, at)), Generation: 1}
	}
	var spent [6][]time.Duration // medians, since other processes disturb them least
	var short lifecycle.RunTimes
	for range 100 {
		short.Observe(5 * time.Microsecond)
	}
	step, began := 0, time.Time{}
	// begin brings about the next run; at the end, the slot's thread polls and finds it.
	begin := func() bool {
		step++
		// It counts as short, even if this thread loses its processor.
		w.ops[1].times = short
		a := &workerv1.Assignment{TaskId: taskOf(step, 0), Attempt: 1, OpId: 1, Rank: uint64(step), Key: "point"}
		if step > 1 {
			for at := range peers + 1 {
				in := &workerv1.Input{TaskId: taskOf(step-1, at), Generation: 1, Bytes: bytes, Pending: at > 0, Holders: []uint32{uint32(at + 1)}}
				a.Inputs = append(a.Inputs, in)
			}
		}
		say(&workerv1.SessionResponse{Assignments: []*workerv1.Assignment{a}})
		for at, n := range all {
			n.Subscribe(us, refOf(step, 0))
			n.Flush()
			if step > 1 {
				for n.Poll(); n.asked.Load() < int64(step-1); n.Poll() {
					runtime.Gosched() // the first subscription needs a connection
				}
				n.index.Publish(refOf(step-1, at+1), header, []memory.Frame{{Offset: 1 << 20, Bytes: bytes}})
			}
		}
		for asked := 0; asked < step*peers; {
			if !(host{w}).Poll() {
				runtime.Gosched() // for the same reason
			}
			own(func() { w.drainInbox() })
			asked = int(subscriptions.Load())
		}
		for i, n := range all {
			if step > 1 {
				if i > 0 {
					host{w}.Poll()
				}
				n.Publish(n.reader.Load(), notify.Completion{Ref: refOf(step-1, i+1), Bytes: bytes})
				n.Flush()
			}
		}
		began = time.Now()
		return host{w}.Poll() || step == 1 // the first run waits for no notification
	}
	// end follows when the run has ended.
	end := func() bool {
		r := slots.run
		if r.Failure != nil {
			b.Error(r.Failure)
		}
		t1 := r.Times.Submitted
		for i, part := range [...]time.Duration{
			r.Times.Known.Sub(began), r.Times.Handed.Sub(r.Times.Known), t1.Sub(r.Times.Handed), slots.over.Sub(d.over), t1.Sub(began) + slots.over.Sub(d.over), d.over.Sub(t1),
		} {
			spent[i] = append(spent[i], part)
		}
		for _, n := range all {
			for n.Poll(); n.heard.Load() < int64(step); n.Poll() {
				runtime.Gosched() // for the same reason
			}
		}
		if step > 3 {
			say(&workerv1.SessionResponse{Releases: []*workerv1.Replica{{TaskId: taskOf(step-3, 0), Generation: 1}}})
			for i, n := range all {
				n.index.Unpublish(refOf(step-3, i+1))
			}
		}
		m := w.outbox.Take()
		if m != nil {
			w.outbox.Sent()
			for _, t := range m.GetTasks() {
				if t.GetOutcome() != workerv1.TaskOutcome_TASK_OUTCOME_SUCCEEDED {
					b.Error(t)
				}
			}
		}
		return false
	}
	slots.Load(true, 1)
	slots.Open(host{w})
	once := func() {
		slots.turns <- begin
		slots.turns <- end
	}
	once()
	once()
	slots.turns <- func() bool {
		spent = [6][]time.Duration{}
		return false
	}
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		n++
		once()
	}
	close(slots.turns)
	slots.Close()
	for i, name := range []string{"notified-ns", "admitted-ns", "submitted-ns", "published-ns", "all-ns", "overlap-ns"} {
		slices.Sort(spent[i])
		b.ReportMetric(float64(spent[i][n/2]), name)
	}
	w.signal()
	const remembered = 256
	if read := len(w.peers.Last(remembered)); read != min((n+1)*peers, remembered) {
		b.Errorf("%d inputs were read in place in %d steps", read, n)
	}
	if len(w.attempts) > 0 || w.machine.Len() > 0 {
		b.Error("it has attempts")
	}
}
