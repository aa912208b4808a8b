package worker_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/internal/access"
	"github.com/millrace/millrace/internal/leaktest"
	"github.com/millrace/millrace/internal/rawframe"
	"github.com/millrace/millrace/memory/cuda"
	"github.com/millrace/millrace/worker"
	"github.com/millrace/millrace/worker/session"
	"github.com/millrace/millrace/worker/workertest"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(leaktest.Patient{M: m}, goleak.Cleanup(func(code int) {
		if echoDir != "" {
			_ = os.RemoveAll(echoDir) // a leftover directory does no harm
		}
		os.Exit(code)
	}))
}

const (
	native = millracev1.OpKind_OP_KIND_NATIVE
	exec   = millracev1.OpKind_OP_KIND_EXEC
)

// running is a worker in this process.
type running struct {
	*workertest.Session
	scheduler *workertest.Scheduler
	ended     chan error
	stop      context.CancelFunc
}

// shortWait is the MemoryWait of workers whose tasks should fail for lack of memory.
const shortWait = 300 * time.Millisecond

// start runs a worker until the test ends or stop is called.
func start(t *testing.T, s *workertest.Scheduler, change func(*worker.Config)) *running {
	t.Helper()
	c := worker.Config{
		Name: "host-0", Scheduler: s.Address, Slots: 2, MemoryLimitBytes: 64 << 20, BLASLibrary: "none", PythonCommand: []string{""},
		Log: slog.New(slog.NewTextHandler(testWriter{t}, nil)), LocalDirectory: t.TempDir(),
		// Under the race detector, a loaded machine can stop for seconds.
		MemoryWait: workertest.EventTimeout, StallTimeout: workertest.EventTimeout, BorrowWait: workertest.EventTimeout, SubscriptionWait: workertest.EventTimeout, StopGrace: workertest.EventTimeout,
	}
	if change != nil {
		change(&c)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{scheduler: s, ended: make(chan error, 1), stop: cancel}
	exited := make(chan struct{})
	go func() {
		defer close(exited)
		r.ended <- worker.Run(ctx, c)
	}()
	t.Cleanup(func() {
		cancel()
		select {
		case <-exited:
		case <-time.After(workertest.EventTimeout):
			t.Error("the worker did not end")
		}
	})
	r.Session = s.Accept(t)
	return r
}

func random(seed byte, n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{seed}).Read(b) // it never fails
	return b
}

// end stops the worker and waits for it.
func (w *running) end(t *testing.T) {
	t.Helper()
	w.stop()
	if err := <-w.ended; err != nil {
		t.Error(err)
	}
}

type testWriter struct{ t *testing.T }

func (w testWriter) Write(b []byte) (int, error) {
	w.t.Log(strings.TrimSpace(string(b)))
	return len(b), nil
}

func data(t *testing.T, address string) millracev1.DataServiceClient {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+address, append(rawframe.DialOptions(), grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	})
	return millracev1.NewDataServiceClient(conn)
}

// read fetches one object as any protobuf client would.
func read(t *testing.T, d millracev1.DataServiceClient, task uint64) (*millracev1.Value, []byte, *millracev1.TaskError) {
	t.Helper()
	stream, err := d.ReadObjects(t.Context(), &millracev1.ReadObjectsRequest{Objects: []*millracev1.ObjectRef{{TaskId: task}}})
	if err != nil {
		t.Fatal(err)
	}
	var head *millracev1.ObjectHead
	var b []byte
	for {
		m, err := stream.Recv()
		if err != nil {
			if head == nil {
				t.Fatal(err)
			}
			return workertest.Decode(t, head.GetHeader()), b, nil
		}
		if m.GetError() != nil {
			return nil, nil, m.GetError()
		}
		if m.GetHead() != nil {
			head = m.GetHead()
		}
		b = append(b, m.GetData()...)
	}
}

