package session

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"net"
	"strings"
	"testing"
	"unicode/utf8"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/worker/tasklog"
)

// bits are the pieces of the test's texts: characters of every length, invalid bytes, and parts of
// characters.
var bits = []string{"a", "\n", "é", "█", "😀", "\xff", "\xe9", "\xe2\x96", "\x96\x88", "\xf0\x9f", "\xed\xa0\x80", "\x00", "\x1b[31m"}

func noise(r *rand.Rand) string {
	var b strings.Builder
	for size := 1 << r.IntN(18); b.Len() < size; {
		b.WriteString(strings.Repeat(bits[r.IntN(len(bits))], 1+r.IntN(1<<r.IntN(12))))
	}
	return b.String()
}

// A message with any text of a program, cut at any byte, in any field of a report, can be sent and
// is small.
func TestEveryTextCanBeSent(t *testing.T) {
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 1))
		var logs tasklog.Logs
		o := NewOutbox()
		for task := range uint64(20) {
			for range 1 + r.IntN(3) {
				logs.Write(tasklog.Source{Task: ids.TaskID(task), Attempt: 1}, false, []byte(noise(r)))
			}
			if text, _ := logs.Read(ids.TaskID(task)); !utf8.ValidString(text) {
				t.Fatalf("seed %d: a log is not UTF-8", seed)
			}
			o.Task(&workerv1.TaskReport{
				TaskId: task, Attempt: 1, Outcome: workerv1.TaskOutcome_TASK_OUTCOME_FAILED, LogTail: noise(r),
				Error: &millracev1.TaskError{
					Reason: noise(r), Message: noise(r), OriginKey: noise(r), Worker: noise(r), Traceback: noise(r), LogTail: logs.Tail(ids.TaskID(task), 1),
					Exception: &millracev1.Opaque{Encoding: noise(r), Data: []byte(noise(r))}, Metadata: map[string]string{noise(r): noise(r), "b": noise(r)},
				},
			})
		}
		o.Stats(&workerv1.WorkerStats{
			LastExecutorDeath: noise(r), SpillFailure: noise(r), Routes: []*millracev1.Route{{Reason: noise(r)}},
		})
		o.Rescue(&workerv1.RescueReport{Reason: noise(r), Failed: make([]*workerv1.Replica, 10)})
		for m := o.Take(); m != nil; m = o.Take() {
			if b, err := proto.Marshal(m); err != nil || len(b) > 2*maxReportBytes {
				t.Fatalf("seed %d: a message of %d bytes: %v", seed, len(b), err)
			}
			for _, r := range m.GetTasks() {
				if e := r.GetError(); len(e.GetMessage()) > messageBytes || len(e.GetTraceback()) > tracebackBytes || len(e.GetLogTail()) > tasklog.TailBytes {
					t.Errorf("seed %d: texts of %d, %d and %d bytes", seed, len(e.GetMessage()), len(e.GetTraceback()), len(e.GetLogTail()))
				}
			}
			o.Sent()
		}
	}
}

// However much is queued, no message is too large, and everything is sent in order.
func TestMessagesOfManyKindsAreBounded(t *testing.T) {
	o := NewOutbox()
	const objects, functions, failed = 300_000, 100_000, 500_000
	for i := range uint64(objects) {
		event := workerv1.ObjectEvent_OBJECT_EVENT_GAINED
		if i%2 == 0 {
			event = workerv1.ObjectEvent_OBJECT_EVENT_LOST
		}
		o.Object(&workerv1.ObjectReport{Replica: &workerv1.Replica{TaskId: i + 1, Generation: 1}, Event: event})
	}
	for range functions {
		o.Missing(make([]byte, 32))
	}
	o.Rescue(&workerv1.RescueReport{WorkerId: 1, Reason: "no room", Failed: make([]*workerv1.Replica, failed)})
	o.Leave()
	next, hashes, lost := uint64(1), 0, 0
	for m := o.Take(); m != nil; m = o.Take() {
		if n := proto.Size(m); n > 2*maxReportBytes {
			t.Errorf("a message of %d bytes", n)
		}
		for _, x := range m.GetObjects() {
			if x.GetReplica().GetTaskId() != next {
				t.Fatalf("object %d comes where %d is next", x.GetReplica().GetTaskId(), next)
			}
			next++
		}
		hashes += len(m.GetMissingFunctions())
		for _, x := range m.GetRescues() {
			lost += len(x.GetFailed())
		}
		o.Sent()
	}
	if next != objects+1 || hashes != functions || lost != failed {
		t.Errorf("said were %d objects, %d functions and %d failed copies", next-1, hashes, lost)
	}
}

// refusing receives the messages of a session until the client ends it.
type refusing struct {
	workerv1.UnimplementedWorkerServiceServer
	heard chan *workerv1.SessionRequest
}

func (r refusing) Session(stream grpc.BidiStreamingServer[workerv1.SessionRequest, workerv1.SessionResponse]) error {
	for {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		r.heard <- m
	}
}

