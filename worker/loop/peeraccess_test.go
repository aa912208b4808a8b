package loop_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/memory"
	hostmemory "github.com/millrace/millrace/memory/host"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/worker/device"
	"github.com/millrace/millrace/worker/device/host"
	"github.com/millrace/millrace/worker/loop"
	"github.com/millrace/millrace/worker/native"
	"github.com/millrace/millrace/worker/store"
	"github.com/millrace/millrace/worker/tasklog"
	"github.com/millrace/millrace/worker/workertest"
)

// shelf is a path to equal objects of 4 KiB, one for each task number, in memory that can be read
// in place. It records its calls in diary.
type shelf struct {
	transfer.Path
	slab *hostmemory.Slab

	mu    sync.Mutex
	diary []string
	// refuses: no lease is granted, though the object is published. breaks: leases are reported as
	// broken when they end.
	refuses, breaks bool
	// makes is the result size that calls with in-place inputs declare, in bytes; 0: the true size.
	makes uint64
	read  uint64
}

const shelfBytes = 4 << 10

func (s *shelf) note(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.diary = append(s.diary, fmt.Sprintf(format, args...))
}

// happened returns the index of a line in the diary, -1 if it is not there.
func (s *shelf) happened(format string, args ...any) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Index(s.diary, fmt.Sprintf(format, args...))
}

// count returns how often a line is in the diary.
func (s *shelf) count(line string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.diary {
		if l == line {
			n++
		}
	}
	return n
}

func (s *shelf) set(refuses, breaks bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refuses, s.breaks = refuses, breaks
}

func (s *shelf) frame(ref transfer.Ref) memory.Frame {
	return memory.Frame{Offset: memory.HeaderBytes + uint64(ref.Task)*shelfBytes, Bytes: shelfBytes}
}

func (s *shelf) head(ref transfer.Ref) transfer.Head {
	header, err := proto.Marshal(&millracev1.Value{Kind: &millracev1.Value_TensorValue{TensorValue: &millracev1.Tensor{
		Dtype: millracev1.DType_DTYPE_UINT8, Shape: []int64{shelfBytes}, Location: &millracev1.Tensor_Frame{},
	}}})
	if err != nil {
		panic(err)
	}
	return transfer.Head{Ref: ref, Header: header, FrameBytes: []uint64{shelfBytes}}
}

func (s *shelf) Name() string { return "shelf" }

func (s *shelf) Capabilities() transfer.Capabilities { return transfer.Capabilities{Lend: s} }

func (s *shelf) Close() error { return nil }

func (s *shelf) CanLend(transfer.Peer, transfer.Ref) bool { return true }

func (s *shelf) Lend(_ transfer.Peer, ref transfer.Ref, into *transfer.Loan) bool {
	s.mu.Lock()
	refuses, held := s.refuses, !s.breaks
	s.mu.Unlock()
	if refuses {
		s.note("refused %d", ref.Task)
		return false
	}
	s.note("lent %d", ref.Task)
	*into = transfer.Loan{
		Head: s.head(ref), Regions: []transfer.Region{{Space: s.slab, Frame: s.frame(ref)}},
		End: func() bool { s.note("ended %d", ref.Task); return held },
	}
	return true
}

func (s *shelf) Read(_ transfer.Peer, bytes uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.read += bytes
}

func (s *shelf) Fetch(ctx context.Context, _ transfer.Peer, refs []transfer.Ref, sink transfer.Sink) error {
	for i, ref := range refs {
		s.note("fetched %d", ref.Task)
		into, err := sink.Place(ctx, i, s.head(ref))
		if err == nil {
			f := s.frame(ref)
			copy(into[0].Bytes(), s.slab.Bytes(f.Offset, f.Bytes))
		}
		sink.Done(i, err)
	}
	return nil
}

// readingDevice is a device in host memory that reads inputs in place. Its calls can be started
// asynchronously, and they are over when they are finished.
type readingDevice struct {
	device.Device
	shelf *shelf
}