func write(t *testing.T, d millracev1.DataServiceClient, task uint64, v *millracev1.Value, frames ...[]byte) error {
	t.Helper()
	header, err := proto.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	head := &millracev1.ObjectHead{Object: &millracev1.ObjectRef{TaskId: task, Generation: 1}, Header: header}
	for _, f := range frames {
		head.FrameBytes = append(head.FrameBytes, uint64(len(f)))
	}
	stream, err := d.WriteObject(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var sent rawframe.Outgoing
	m := &rawframe.WriteRequest{Message: rawframe.Message{Head: head}}
	for i, f := range frames {
		for off := 0; off < len(f); off += rawframe.ChunkBytes {
			m.Frame, m.Offset = uint32(i), uint64(off)
			m.Data = sent.Payload(f[off:min(len(f), off+rawframe.ChunkBytes)])
			if stream.SendMsg(m) != nil {
				_, err := stream.CloseAndRecv()
				return err
			}
			m = &rawframe.WriteRequest{}
		}
	}
	if m.Head != nil && stream.SendMsg(m) != nil {
		_, err := stream.CloseAndRecv()
		return err
	}
	_, err = stream.CloseAndRecv()
	return err
}

func bytesTensor(n int) *millracev1.Value {
	return &millracev1.Value{Kind: &millracev1.Value_TensorValue{TensorValue: &millracev1.Tensor{
		Dtype: millracev1.DType_DTYPE_UINT8, Shape: []int64{int64(n)}, Location: &millracev1.Tensor_Frame{Frame: 0},
	}}}
}

func TestNativeTaskIsRunAndReported(t *testing.T) {
	w := start(t, workertest.NewScheduler(t), nil)
	if r := w.Registration; r.GetName() != "host-0" || r.GetSlots() != 2 || len(r.GetNativeOps()) < 10 || r.GetDataAddress() == "" {
		t.Errorf("registered as %v", r)
	}
	w.Op(1, native, "bench.noop")
	w.Op(2, native, "array.full")
	w.Op(3, native, "array.reduce")
	w.Assign(&workerv1.Assignment{TaskId: 10, Attempt: 1, OpId: 1})
	if r := w.Report(10); r.GetOutcome() != workerv1.TaskOutcome_TASK_OUTCOME_SUCCEEDED || workertest.Decode(t, r.GetInlineResult()).GetKind() == nil {
		t.Errorf("noop: %v", r)
	}
	// A large result stays in the slab; the next task finds it there.
	w.Assign(&workerv1.Assignment{TaskId: 11, Attempt: 1, OpId: 2, Arguments: workertest.Arguments([]any{1000, 1000}, 0.5)})
	r := w.Report(11)
	if r.GetOutcome() != workerv1.TaskOutcome_TASK_OUTCOME_SUCCEEDED || r.GetOutputBytes() < 8_000_000 || r.GetInlineResult() != nil {
		t.Fatalf("full: %v", r)
	}
	w.Assign(&workerv1.Assignment{
		TaskId: 12, Attempt: 1, OpId: 3, Arguments: workertest.Arguments(workertest.Input(0), "sum"),
		Inputs: []*workerv1.Input{{TaskId: 11, Generation: 1, Bytes: r.GetOutputBytes()}},
	})
	sum := workertest.Decode(t, w.Report(12).GetInlineResult())
	if got := float64Of(t, sum); got != 500000 {
		t.Errorf("sum = %v", got)
	}
	v, b, failed := read(t, data(t, w.Registration.GetDataAddress()), 11)
	if failed != nil || len(b) != 8_000_000 || v.GetTensorValue() == nil {
		t.Errorf("read %d bytes, %v, %v", len(b), v, failed)
	}
	w.Send(&workerv1.SessionResponse{Releases: []*workerv1.Replica{{TaskId: 11, Generation: 1}}})
	w.Assign(&workerv1.Assignment{TaskId: 13, Attempt: 1, OpId: 1})
	w.Report(13)
	if _, _, failed := read(t, data(t, w.Registration.GetDataAddress()), 11); failed.GetReason() != "OBJECT_NOT_HERE" {
		t.Errorf("read after release: %v", failed)
	}
}

func float64Of(t *testing.T, v *millracev1.Value) float64 {
	t.Helper()
	switch k := v.GetKind().(type) {
	case *millracev1.Value_DoubleValue:
		return k.DoubleValue
	case *millracev1.Value_TensorValue:
		b := k.TensorValue.GetInlineData()
		if len(b) != 8 {
			t.Fatalf("a tensor without one float64 inline: %v", v)
		}
		var bits uint64
		for i := range 8 {
			bits |= uint64(b[i]) << (8 * i)
		}
		return math.Float64frombits(bits)
	}
	t.Fatalf("not a number: %v", v)
	return 0
}

func TestFailuresNameTheirReason(t *testing.T) {
	w := start(t, workertest.NewScheduler(t), nil)
	w.Op(1, native, "array.fulll")
	w.Op(2, native, "array.full")
	w.Op(3, native, "bench.sleep")
	w.Op(4, exec, "nobody/x")
	w.Op(5, millracev1.OpKind_OP_KIND_PYTHON_IMPORT, "math:sqrt")
	for _, c := range []struct {
		a       *workerv1.Assignment
		reason  string
		message string
	}{
		{&workerv1.Assignment{OpId: 1}, "FUNCTION_NOT_FOUND", "array.full"},
		{&workerv1.Assignment{OpId: 2, Arguments: workertest.Arguments("x")}, "INVALID_ARGUMENT", "shape"},
		{&workerv1.Assignment{OpId: 2, Arguments: []byte{0xff}}, "INVALID_ARGUMENT", "Arguments message"},
		{&workerv1.Assignment{OpId: 2, Arguments: workertest.Arguments([]any{1 << 30}, 0.5)}, "OUT_OF_MEMORY", "64 MiB"},
		{&workerv1.Assignment{OpId: 3, Arguments: workertest.Arguments(3600.0), TimeoutMillis: 30}, "TIMEOUT", "30ms"},
		{&workerv1.Assignment{OpId: 4}, "FUNCTION_NOT_FOUND", "nobody"},
		{&workerv1.Assignment{OpId: 5}, "FUNCTION_NOT_FOUND", "python"},
		{&workerv1.Assignment{OpId: 9}, "PROTOCOL_VIOLATION", "op 9"},
	} {
		c.a.TaskId, c.a.Attempt, c.a.Key = 1, 3, "the-key"
		w.Assign(c.a)
		r := w.Report(1)
		e := r.GetError()
		if r.GetOutcome() != workerv1.TaskOutcome_TASK_OUTCOME_FAILED || e.GetReason() != c.reason || !strings.Contains(e.GetMessage(), c.message) {
			t.Errorf("%v: %v", c.a, r)
		}
		if e.GetWorker() != "host-0" || e.GetOriginKey() != "the-key" || e.GetAttempt() != 3 {
			t.Errorf("error does not say where: %v", e)
		}
	}
}

// If the directory for local files cannot be made, the worker ends with the reason.
func TestAWorkerWithoutADirectorySaysSo(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	err := worker.Run(t.Context(), worker.Config{
		Name: "host-0", Scheduler: workertest.NewScheduler(t).Address, MemoryLimitBytes: 1 << 20, BLASLibrary: "none", PythonCommand: []string{""}, LocalDirectory: file,
	})
	if err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("got %v", err)
	}
}

