package server_test

import (
	"context"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/millrace/millrace/gen/go/millrace/v1"
	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/server"
)

// cluster is a scheduler on loopback, with connections to it.
type cluster struct {
	t       testing.TB
	server  *server.Server
	client  pb.SchedulerServiceClient
	workers workerv1.WorkerServiceClient
	conn    *grpc.ClientConn
	// lease is the time to live of the leases of clients; nil: the default.
	lease   *durationpb.Duration
	stop    context.CancelFunc
	stopped chan error
}

func start(tb testing.TB, config server.Config, options ...grpc.DialOption) *cluster {
	tb.Helper()
	var lease *durationpb.Duration
	if config.Listener == nil {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			tb.Fatal(err)
		}
		config.Listener = listener
		// In real time, a process that stands still for a moment must not lose its workers and
		// clients, which send nothing unasked.
		config.WorkerLease, config.ReconnectGrace = testTimeout, testTimeout
		lease = durationpb.New(testTimeout)
	}
	s, err := server.New(config)
	if err != nil {
		tb.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	c := &cluster{t: tb, server: s, lease: lease, stop: cancel, stopped: make(chan error, 1)}
	go func() { c.stopped <- s.Run(ctx) }()
	c.conn = dial(tb, s.Address(), options...)
	c.client, c.workers = pb.NewSchedulerServiceClient(c.conn), workerv1.NewWorkerServiceClient(c.conn)
	tb.Cleanup(func() {
		c.conn.Close()
		cancel()
		if err := <-c.stopped; err != nil {
			tb.Errorf("Run: %v", err)
		}
	})
	return c
}

func dial(tb testing.TB, address string, options ...grpc.DialOption) *grpc.ClientConn {
	tb.Helper()
	conn, err := grpc.NewClient("passthrough:///"+address, append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20), grpc.MaxCallSendMsgSize(128<<20)),
		grpc.WithInitialWindowSize(4 << 20), grpc.WithInitialConnWindowSize(16 << 20),
		grpc.WithReadBufferSize(256 << 10), grpc.WithWriteBufferSize(256 << 10),
	}, options...)...)
	if err != nil {
		tb.Fatal(err)
	}
	return conn
}

// zero is a worker without costs: it answers every assignment at once with the report that answer
// makes.
type zero struct {
	t           testing.TB
	stream      grpc.BidiStreamingClient[workerv1.SessionRequest, workerv1.SessionResponse]
	id          uint32
	registered  *workerv1.Registered
	incarnation string
	mine        *workerv1.Registration
	cancel      context.CancelFunc
	// first is the first message.
	first *workerv1.SessionResponse
	// done is closed when the session has ended; last is its last message then.
	done chan struct{}
	last *workerv1.SessionResponse
	// answer makes the report of an assignment; nil: no report.
	answer func(*workerv1.Assignment) *workerv1.TaskReport
	// seen gets every message but the first, unless it is nil.
	seen chan *workerv1.SessionResponse
}

// succeed returns the report of a task that succeeded.
func succeed(a *workerv1.Assignment) *workerv1.TaskReport {
	return &workerv1.TaskReport{TaskId: a.TaskId, Attempt: a.Attempt, Outcome: workerv1.TaskOutcome_TASK_OUTCOME_SUCCEEDED, RunNanos: 1000, InlineResult: noResult}
}

// noResult is a serialized null value.
var noResult, _ = proto.Marshal(&pb.Value{Kind: &pb.Value_NullValue{}})

func never(*workerv1.Assignment) *workerv1.TaskReport { return nil }

func registration(name string) *workerv1.Registration {
	return &workerv1.Registration{
		Name: name, Incarnation: uuid.NewString(), Host: "testhost", Pid: 4711, DataAddress: "127.0.0.1:1", Slots: 1,
		MemoryLimitBytes: 1 << 30, Executors: []string{"native", "python"}, NativeOps: []string{"bench.noop", "array.sum", "array.matmul"},
	}
}

// join starts a worker and returns once it is registered.
func (c *cluster) join(conn grpc.ClientConnInterface, r *workerv1.Registration, answer func(*workerv1.Assignment) *workerv1.TaskReport) *zero {
	c.t.Helper()
	return c.joinSeen(conn, r, answer, nil)
}