func (r *readingDevice) Reads(op string) device.Reading {
	switch op {
	case "bench.checksum":
		return device.ReadsOnce
	case "array.slice":
		return device.Moves
	}
	return device.ReadsAgain
}

func (r *readingDevice) Prepare(call device.Call) (device.Prepared, error) {
	p, err := r.Device.Prepare(call)
	if err != nil || len(call.Inputs) == 0 || call.Inputs[0].Space == nil {
		return p, err
	}
	task := (call.Inputs[0].Frames[0].Offset - memory.HeaderBytes) / shelfBytes
	return &reading{p, r.shelf, task}, nil
}

type reading struct {
	device.Prepared
	shelf *shelf
	task  uint64
}

func (r *reading) OutputBytes() []uint64 {
	r.shelf.mu.Lock()
	defer r.shelf.mu.Unlock()
	if r.shelf.makes > 0 {
		return []uint64{r.shelf.makes}
	}
	return r.Prepared.OutputBytes()
}

func (r *reading) Run(ctx context.Context, alloc device.Allocator) (device.Result, error) {
	defer r.shelf.note("over %d", r.task)
	return r.Prepared.Run(ctx, alloc)
}

func (r *reading) Start(ctx context.Context, alloc device.Allocator) (device.Started, error) {
	r.shelf.note("started %d", r.task)
	result, err := r.Prepared.Run(ctx, alloc)
	return &readingAhead{r, result, err}, nil
}

type readingAhead struct {
	*reading
	result device.Result
	err    error
}

func (r *readingAhead) Done() bool { return true }

func (r *readingAhead) Header() []byte {
	if r.err != nil || len(r.result.Frames) == 0 {
		return nil
	}
	return r.result.Header
}

func (r *readingAhead) Finish() (device.Result, error) {
	r.shelf.note("over %d", r.task)
	return r.result, r.err
}

const shelfPeer = 77

// readingWorker returns the shelf and the first session of a worker with such a device and path.
func readingWorker(t *testing.T) (*shelf, *workertest.Session) {
	t.Helper()
	path, s, _ := describedWorker(t)
	return path, s
}

func describedWorker(t *testing.T) (*shelf, *workertest.Session, *loop.Worker) {
	t.Helper()
	scheduler := workertest.NewScheduler(t)
	path, w := workerOf(t, scheduler, func(s *shelf) transfer.Path { return s }, nil)
	return path, acceptWorker(t, scheduler), w
}

// acceptWorker accepts the next session of a worker, and defines the ops and a peer for it.
func acceptWorker(t *testing.T, scheduler *workertest.Scheduler) *workertest.Session {
	t.Helper()
	s := scheduler.Accept(t)
	s.Op(1, millracev1.OpKind_OP_KIND_NATIVE, "bench.checksum")
	s.Op(2, millracev1.OpKind_OP_KIND_NATIVE, "bench.stamp")
	s.Op(3, millracev1.OpKind_OP_KIND_NATIVE, "array.slice")
	s.Send(&workerv1.SessionResponse{Peers: []*workerv1.Peer{{WorkerId: shelfPeer, Name: "host-1", DataAddress: "nowhere"}}})
	return s
}