func TestMemoryThatNeverFreesFailsNamingTheHolders(t *testing.T) {
	w := start(t, workertest.NewScheduler(t), func(c *worker.Config) { c.SpillLimitBytes, c.MemoryWait = worker.NoSpill, shortWait })
	w.Op(1, native, "array.full")
	fill := workertest.Arguments([]any{6 << 20}, 0.5) // 48 MiB of 64
	w.Assign(&workerv1.Assignment{TaskId: 1, Attempt: 1, OpId: 1, Arguments: fill})
	w.Report(1)
	w.Assign(&workerv1.Assignment{TaskId: 2, Attempt: 1, OpId: 1, Arguments: fill})
	if e := w.Report(2).GetError(); e.GetReason() != "OUT_OF_MEMORY" || !strings.Contains(e.GetMessage(), "t1/a1") || !strings.Contains(e.GetMessage(), "48 MiB") {
		t.Errorf("got %v", e)
	}
}

func TestTaskThatWaitsForMemoryRunsWhenItIsFreed(t *testing.T) {
	w := start(t, workertest.NewScheduler(t), func(c *worker.Config) { c.Slots = 1 })
	w.Op(1, native, "array.full")
	w.Op(2, native, "bench.noop")
	fill := workertest.Arguments([]any{6 << 20}, 0.5)
	w.Assign(&workerv1.Assignment{TaskId: 1, Attempt: 1, OpId: 1, Arguments: fill})
	w.Report(1)
	// The task must not occupy the only slot while it waits.
	w.Assign(&workerv1.Assignment{TaskId: 2, Attempt: 1, OpId: 1, Arguments: fill}, &workerv1.Assignment{TaskId: 3, Attempt: 1, OpId: 2})
	w.Report(3)
	w.Send(&workerv1.SessionResponse{Releases: []*workerv1.Replica{{TaskId: 1, Generation: 1}}})
	if r := w.Report(2); r.GetOutcome() != workerv1.TaskOutcome_TASK_OUTCOME_SUCCEEDED {
		t.Errorf("got %v", r)
	}
}