// A report that the stream refuses is not sent again: it is removed, and its attempt is reported
// with a reason.
func TestReportsThatCannotBeSentAreRemoved(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server, heard := grpc.NewServer(grpc.MaxRecvMsgSize(MaxMessageBytes)), make(chan *workerv1.SessionRequest, 10)
	workerv1.RegisterWorkerServiceServer(server, refusing{heard: heard})
	go func() { _ = server.Serve(listener) }() // until Stop
	t.Cleanup(server.Stop)
	conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() }) // no call is active
	for name, bad := range map[string]func(*Outbox){
		"invalid text": func(o *Outbox) {
			o.tasks = append(o.tasks, &workerv1.TaskReport{
				TaskId: 1, Attempt: 2, Outcome: workerv1.TaskOutcome_TASK_OUTCOME_FAILED, Error: &millracev1.TaskError{Reason: "X", Message: "\xff"},
			})
		},
		"too long": func(o *Outbox) {
			o.tasks = append(o.tasks, &workerv1.TaskReport{
				TaskId: 1, Attempt: 2, Outcome: workerv1.TaskOutcome_TASK_OUTCOME_FAILED, Error: &millracev1.TaskError{Reason: "X", Message: strings.Repeat("x", 80<<20)},
			})
		},
		"everything else": func(o *Outbox) {
			o.beat = &workerv1.WorkerStats{LastExecutorDeath: "\xff"}
			o.rescues = append(o.rescues, &workerv1.RescueReport{WorkerId: 3, Reason: "\xff"})
			o.objects = append(o.objects, &workerv1.ObjectReport{Replica: &workerv1.Replica{TaskId: 9, Generation: 1}, InlineResult: make([]byte, 80<<20)})
			o.tasks = append(o.tasks, &workerv1.TaskReport{
				TaskId: 1, Attempt: 2, Outcome: workerv1.TaskOutcome_TASK_OUTCOME_SUCCEEDED, InlineResult: []byte{8, 0}, LogTail: "\xff",
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := New(Config{Outbox: NewOutbox(), Log: slog.New(slog.DiscardHandler)})
			o := s.config.Outbox
			o.Task(report(7, 10, workerv1.TaskOutcome_TASK_OUTCOME_SUCCEEDED))
			o.mu.Lock()
			bad(o)
			o.mu.Unlock()
			var tasks []*workerv1.TaskReport
			for sessions := 0; len(tasks) < 2; sessions++ {
				if sessions == 3 {
					t.Fatalf("it was sent again; heard of %v", tasks)
				}
				ctx, cancel := context.WithCancel(t.Context())
				stream, err := workerv1.NewWorkerServiceClient(conn).Session(ctx, grpc.MaxCallSendMsgSize(MaxMessageBytes))
				if err != nil {
					t.Fatal(err)
				}
				o.Reopen(nil)
				sent := make(chan error, 1)
				go func() { sent <- s.send(ctx, stream) }()
				select {
				case m := <-heard:
					tasks = append(tasks, m.GetTasks()...)
				case err := <-sent:
					if err != nil {
						t.Error(err)
					}
				}
				cancel()
			}
			for _, r := range tasks {
				failed := r.GetOutcome() == workerv1.TaskOutcome_TASK_OUTCOME_FAILED
				if r.GetTaskId() == 1 && name != "everything else" && (!failed || r.GetError().GetReason() != "REPORT_NOT_SENDABLE" || r.GetError().GetMessage() == "") ||
					r.GetTaskId() == 7 && len(r.GetInlineResult()) != 10 {
					t.Errorf("heard %v", r)
				}
			}
		})
	}
}

// A worker that holds millions of objects registers with several messages, each within the limit.
func TestRegistrationsOfManyObjectsGoInPieces(t *testing.T) {
	const objects = 2*maxRegistered + 5
	whole := &workerv1.Registration{Name: "host-0", Incarnation: "1", Slots: 3, Life: 7}
	replica := &workerv1.Replica{TaskId: 1 << 60, Generation: 1 << 31, Bytes: 1 << 40}
	for range objects {
		whole.Inventory = append(whole.Inventory, replica)
	}
	whole.Running = []*workerv1.AttemptRef{{TaskId: 1, Attempt: 1}}
	all := pieces(whole)
	n := 0
	for i, p := range all {
		if size := proto.Size(p); size > MaxMessageBytes/2 || p.GetName() != "host-0" || p.GetSlots() != 3 || p.GetLife() != 7 || p.GetMore() != (i < len(all)-1) || len(p.GetRunning()) > 0 != (i == 0) {
			t.Errorf("piece %d of %d has %d bytes, more %v", i, len(all), size, p.GetMore())
		}
		n += len(p.GetInventory())
	}
	if n != objects || len(all) != 3 {
		t.Errorf("%d objects in %d pieces", n, len(all))
	}
	if one := pieces(&workerv1.Registration{Name: "host-0"}); len(one) != 1 || one[0].GetMore() {
		t.Errorf("got %v", one)
	}
}