// workerOf starts a worker of a scheduler. way makes its path from a shelf. Its objects are
// published in published, if that is not nil. changes change its configuration.
func workerOf(t *testing.T, scheduler *workertest.Scheduler, way func(*shelf) transfer.Path, published store.Index, changes ...func(*loop.Config)) (*shelf, *loop.Worker) {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+scheduler.Address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	newSlab := func() *hostmemory.Slab {
		// Only a small part of it is touched.
		slab, err := hostmemory.NewSlab(128<<20, memory.Identity{})
		if err != nil {
			t.Fatal(err)
		}
		return slab
	}
	path := &shelf{slab: newSlab()}
	t.Cleanup(func() { _ = path.slab.Close() })
	copy(path.slab.Bytes(memory.HeaderBytes, 4<<20), bytes.Repeat([]byte{7}, 4<<20))
	d := &readingDevice{Device: host.New(newSlab(), nil), shelf: path}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	log := slog.New(slog.DiscardHandler)
	objects, err := store.New(d.Space(), log)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(objects.Close)
	if published != nil {
		objects.PublishTo(published)
	}
	config := loop.Config{
		Registration: &workerv1.Registration{Name: "host-0", Incarnation: "1", Slots: 1, NativeOps: d.Ops()},
		Sessions:     loop.SessionsBy(conn), Store: objects, Path: way(path), Logs: new(tasklog.Logs), Log: log,
		Traffic: func() (in, out uint64) { return 0, 0 }, MemoryWait: workertest.EventTimeout, BorrowWait: workertest.EventTimeout,
	}
	for _, change := range changes {
		change(&config)
	}
	config.Native = native.New(native.Config{Slots: 1, Device: d, Store: objects, MemoryWait: config.MemoryWait})
	w := loop.New(config)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	return path, w
}

// checksumOf returns an assignment that reads an object of the shelf.
func checksumOf(task, object uint64) *workerv1.Assignment {
	return &workerv1.Assignment{
		TaskId: task, Attempt: 1, OpId: 1, Arguments: workertest.Arguments(workertest.Input(0)),
		Inputs: []*workerv1.Input{{TaskId: object, Generation: 1, Bytes: shelfBytes, Holders: []uint32{shelfPeer}}},
	}
}

func value(t *testing.T, r *workerv1.TaskReport) int64 {
	t.Helper()
	if r.GetOutcome() != workerv1.TaskOutcome_TASK_OUTCOME_SUCCEEDED {
		t.Fatalf("%v", r)
	}
	return workertest.Decode(t, r.GetInlineResult()).GetIntValue()
}

// Inputs are read in place when the device can do so, and each lease lasts until its call is over,
// even if calls are started behind each other.
func TestInputsAreReadInPlace(t *testing.T) {
	path, s, w := describedWorker(t)
	var want int64
	for task := uint64(1); task <= 60; task++ {
		s.Assign(checksumOf(1000+task, task))
		if task < 20 {
			// From here on tasks are known to be short and are handed to the slot in advance.
			r := s.Report(1000 + task)
			if want = value(t, r); r.GetFetchedBytes() != 0 {
				t.Errorf("task %d fetched %d bytes", task, r.GetFetchedBytes())
			}
		}
	}
	for task := uint64(20); task <= 60; task++ {
		if got := value(t, s.Report(1000+task)); got != want {
			t.Errorf("task %d: %x, want %x", task, got, want)
		}
	}
	for task := 1; task <= 60; task++ {
		lent, over, ended := path.happened("lent %d", task), path.happened("over %d", task), path.happened("ended %d", task)
		if lent < 0 || over < lent || ended < over || path.happened("fetched %d", task) >= 0 {
			t.Errorf("task %d: lent at %d, over at %d, loan ended at %d", task, lent, over, ended)
		}
	}
	path.mu.Lock()
	defer path.mu.Unlock()
	if path.read != 60*shelfBytes {
		t.Errorf("%d bytes are said to have been read", path.read)
	}
	told := w.Stats().Memory(1, 0).GetFetches()
	if len(told) != 1 || told[0].GetTaskId() != 60 || told[0].GetReadByTaskId() != 1060 || told[0].GetPeerWorkerId() != shelfPeer || told[0].GetObjectBytes() != shelfBytes {
		t.Errorf("it tells of %v", told)
	}
}

// An object for which no lease is granted is fetched, and the failed first try leaves no trace.
func TestInputsThatCannotBeReadInPlaceAreFetched(t *testing.T) {
	path, s := readingWorker(t)
	s.Assign(checksumOf(1001, 1))
	want := value(t, s.Report(1001))
	path.set(true, false)
	s.Assign(checksumOf(1002, 2))
	r := s.Report(1002)
	if got := value(t, r); got != want || r.GetFetchedBytes() < shelfBytes {
		t.Errorf("%x, want %x; %d bytes fetched", got, want, r.GetFetchedBytes())
	}
	if path.happened("refused 2") < 0 || path.happened("fetched 2") < path.happened("refused 2") {
		t.Error("it was not asked for before it was fetched")
	}
}