func TestCancelRetractAndStarted(t *testing.T) {
	w := start(t, workertest.NewScheduler(t), func(c *worker.Config) { c.Slots = 1 })
	w.Op(1, native, "bench.sleep")
	long := workertest.Arguments(3600.0)
	w.Assign(
		&workerv1.Assignment{TaskId: 1, Attempt: 1, OpId: 1, Arguments: long, Rank: 1},
		&workerv1.Assignment{TaskId: 2, Attempt: 1, OpId: 1, Arguments: long, Rank: 2},
		&workerv1.Assignment{TaskId: 3, Attempt: 1, OpId: 1, Arguments: long, Rank: 3},
	)
	w.Report(1, workerv1.TaskOutcome_TASK_OUTCOME_STARTED)
	w.Send(&workerv1.SessionResponse{Retractions: []*workerv1.AttemptRef{{TaskId: 1, Attempt: 1}, {TaskId: 2, Attempt: 1}, {TaskId: 99, Attempt: 1}}})
	w.Report(1, workerv1.TaskOutcome_TASK_OUTCOME_RETRACT_REFUSED)
	w.Report(2, workerv1.TaskOutcome_TASK_OUTCOME_RETRACTED)
	w.Report(99, workerv1.TaskOutcome_TASK_OUTCOME_RETRACT_REFUSED)
	w.Send(&workerv1.SessionResponse{Cancellations: []*workerv1.AttemptRef{{TaskId: 3, Attempt: 1}, {TaskId: 1, Attempt: 1}}})
	w.Report(3, workerv1.TaskOutcome_TASK_OUTCOME_CANCELLED)
	if r := w.Report(1, workerv1.TaskOutcome_TASK_OUTCOME_CANCELLED); r.GetError().GetReason() != "CANCELLED" {
		t.Errorf("got %v", r)
	}
}

func TestInputsComeFromPeersOrInline(t *testing.T) {
	s := workertest.NewScheduler(t)
	a := start(t, s, nil)
	b := start(t, s, func(c *worker.Config) { c.Name = "host-1" })
	peers := []*workerv1.Peer{
		{WorkerId: a.ID, Name: "host-0", DataAddress: a.Registration.GetDataAddress()},
		{WorkerId: b.ID, Name: "host-1", DataAddress: b.Registration.GetDataAddress()},
		{WorkerId: 77, Name: "gone", DataAddress: "127.0.0.1:1"},
	}
	for _, w := range []*running{a, b} {
		w.Send(&workerv1.SessionResponse{Peers: peers})
		w.Op(1, native, "array.full")
		w.Op(2, native, "array.reduce")
		w.Op(3, native, "core.list")
	}
	a.Assign(&workerv1.Assignment{TaskId: 1, Attempt: 1, OpId: 1, Arguments: workertest.Arguments([]any{1 << 20}, 2.0)})
	r := a.Report(1)
	// Two tasks on the other worker need the object at the same time. On a busy machine the fetch
	// of the first one may end before the second one is looked at. The first listed holder is dead.
	in := &workerv1.Input{TaskId: 1, Generation: 1, Bytes: r.GetOutputBytes(), Holders: []uint32{77, a.ID}}
	var both []*workerv1.Assignment
	for task := uint64(2); task <= 3; task++ {
		both = append(both, &workerv1.Assignment{TaskId: task, Attempt: 1, OpId: 2, Arguments: workertest.Arguments(workertest.Input(0), "sum"), Inputs: []*workerv1.Input{in}})
	}
	b.Assign(both...)
	for task := uint64(2); task <= 3; task++ {
		r := b.Report(task)
		got, fetched := float64Of(t, workertest.Decode(t, r.GetInlineResult())), r.GetFetchedBytes()
		if found := task == 3 && fetched == 0; got != 1<<21 || !found && (fetched < 8<<20 || r.GetFetchNanos() == 0) {
			t.Errorf("sum = %v, %v", got, r)
		}
	}
	b.Until("the fetched copy", func() bool { return len(b.Objects) == 1 })
	if o := b.Objects[0]; o.GetReplica().GetTaskId() != 1 || o.GetReplica().GetBytes() != r.GetOutputBytes() || (o.GetEvent() == workerv1.ObjectEvent_OBJECT_EVENT_LOST) {
		t.Errorf("gained %v", o)
	}
	// Inline inputs, and inputs without a holder.
	inline, err := proto.Marshal(workertest.ValueOf("hello"))
	if err != nil {
		t.Fatal(err)
	}
	b.Assign(&workerv1.Assignment{
		TaskId: 4, Attempt: 1, OpId: 3, Arguments: workertest.Arguments(workertest.Input(0), workertest.Input(0)),
		Inputs: []*workerv1.Input{{TaskId: 9, Generation: 1, InlineResult: inline}},
	}, &workerv1.Assignment{
		TaskId: 5, Attempt: 1, OpId: 3, Arguments: workertest.Arguments(workertest.Input(0)),
		Inputs: []*workerv1.Input{{TaskId: 8, Generation: 2, Bytes: 100, Holders: []uint32{a.ID, 77, 78}}},
	})
	if v := workertest.Decode(t, b.Report(4).GetInlineResult()); len(v.GetListValue().GetValues()) != 2 || v.GetListValue().GetValues()[1].GetStringValue() != "hello" {
		t.Errorf("got %v", v)
	}
	lost := b.Report(5)
	if lost.GetOutcome() != workerv1.TaskOutcome_TASK_OUTCOME_INPUT_UNREACHABLE || len(lost.GetUnreachable()) != 1 {
		t.Fatalf("got %v", lost)
	}
	u := lost.GetUnreachable()[0]
	if u.GetTaskId() != 8 || u.GetGeneration() != 2 || fmt.Sprint(u.GetMissingAt()) != fmt.Sprint([]uint32{a.ID}) || fmt.Sprint(u.GetFailedAt()) != "[77 78]" {
		t.Errorf("got %v", u)
	}
}

