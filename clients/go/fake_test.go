package millrace

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/rawframe"
)

// fakeCluster is a scheduler and a worker in one. It accepts every task and ends it immediately,
// depending on the name of the op: "bench.noop" returns null, "echo" its first argument,
// "fail" fails, and "never" does not end. Tasks of op "far" have an array of 3 float64 values that
// must be fetched.
type fakeCluster struct {
	// list, if set, gets a value when ListWorkers is called, and another one before its answer.
	list chan struct{}
	// answers is how many items the answers to LocateObjects and HoldTasks have more than they
	// should; guarded by mu.
	answers int
	// parts are the parts of objects that were requested. missPart is a part that is missing at the
	// next request, 0: none. Both are guarded by mu.
	parts    []uint32
	missPart uint32

	millracev1.UnimplementedSchedulerServiceServer
	millracev1.UnimplementedDataServiceServer
	millracev1.UnimplementedCoordinationServiceServer

	listener *bufconn.Listener

	mu       sync.Mutex
	nextTask uint64
	keys     map[string]uint64
	batches  []int    // the number of tasks of each submission
	spans    []string // the graph and the headers traceparent of each submission
	requests map[string]bool
	released []uint64
	revision uint64
	queue    []*millracev1.TaskUpdate
	bell     chan struct{}
	objects  map[uint64]*fakeObject
	watches  int
	// gate, if set, blocks the answer to each SubmitBatch until a value is received from it.
	gate chan struct{}
	// dropSubmits makes that many submissions fail with UNAVAILABLE after they were applied.
	dropSubmits int
	// refuseReleases makes that many calls of ReleaseTasks fail with UNAVAILABLE. releases, if set,
	// gets the tasks of each call that succeeds.
	refuseReleases int
	releases       chan []uint64
	// locates are the numbers of tasks in the calls of LocateObjects. unreachable adds a worker
	// that cannot be reached in front of the holders of each object.
	locates     []int
	unreachable bool
	breakWatch  chan struct{}
	inParts     bool // each batch is a snapshot with one task per message, sent when the test requests it
	// full makes that many submissions fail with SCHEDULER_FULL.
	full int
	// worker is the number of the only worker, 1 if 0. loseWrites makes the worker die that many
	// times after it has received an object and before it reports the object.
	// Another worker with the next number replaces it.
	worker, loseWrites uint32
	// hasWrites makes the worker have the object of that many writes already, as one that was told
	// to drop it and has not done so yet.
	hasWrites uint32
	writes    int
}

type fakeObject struct {
	head   *millracev1.ObjectHead
	frames [][]byte
}

func newFake(tb testing.TB) *fakeCluster {
	tb.Helper()
	f := &fakeCluster{
		listener:   bufconn.Listen(1 << 20),
		keys:       make(map[string]uint64),
		requests:   make(map[string]bool),
		bell:       make(chan struct{}, 1),
		objects:    make(map[uint64]*fakeObject),
		breakWatch: make(chan struct{}),
	}
	server := grpc.NewServer(append(rawframe.ServerOptions(), grpc.MaxRecvMsgSize(64<<20))...)
	millracev1.RegisterSchedulerServiceServer(server, f)
	millracev1.RegisterDataServiceServer(server, f)
	millracev1.RegisterCoordinationServiceServer(server, f)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := server.Serve(f.listener); err != nil {
			tb.Errorf("serve: %v", err)
		}
	}()
	tb.Cleanup(func() {
		server.Stop()
		<-done
	})
	return f
}

func (f *fakeCluster) dial(tb testing.TB, options ...Option) *Client {
	tb.Helper()
	dialer := grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return f.listener.DialContext(ctx) })
	c, err := Dial(tb.Context(), append([]Option{WithAddress("fake:1"), WithDialOptions(dialer)}, options...)...)
	if err != nil {
		tb.Fatal(err)
	}
	for part := range maxParts {
		conn, err := grpc.NewClient("passthrough:///fake", append(rawframe.DialOptions(), dialer, insecureOption())...)
		if err != nil {
			tb.Fatal(err)
		}
		c.data.conns[connKey{"fake", part}] = conn
	}
	tb.Cleanup(func() {
		if err := c.Close(); err != nil {
			tb.Errorf("close: %v", err)
		}
	})
	return c
}