// joinSeen is join for a worker whose messages are also sent to seen, unless that is nil.
func (c *cluster) joinSeen(conn grpc.ClientConnInterface, r *workerv1.Registration, answer func(*workerv1.Assignment) *workerv1.TaskReport, seen chan *workerv1.SessionResponse) *zero {
	c.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	stream, err := workerv1.NewWorkerServiceClient(conn).Session(ctx)
	if err != nil {
		c.t.Fatal(err)
	}
	w := &zero{t: c.t, stream: stream, incarnation: r.Incarnation, mine: r, cancel: cancel, answer: answer, seen: seen, done: make(chan struct{})}
	if err := stream.Send(&workerv1.SessionRequest{Register: r}); err != nil {
		c.t.Fatal(err)
	}
	first, err := stream.Recv()
	if err != nil {
		c.t.Fatal(err)
	}
	w.first, w.last = first, first
	w.registered = first.GetRegistered()
	w.id = w.registered.GetWorkerId()
	if w.id == 0 {
		cancel()
		close(w.done)
		return w
	}
	go w.run()
	c.t.Cleanup(w.leave)
	return w
}

func (w *zero) leave() {
	w.cancel()
	<-w.done
}

func (w *zero) run() {
	defer close(w.done)
	// The first message may have assignments beside the registration.
	for message := w.last; w.react(message); {
		var err error
		if message, err = w.stream.Recv(); err != nil {
			return
		}
		w.last = message
		if w.seen != nil {
			w.seen <- message
		}
	}
}

// react does what a message orders, and reports whether the session goes on.
func (w *zero) react(message *workerv1.SessionResponse) bool {
	request := &workerv1.SessionRequest{}
	for _, a := range message.GetAssignments() {
		if report := w.answer(a); report != nil {
			request.Tasks = append(request.Tasks, report)
		}
	}
	for _, r := range message.GetRetractions() {
		request.Tasks = append(request.Tasks, &workerv1.TaskReport{TaskId: r.TaskId, Attempt: r.Attempt, Outcome: workerv1.TaskOutcome_TASK_OUTCOME_RETRACTED})
	}
	for _, r := range message.GetCancellations() {
		request.Tasks = append(request.Tasks, &workerv1.TaskReport{TaskId: r.TaskId, Attempt: r.Attempt, Outcome: workerv1.TaskOutcome_TASK_OUTCOME_CANCELLED})
	}
	for _, r := range message.GetKeeps() {
		request.Objects = append(request.Objects, &workerv1.ObjectReport{Replica: r, Event: workerv1.ObjectEvent_OBJECT_EVENT_KEPT})
	}
	return len(request.Tasks)+len(request.Objects) == 0 || w.stream.Send(request) == nil
}

// testTimeout is the longest time that a test in real time waits for an event.
const testTimeout = 5 * time.Minute

func timeout(tb testing.TB) context.Context {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	tb.Cleanup(cancel)
	return ctx
}

// noops returns n held tasks named prefix-0 and so on.
func noops(prefix string, n int) []*pb.TaskSpec {
	tasks := make([]*pb.TaskSpec, n)
	for i := range tasks {
		tasks[i] = &pb.TaskSpec{Key: fmt.Sprintf("%s-%d", prefix, i), Op: "bench.noop", Hold: true}
	}
	return tasks
}

func (c *cluster) open(ctx context.Context) uint64 {
	c.t.Helper()
	opened, err := c.client.OpenClient(ctx, &pb.OpenClientRequest{Name: "test", ApiVersion: "v1.0", LeaseTtl: c.lease})
	if err != nil {
		c.t.Fatal(err)
	}
	return opened.GetClient().GetClientId()
}

func (c *cluster) watch(ctx context.Context, r *pb.WatchRequest) grpc.ServerStreamingClient[pb.WatchResponse] {
	c.t.Helper()
	stream, err := c.client.Watch(ctx, r)
	if err != nil {
		c.t.Fatal(err)
	}
	return stream
}

// final reads a watch until every task has ended, and returns the last update of each.
func (c *cluster) final(stream grpc.ServerStreamingClient[pb.WatchResponse], tasks []uint64) map[uint64]*pb.TaskUpdate {
	c.t.Helper()
	missing := map[uint64]bool{}
	for _, id := range tasks {
		missing[id] = true
	}
	last := map[uint64]*pb.TaskUpdate{}
	for len(missing) > 0 {
		message, err := stream.Recv()
		if err != nil {
			c.t.Fatalf("watch: %v with %d of %d tasks missing", err, len(missing), len(tasks))
		}
		for _, update := range message.GetTasks() {
			last[update.TaskId] = update
			if update.State >= pb.TaskState_TASK_STATE_SUCCEEDED {
				delete(missing, update.TaskId)
			} else if _, ours := last[update.TaskId]; ours {
				missing[update.TaskId] = true
			}
		}
	}
	return last
}