func TestScatteredObjectIsAcknowledgedAfterTheSchedulerKnows(t *testing.T) {
	w := start(t, workertest.NewScheduler(t), nil)
	d := data(t, w.Registration.GetDataAddress())
	content := bytes.Repeat([]byte("0123456789abcdef"), 1<<18)
	if err := write(t, d, 5, bytesTensor(len(content)), content); err != nil {
		t.Fatal(err)
	}
	w.Until("the report", func() bool { return len(w.Objects) == 1 })
	if o := w.Objects[0]; o.GetReplica().GetTaskId() != 5 || o.GetReplica().GetGeneration() != 1 || o.GetInlineResult() != nil {
		t.Errorf("gained %v", o)
	}
	if _, b, _ := read(t, d, 5); !bytes.Equal(b, content) {
		t.Error("other bytes came back")
	}
	// The report on a small object contains its bytes.
	if err := write(t, d, 6, bytesTensor(3), []byte("abc")); err != nil {
		t.Fatal(err)
	}
	w.Until("the second report", func() bool { return len(w.Objects) == 2 })
	if v := workertest.Decode(t, w.Objects[1].GetInlineResult()); string(v.GetTensorValue().GetInlineData()) != "abc" {
		t.Errorf("inline: %v", v)
	}
	if err := write(t, d, 6, bytesTensor(3), []byte("abc")); status.Code(err) != codes.AlreadyExists || reasonOf(err) != "OBJECT_EXISTS" {
		t.Errorf("twice: %v", err)
	}
	if err := write(t, d, 7, bytesTensor(100<<20), make([]byte, 100<<20)); status.Code(err) != codes.ResourceExhausted || reasonOf(err) != "OUT_OF_MEMORY" || !strings.Contains(err.Error(), "64 MiB") {
		t.Errorf("too large: %v", err)
	}
}