func (f *fakeCluster) OpenClient(context.Context, *millracev1.OpenClientRequest) (*millracev1.OpenClientResponse, error) {
	return &millracev1.OpenClientResponse{Client: &millracev1.Client{ClientId: 7_000_000_007}, Cluster: &millracev1.ClusterInfo{}}, nil
}

func (f *fakeCluster) CloseClient(context.Context, *millracev1.CloseClientRequest) (*millracev1.CloseClientResponse, error) {
	return &millracev1.CloseClientResponse{}, nil
}

// GetEvent answers that the event is set, after the longest wait.
func (f *fakeCluster) GetEvent(ctx context.Context, in *millracev1.GetEventRequest) (*millracev1.GetEventResponse, error) {
	select {
	case <-time.After(in.GetWait().AsDuration()):
		return &millracev1.GetEventResponse{Set: true}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func refuse(reason, message string) error { return refuseAs(codes.InvalidArgument, reason, message) }

func refuseAs(code codes.Code, reason, message string) error {
	s, err := status.New(code, message).WithDetails(&errdetails.ErrorInfo{Reason: reason, Domain: errorDomain})
	if err != nil {
		return err
	}
	return s.Err()
}

func (f *fakeCluster) SubmitBatch(ctx context.Context, in *millracev1.SubmitRequest) (*millracev1.SubmitResponse, error) {
	f.mu.Lock()
	f.spans = append(f.spans, fmt.Sprintf("%d %v", in.GetHeader().GetGraphId(), metadata.ValueFromIncomingContext(ctx, traceHeader)))
	f.mu.Unlock()
	if f.gate != nil {
		<-f.gate
	}
	f.mu.Lock()
	full := f.full > 0
	f.full--
	f.mu.Unlock()
	if full {
		return nil, refuseAs(codes.ResourceExhausted, "SCHEDULER_FULL", "no memory for more tasks")
	}
	return f.apply(in)
}

func (f *fakeCluster) apply(in *millracev1.SubmitRequest) (*millracev1.SubmitResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, spec := range in.GetTasks() {
		if op := in.GetOps()[spec.GetOpIndex()]; op.GetName() == "no.such.op" {
			return nil, refuse("UNKNOWN_OP", fmt.Sprintf("task %q: unknown op %q", spec.GetKey(), op.GetName()))
		}
		for _, input := range spec.GetInputs() {
			if _, ok := f.keys[input]; !ok && !submits(in, input) {
				return nil, refuse("UNKNOWN_INPUT", fmt.Sprintf("task %q: unknown input %q", spec.GetKey(), input))
			}
		}
	}
	again := f.requests[in.GetHeader().GetRequestId()]
	f.requests[in.GetHeader().GetRequestId()] = true
	if !again {
		f.batches = append(f.batches, len(in.GetTasks()))
	}
	out := &millracev1.SubmitResponse{GraphId: 1}
	for _, spec := range in.GetTasks() {
		id, known := f.keys[spec.GetKey()]
		if !known {
			f.nextTask++
			id = f.nextTask
			f.keys[spec.GetKey()] = id
			if u := f.run(id, in.GetOps()[spec.GetOpIndex()].GetName(), spec); u != nil && spec.GetHold() {
				f.queue = append(f.queue, u)
			}
		}
		out.TaskIds = append(out.TaskIds, id)
	}
	f.ring()
	if f.dropSubmits > 0 {
		f.dropSubmits--
		return nil, status.Error(codes.Unavailable, "the answer was lost")
	}
	return out, nil
}

func submits(in *millracev1.SubmitRequest, key string) bool {
	for _, spec := range in.GetTasks() {
		if spec.GetKey() == key {
			return true
		}
	}
	return false
}

func (f *fakeCluster) run(id uint64, op string, spec *millracev1.TaskSpec) *millracev1.TaskUpdate {
	u := &millracev1.TaskUpdate{TaskId: id, State: Succeeded, Generation: 1}
	switch op {
	case "bench.noop":
		u.InlineResult = []byte{8, 0}
	case "echo":
		var args millracev1.Arguments
		if err := proto.Unmarshal(spec.GetPackedArguments(), &args); err != nil {
			panic(err)
		}
		b, err := proto.Marshal(args.GetPositional()[0])
		if err != nil {
			panic(err)
		}
		u.InlineResult = b
	case "fail":
		u.State = Failed
		u.Error = &millracev1.TaskError{
			Reason: "PYTHON_EXCEPTION", Message: "ValueError: no", OriginKey: spec.GetKey(), Worker: "host-0", Traceback: "Traceback\n  here\n",
		}
	case "never", "data":
		return nil
	case "far":
		a, err := FromSlice([]float64{1, 2, 3})
		if err != nil {
			panic(err)
		}
		header, err := proto.Marshal(&millracev1.Value{Kind: &millracev1.Value_TensorValue{TensorValue: &millracev1.Tensor{
			Dtype: millracev1.DType_DTYPE_FLOAT64, Shape: []int64{3}, Location: &millracev1.Tensor_Frame{Frame: 0},
		}}})
		if err != nil {
			panic(err)
		}
		f.objects[id] = &fakeObject{head: &millracev1.ObjectHead{Object: &millracev1.ObjectRef{TaskId: id}, Header: header, FrameBytes: []uint64{24}}, frames: [][]byte{a.Data}}
		u.OutputBytes, u.WorkerId = 24, 1
	}
	return u
}

func (f *fakeCluster) Submit(stream grpc.ClientStreamingServer[millracev1.SubmitRequest, millracev1.SubmitResponse]) error {
	whole := &millracev1.SubmitRequest{}
	for {
		in, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if in.GetHeader() != nil {
			whole.Header = in.GetHeader()
		}
		whole.Ops = append(whole.Ops, in.GetOps()...)
		whole.Options = append(whole.Options, in.GetOptions()...)
		whole.Tasks = append(whole.Tasks, in.GetTasks()...)
	}
	out, err := f.apply(whole)
	if err != nil {
		return err
	}
	return stream.SendAndClose(&millracev1.SubmitResponse{GraphId: out.GetGraphId(), TaskIds: out.GetTaskIds()})
}

func (f *fakeCluster) ring() {
	if f.inParts {
		return
	}
	f.notify()
}

func (f *fakeCluster) notify() {
	select {
	case f.bell <- struct{}{}:
	default:
	}
}

func (f *fakeCluster) Watch(_ *millracev1.WatchRequest, stream grpc.ServerStreamingServer[millracev1.WatchResponse]) error {
	f.mu.Lock()
	f.watches++
	broken := f.breakWatch
	f.mu.Unlock()
	for {
		select {
		case <-stream.Context().Done():
			return nil
		case <-broken:
			return status.Error(codes.Unavailable, "broken")
		case <-f.bell:
		}
		f.mu.Lock()
		f.revision++
		out := &millracev1.WatchResponse{Revision: f.revision, Tasks: f.queue}
		f.queue = nil
		f.mu.Unlock()
		if len(out.GetTasks()) == 0 {
			continue
		}
		for f.inParts && len(out.GetTasks()) > 1 {
			if err := stream.Send(&millracev1.WatchResponse{Revision: out.GetRevision(), Snapshot: true, More: true, Tasks: out.GetTasks()[:1]}); err != nil {
				return err
			}
			out.Tasks = out.GetTasks()[1:]
		}
		out.Snapshot = f.inParts
		if err := stream.Send(out); err != nil {
			return err
		}
	}
}

func (f *fakeCluster) ReleaseTasks(_ context.Context, in *millracev1.ReleaseTasksRequest) (*millracev1.ReleaseTasksResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.refuseReleases > 0 {
		f.refuseReleases--
		return nil, status.Error(codes.Unavailable, "away")
	}
	f.released = append(f.released, in.GetTasks().GetIds()...)
	if f.releases != nil {
		f.releases <- in.GetTasks().GetIds()
	}
	return &millracev1.ReleaseTasksResponse{}, nil
}

func (f *fakeCluster) ListWorkers(context.Context, *millracev1.ListWorkersRequest) (*millracev1.ListWorkersResponse, error) {
	if f.list != nil {
		f.list <- struct{}{}
		f.list <- struct{}{}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return &millracev1.ListWorkersResponse{Workers: []*millracev1.Worker{{WorkerId: max(f.worker, 1), Name: "host-0", State: millracev1.WorkerState_WORKER_STATE_ACTIVE, DataAddress: "fake"}}}, nil
}

func (f *fakeCluster) LocateObjects(_ context.Context, in *millracev1.LocateObjectsRequest) (*millracev1.LocateObjectsResponse, error) {
	out := &millracev1.LocateObjectsResponse{Workers: []*millracev1.WorkerAddress{{WorkerId: 1, DataAddress: "fake"}}}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.locates = append(f.locates, len(in.GetTaskIds()))
	if f.unreachable {
		out.Workers = append(out.Workers, &millracev1.WorkerAddress{WorkerId: 2, DataAddress: "127.0.0.1:1"})
	}
	for _, id := range in.GetTaskIds() {
		at := &millracev1.ObjectLocation{TaskId: id, WorkerIds: []uint32{1}}
		if f.unreachable {
			at.WorkerIds = []uint32{2, 1}
		}
		if o := f.objects[id]; o != nil {
			for _, n := range o.head.GetFrameBytes() {
				at.Bytes += n
			}
		}
		out.Objects = append(out.Objects, at)
	}
	for range f.answers {
		out.Objects = append(out.Objects, &millracev1.ObjectLocation{})
	}
	out.Objects = out.GetObjects()[:len(in.GetTaskIds())+f.answers]
	return out, nil
}

func (f *fakeCluster) HoldTasks(_ context.Context, in *millracev1.HoldTasksRequest) (*millracev1.HoldTasksResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return &millracev1.HoldTasksResponse{TaskIds: make([]uint64, len(in.GetTasks().GetKeys())+f.answers)}, nil
}

func (f *fakeCluster) ReadObjects(in *millracev1.ReadObjectsRequest, stream grpc.ServerStreamingServer[millracev1.ReadObjectsResponse]) error {
	for i, ref := range in.GetObjects() {
		f.mu.Lock()
		o := f.objects[ref.GetTaskId()]
		if f.missPart != 0 && in.GetPart() == f.missPart {
			f.missPart, o = 0, nil
		}
		f.mu.Unlock()
		var out []*millracev1.ReadObjectsResponse
		if o == nil {
			out = append(out, &millracev1.ReadObjectsResponse{Index: uint32(i), Error: &millracev1.TaskError{Reason: "OBJECT_NOT_HERE"}})
		} else {
			out = append(out, &millracev1.ReadObjectsResponse{Index: uint32(i), Head: o.head})
			f.mu.Lock()
			f.parts = append(f.parts, in.GetPart())
			f.mu.Unlock()
			for n, frame := range o.frames {
				begin, end := 0, len(frame)
				if parts := int(in.GetParts()); parts > 1 {
					share := (len(frame) + parts - 1) / parts
					begin = min(int(in.GetPart())*share, len(frame))
					end = min(begin+share, len(frame))
				}
				frame = frame[:end]
				for at := begin; at < end; at += 1000 {
					out = append(out, &millracev1.ReadObjectsResponse{Index: uint32(i), Frame: uint32(n), Offset: uint64(at), Data: frame[at:min(at+1000, len(frame))]})
				}
			}
		}
		for _, m := range out {
			if err := stream.Send(m); err != nil {
				return err
			}
		}
	}
	return nil
}

func (f *fakeCluster) WriteObject(stream grpc.ClientStreamingServer[millracev1.WriteObjectRequest, millracev1.WriteObjectResponse]) error {
	var o fakeObject
	for {
		in, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if in.GetHead() != nil {
			o.head = in.GetHead()
			for _, n := range o.head.GetFrameBytes() {
				o.frames = append(o.frames, make([]byte, n))
			}
		}
		if len(in.GetData()) > 0 {
			copy(o.frames[in.GetFrame()][in.GetOffset():], in.GetData())
		}
	}
	f.mu.Lock()
	f.writes++
	if f.loseWrites > 0 {
		f.loseWrites--
		f.worker = max(f.worker, 1) + 1
		f.mu.Unlock()
		return stream.SendAndClose(&millracev1.WriteObjectResponse{})
	}
	if f.hasWrites > 0 {
		f.hasWrites--
		f.mu.Unlock()
		return status.Error(codes.AlreadyExists, "it is here already")
	}
	f.objects[o.head.GetObject().GetTaskId()] = &o
	f.queue = append(f.queue, &millracev1.TaskUpdate{TaskId: o.head.GetObject().GetTaskId(), State: Succeeded, OutputBytes: 1, WorkerId: 1})
	f.mu.Unlock()
	f.ring()
	return stream.SendAndClose(&millracev1.WriteObjectResponse{})
}