// A result that was computed from bytes that were not protected is not reported.
func TestResultOfABrokenLoanIsThrownAway(t *testing.T) {
	path, s := readingWorker(t)
	path.set(false, true)
	s.Assign(checksumOf(1001, 1))
	r := s.Report(1001)
	if r.GetOutcome() != workerv1.TaskOutcome_TASK_OUTCOME_INPUT_UNREACHABLE || len(r.GetUnreachable()) != 1 || r.GetUnreachable()[0].GetTaskId() != 1 {
		t.Errorf("%v", r)
	}
}

// Not read in place: inputs that the operation reads more than once, members of a broadcast chain,
// objects that were read in place too often, and large inputs.
func TestInputsThatAreFetched(t *testing.T) {
	path, s := readingWorker(t)
	downstream, upstream, large := checksumOf(1001, 1), checksumOf(1002, 2), checksumOf(1003, 3)
	downstream.Inputs[0].HasDownstream = true
	upstream.Inputs[0].UpstreamWorkerId = shelfPeer
	large.Inputs[0].Bytes = 5 << 20 // the declared size
	s.Assign(downstream, upstream, large)
	for task := uint64(1001); task <= 1003; task++ {
		if r := s.Report(task); r.GetFetchedBytes() < shelfBytes {
			t.Errorf("task %d: %v", task, r)
		}
	}
	// The operation finds that it is no stamp, which needs the object itself.
	stamp := checksumOf(1004, 4)
	stamp.OpId, stamp.Arguments = 2, workertest.Arguments(1, 64, []any{1}, workertest.Input(0))
	s.Assign(stamp)
	if r := s.Report(1004); r.GetOutcome() != workerv1.TaskOutcome_TASK_OUTCOME_FAILED || path.happened("fetched 4") < 0 {
		t.Errorf("%v", r)
	}
	for n := range uint64(6) {
		s.Assign(checksumOf(1010+n, 5))
		s.Report(1010 + n)
		if fetched := path.happened("fetched 5") >= 0; fetched != (n >= 4) {
			t.Errorf("after %d reads: fetched is %v", n+1, fetched)
		}
	}
}

// Operations that only move bytes read inputs of any size in place. But if the result is large as
// well, the input is fetched, once that is known.
func TestMuchOfALargeInputIsFetched(t *testing.T) {
	path, s := readingWorker(t)
	slice := func(task, object uint64) *workerv1.TaskReport {
		a := checksumOf(task, object)
		a.OpId, a.Inputs[0].Bytes = 3, 65<<20 // the declared size
		a.Arguments = workertest.Arguments(workertest.Input(0), []any{0}, []any{16})
		s.Assign(a)
		r := s.Report(task)
		if r.GetOutcome() != workerv1.TaskOutcome_TASK_OUTCOME_SUCCEEDED {
			t.Fatalf("%v", r)
		}
		return r
	}
	if r := slice(1001, 1); r.GetFetchedBytes() != 0 || path.happened("lent 1") < 0 {
		t.Errorf("little of it: %d bytes were fetched", r.GetFetchedBytes())
	}
	path.mu.Lock()
	path.makes = 65 << 20
	path.mu.Unlock()
	if r := slice(1002, 2); r.GetFetchedBytes() < shelfBytes || path.happened("over 2") >= 0 {
		t.Errorf("much of it: %d bytes were fetched", r.GetFetchedBytes())
	}
	if lent, ended, fetched := path.happened("lent 2"), path.happened("ended 2"), path.happened("fetched 2"); lent < 0 || ended < lent || fetched < ended {
		t.Errorf("lent at %d, loan ended at %d, fetched at %d", lent, ended, fetched)
	}
}