// TestAWrittenHeaderFitsItsFrames: a client that writes a header that no reader could decode gets
// the field, and the worker keeps nothing of the object.
func TestAWrittenHeaderFitsItsFrames(t *testing.T) {
	w := start(t, workertest.NewScheduler(t), nil)
	d := data(t, w.Registration.GetDataAddress())
	noType := bytesTensor(3)
	noType.GetTensorValue().Dtype = 0
	for field, c := range map[string]struct {
		v      *millracev1.Value
		frames []string
	}{
		"head.header.tensor_value.frame":    {bytesTensor(3), nil},
		"head.frame_bytes[1]":               {bytesTensor(3), []string{"abc", "surplus"}},
		"head.frame_bytes[0]":               {bytesTensor(3), []string{"abcd"}},
		"head.header.tensor_value.shape":    {bytesTensor(3), []string{"ab"}},
		"head.header.tensor_value.shape[0]": {bytesTensor(-3), []string{"abc"}},
		"head.header.tensor_value.dtype":    {noType, []string{"abc"}},
		"head.header.input":                 {&millracev1.Value{Kind: &millracev1.Value_Input{}}, nil},
	} {
		var frames [][]byte
		for _, f := range c.frames {
			frames = append(frames, []byte(f))
		}
		err := write(t, d, 5, c.v, frames...)
		if info := infoOf(err); status.Code(err) != codes.InvalidArgument || info.GetReason() != "INVALID_FIELD" || info.GetMetadata()["object"] != field {
			t.Errorf("%s: %v, %v", field, err, info)
		}
	}
	m, err := d.DescribeMemory(t.Context(), &millracev1.DescribeMemoryRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if len(m.GetLargest()) > 0 || len(m.GetReservations()) > 0 || m.GetSmallObjectCount() > 0 || len(w.Objects) > 0 {
		t.Errorf("the worker keeps %v, and reports %v", m, w.Objects)
	}
	if err := write(t, d, 5, bytesTensor(3), []byte("abc")); err != nil {
		t.Errorf("a header that fits, for the same task: %v", err)
	}
}

func TestReconnectionBringsInventoryAndRunning(t *testing.T) {
	w := start(t, workertest.NewScheduler(t), nil)
	w.Op(1, native, "bench.noop")
	w.Op(2, native, "bench.sleep")
	w.Assign(&workerv1.Assignment{TaskId: 1, Attempt: 4, OpId: 1}, &workerv1.Assignment{TaskId: 2, Attempt: 1, OpId: 2, Arguments: workertest.Arguments(3600.0)})
	w.Report(1)
	w.Report(2, workerv1.TaskOutcome_TASK_OUTCOME_STARTED)
	incarnation := w.Registration.GetIncarnation()
	w.Break(status.Error(codes.Unavailable, "the scheduler restarts"))
	again := w.scheduler.Accept(t)
	r := again.Registration
	if r.GetIncarnation() != incarnation || len(r.GetInventory()) != 1 || r.GetInventory()[0].GetTaskId() != 1 || r.GetInventory()[0].GetGeneration() != 4 {
		t.Errorf("inventory %v", r.GetInventory())
	}
	if len(r.GetRunning()) != 1 || r.GetRunning()[0].GetTaskId() != 2 {
		t.Errorf("running %v", r.GetRunning())
	}
	again.Send(&workerv1.SessionResponse{Cancellations: r.GetRunning()})
	again.Report(2, workerv1.TaskOutcome_TASK_OUTCOME_CANCELLED)
	again.Send(&workerv1.SessionResponse{Reregister: true})
	w.scheduler.Accept(t)
}

// A worker that is ordered to leave ends at once, whatever runs. If its supervisor is to start it
// again, the error says so.
func TestOrderToLeave(t *testing.T) {
	for _, restart := range []bool{false, true} {
		w := start(t, workertest.NewScheduler(t), nil)
		w.Op(1, native, "bench.sleep")
		w.Assign(&workerv1.Assignment{TaskId: 1, Attempt: 1, OpId: 1, Arguments: workertest.Arguments(3600.0)})
		w.Report(1, workerv1.TaskOutcome_TASK_OUTCOME_STARTED)
		w.Send(&workerv1.SessionResponse{Leave: &workerv1.Leave{Restart: restart, Reason: "a new driver"}})
		w.Until("the farewell", func() bool { return w.Leaving })
		err := <-w.ended
		var again *session.RestartError
		if errors.As(err, &again) != restart || !restart && err != nil || restart && again.Reason != "a new driver" {
			t.Errorf("restart %v: ended with %v", restart, err)
		}
	}
}

func TestStopReasonEndsTheWorker(t *testing.T) {
	w := start(t, workertest.NewScheduler(t), nil)
	w.Send(&workerv1.SessionResponse{StopReason: "the cluster is shutting down"})
	if err := <-w.ended; err == nil || !strings.Contains(err.Error(), "shutting down") {
		t.Errorf("ended with %v", err)
	}
}

func TestEndOfContextLeavesProperly(t *testing.T) {
	warned := new(atomic.Bool)
	w := start(t, workertest.NewScheduler(t), func(c *worker.Config) { c.Log = slog.New(warnings{c.Log.Handler(), warned}) })
	w.stop()
	w.Until("the farewell", func() bool { return w.Leaving })
	if err := <-w.ended; err != nil {
		t.Errorf("ended with %v", err)
	}
	if warned.Load() {
		t.Error("a worker that leaves warns of something")
	}
}

// warnings records whether there was any warning.
type warnings struct {
	slog.Handler
	any *atomic.Bool
}

func (w warnings) Handle(ctx context.Context, r slog.Record) error {
	if r.Level >= slog.LevelWarn {
		w.any.Store(true)
	}
	return w.Handler.Handle(ctx, r)
}

func (w warnings) WithAttrs(attrs []slog.Attr) slog.Handler {
	return warnings{w.Handler.WithAttrs(attrs), w.any}
}

func TestSchedulerThatStaysAwayEndsTheWorker(t *testing.T) {
	ctx := t.Context()
	err := worker.Run(ctx, worker.Config{
		Name: "host-0", Scheduler: "127.0.0.1:1", MemoryLimitBytes: 1 << 20, BLASLibrary: "none", PythonCommand: []string{""}, SchedulerTimeout: 50 * time.Millisecond,
		Log: slog.New(slog.DiscardHandler),
	})
	if err == nil || !strings.Contains(err.Error(), "scheduler is away") {
		t.Errorf("ended with %v", err)
	}
}

func TestDataServiceAsksForTheToken(t *testing.T) {
	w := start(t, workertest.NewScheduler(t), func(c *worker.Config) {
		c.Token, c.Accept = "worker-token", access.Tokens{access.TokenOf("client-token", access.Client)}
	})
	d := data(t, w.Registration.GetDataAddress())
	for token, want := range map[string]codes.Code{"": codes.Unauthenticated, "wrong": codes.Unauthenticated, "client-token": codes.OK} {
		ctx := t.Context()
		if token != "" {
			ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
		}
		_, err := d.GetTaskLogs(ctx, &millracev1.GetTaskLogsRequest{TaskId: 1})
		if status.Code(err) != want || err != nil && reasonOf(err) != "UNAUTHENTICATED" {
			t.Errorf("token %q: %v with %q", token, err, reasonOf(err))
		}
	}
	// The check precedes the reading of the request: none was sent here.
	ctx, cancel := context.WithTimeout(t.Context(), workertest.EventTimeout)
	defer cancel()
	conn, err := grpc.NewClient("passthrough:///"+w.Registration.GetDataAddress(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	known := metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer client-token")
	if err := conn.Invoke(known, "/millrace.v1.DataService/Nothing", new(millracev1.GetTaskLogsRequest), new(millracev1.GetTaskLogsResponse)); reasonOf(err) != "UNIMPLEMENTED" {
		t.Errorf("an unknown method: %v with %q", err, reasonOf(err))
	}
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, millracev1.DataService_GetTaskLogs_FullMethodName)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.RecvMsg(new(millracev1.GetTaskLogsResponse)); status.Code(err) != codes.Unauthenticated {
		t.Errorf("without a request: %v", err)
	}
}

func TestReflectionOfTheDataPortAsksForTheToken(t *testing.T) {
	w := start(t, workertest.NewScheduler(t), func(c *worker.Config) {
		c.Token, c.Accept = "worker-token", access.Tokens{access.TokenOf("client-token", access.Client)}
	})
	conn, err := grpc.NewClient("passthrough:///"+w.Registration.GetDataAddress(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	// Both versions have the same messages on the wire.
	for _, method := range []string{reflectionpb.ServerReflection_ServerReflectionInfo_FullMethodName, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"} {
		ask := func(token string, request *reflectionpb.ServerReflectionRequest) (*reflectionpb.ServerReflectionResponse, error) {
			ctx, cancel := context.WithTimeout(t.Context(), workertest.EventTimeout)
			defer cancel()
			if token != "" {
				ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
			}
			stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method)
			if err != nil {
				t.Fatal(err)
			}
			if err := stream.SendMsg(request); err != nil && !errors.Is(err, io.EOF) {
				t.Fatal(err)
			}
			answer := new(reflectionpb.ServerReflectionResponse)
			return answer, stream.RecvMsg(answer)
		}
		list := &reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}}
		for _, token := range []string{"", "wrong"} {
			if answer, err := ask(token, list); status.Code(err) != codes.Unauthenticated {
				t.Errorf("%s with token %q: %v, %v", method, token, answer, err)
			}
		}
		const service = "millrace.v1.DataService"
		answer, err := ask("client-token", list)
		if err != nil || !slices.ContainsFunc(answer.GetListServicesResponse().GetService(), func(s *reflectionpb.ServiceResponse) bool { return s.GetName() == service }) {
			t.Errorf("%s: %v, %v", method, answer, err)
		}
		answer, err = ask("client-token", &reflectionpb.ServerReflectionRequest{
			MessageRequest: &reflectionpb.ServerReflectionRequest_FileContainingSymbol{FileContainingSymbol: service},
		})
		if err != nil || len(answer.GetFileDescriptorResponse().GetFileDescriptorProto()) == 0 {
			t.Errorf("%s: the file of %s: %v, %v", method, service, answer, err)
		}
	}
}

func TestZeroWorkerAnswersAtOnce(t *testing.T) {
	w := start(t, workertest.NewScheduler(t), func(c *worker.Config) { c.Zero = true })
	w.Assign(&workerv1.Assignment{TaskId: 1, Attempt: 1, OpId: 1}, &workerv1.Assignment{TaskId: 2, Attempt: 1, OpId: 1})
	w.Report(2, workerv1.TaskOutcome_TASK_OUTCOME_SUCCEEDED)
	if r := w.Report(1); len(r.GetInlineResult()) == 0 {
		t.Errorf("no result: %v", r)
	}
}

// A zero worker says that it leaves, and ends without an error, whether its context or the
// scheduler ends it.
func TestZeroWorkerLeavesProperly(t *testing.T) {
	for name, tell := range map[string]func(*running){
		"by its context":   func(w *running) { w.stop() },
		"by the scheduler": func(w *running) { w.Send(&workerv1.SessionResponse{Leave: &workerv1.Leave{}}) },
	} {
		t.Run(name, func(t *testing.T) {
			w := start(t, workertest.NewScheduler(t), func(c *worker.Config) { c.Zero = true })
			tell(w)
			w.Until("the farewell", func() bool { return w.Leaving })
			if err := <-w.ended; err != nil {
				t.Errorf("ended with %v", err)
			}
		})
	}
}

func TestSizesThatAWorkerCannotManageAreRefused(t *testing.T) {
	for flag, c := range map[string]worker.Config{
		"--memory-limit":        {MemoryLimitBytes: 2 << 40},
		"--pinned-limit":        {PinnedLimitBytes: 2 << 40},
		"--device-memory-limit": {DeviceMemoryLimit: cuda.Size{Bytes: 2 << 40}},
	} {
		c.Name, c.Scheduler = "host-0", "127.0.0.1:1"
		var refused *worker.ConfigError
		if err := worker.Run(t.Context(), c); !errors.As(err, &refused) || !strings.Contains(err.Error(), flag+" 2.0 TiB: a worker manages 1 TiB at most") {
			t.Errorf("%s: %v", flag, err)
		}
	}
}

// TestIPCNeedsAGPU: a worker in host memory would have no path to its peers.
func TestIPCNeedsAGPU(t *testing.T) {
	var refused *worker.ConfigError
	err := worker.Run(t.Context(), worker.Config{Name: "host-0", Scheduler: "127.0.0.1:1", Protocol: worker.ProtocolIPC})
	if !errors.As(err, &refused) || !errors.Is(err, worker.ErrNoIPC) || !strings.Contains(err.Error(), "use --protocol auto") {
		t.Errorf("ended with %v", err)
	}
}

func TestAWorkerThatCannotListenLeavesNothing(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for flag, c := range map[string]worker.Config{
		"--listen":    {Listen: taken.Addr().String()},
		"--advertise": {Advertise: "a:b:c"},
	} {
		t.Run(flag, func(t *testing.T) {
			c.Name, c.Scheduler, c.LocalDirectory, c.MemoryLimitBytes = "host-0", "127.0.0.1:1", t.TempDir(), 1<<20
			c.Exec = map[string][]string{"echo": {"/nonexistent/echo"}}
			c.Log = slog.New(slog.NewTextHandler(testWriter{t}, nil))
			before := goleak.IgnoreCurrent()
			if err := worker.Run(t.Context(), c); err == nil || !strings.Contains(err.Error(), flag) {
				t.Fatalf("ended with %v", err)
			}
			if err := leaktest.Find(before); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestConfigIsChecked(t *testing.T) {
	err := worker.Run(t.Context(), worker.Config{Exec: map[string][]string{"python": {"x"}}, Slots: -1})
	for _, part := range []string{"--name", "--address", "--slots", "--exec"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%v does not mention %s", err, part)
		}
	}
}
