package worker_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/internal/rawframe"
	"github.com/millrace/millrace/worker"
	"github.com/millrace/millrace/worker/workertest"
)

func cpu() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkNoop measures tiny tasks in batches. The scheduler that sends the assignments and
// receives the reports runs in the same process.
func BenchmarkNoop(b *testing.B) {
	for _, zero := range []bool{true, false} {
		name := map[bool]string{true: "zero", false: "native"}[zero]
		b.Run(name, func(b *testing.B) {
			s := workertest.NewScheduler(b)
			ctx, cancel := context.WithCancel(context.Background())
			ended := make(chan error, 1)
			go func() {
				ended <- worker.Run(ctx, worker.Config{
					Name: "host-0", Scheduler: s.Address, Slots: 1, BLASLibrary: "none", PythonCommand: []string{""}, Zero: zero, Log: slog.New(slog.DiscardHandler),
				})
			}()
			session := s.Accept(b)
			session.Op(1, native, "bench.noop")
			const batch = 1000
			next, reported := uint64(0), 0
			b.ReportAllocs()
			begin := cpu()
			for b.Loop() {
				m := &workerv1.SessionResponse{}
				for range batch {
					next++
					m.Assignments = append(m.Assignments, &workerv1.Assignment{TaskId: next, Attempt: 1, OpId: 1, Rank: next, Key: "bench-key"})
				}
				session.Send(m)
				// At most two batches are in flight at any time.
				session.Until("reports", func() bool {
					reported += len(session.Tasks)
					session.Tasks = session.Tasks[:0]
					return int(next)-reported <= batch
				})
			}
			session.Until("the rest", func() bool {
				reported += len(session.Tasks)
				session.Tasks = session.Tasks[:0]
				return reported >= int(next)
			})
			b.ReportMetric(float64((cpu()-begin).Nanoseconds())/float64(next), "cpu-ns/task")
			cancel()
			if err := <-ended; err != nil {
				b.Error(err)
			}
		})
	}
}

// BenchmarkObject writes an object of 256 MiB as a client does and reads it back, over loopback,
// with client and worker in this process.
func BenchmarkObject(b *testing.B) {
	const size = 256 << 20
	s := workertest.NewScheduler(b)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- worker.Run(ctx, worker.Config{
			Name: "host-0", Scheduler: s.Address, Slots: 1, BLASLibrary: "none", PythonCommand: []string{""}, MemoryLimitBytes: 1 << 30, Log: slog.New(slog.DiscardHandler),
		})
	}()
	session := s.Accept(b)
	conn, err := grpc.NewClient("passthrough:///"+session.Registration.GetDataAddress(), append(rawframe.DialOptions(), grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		b.Fatal(err)
	}
	client := millracev1.NewDataServiceClient(conn)
	content := make([]byte, size)
	back := make([]byte, size)
	task := uint64(0)
	header, err := proto.Marshal(bytesTensor(size))
	if err != nil {
		b.Fatal(err)
	}
	var writing, reading, writingCPU, readingCPU time.Duration
	b.SetBytes(2 * size)
	b.ReportAllocs()
	for b.Loop() {
		task++
		begin, beginCPU := time.Now(), cpu()
		stream, err := client.WriteObject(ctx)
		if err != nil {
			b.Fatal(err)
		}
		var sent rawframe.Outgoing
		m := &rawframe.WriteRequest{Message: rawframe.Message{Head: &millracev1.ObjectHead{
			Object: &millracev1.ObjectRef{TaskId: task, Generation: 1}, Header: header, FrameBytes: []uint64{size},
		}}}
		for off := 0; off < size; off += rawframe.ChunkBytes {
			m.Offset, m.Data = uint64(off), sent.Payload(content[off:off+rawframe.ChunkBytes])
			if err := stream.SendMsg(m); err != nil {
				b.Fatal(err)
			}
			m = &rawframe.WriteRequest{}
		}
		if _, err := stream.CloseAndRecv(); err != nil {
			b.Fatal(err)
		}
		middle, middleCPU := time.Now(), cpu()
		writing += middle.Sub(begin)
		writingCPU += middleCPU - beginCPU
		in, err := client.ReadObjects(ctx, &millracev1.ReadObjectsRequest{Objects: []*millracev1.ObjectRef{{TaskId: task, Generation: 1}}})
		if err != nil {
			b.Fatal(err)
		}
		n := 0
		for n < size {
			var r rawframe.ReadResponse
			if err := in.RecvMsg(&r); err != nil {
				b.Fatal(err)
			}
			n += r.Data.CopyTo(back[r.Offset:])
			r.Data.Free()
		}
		reading += time.Since(middle)
		readingCPU += cpu() - middleCPU
		session.Send(&workerv1.SessionResponse{Releases: []*workerv1.Replica{{TaskId: task, Generation: 1}}})
	}
	b.ReportMetric(float64(task)*size/writing.Seconds()/1e9, "write-GB/s")
	b.ReportMetric(float64(task)*size/reading.Seconds()/1e9, "read-GB/s")
	// The times include both ends: on two cores, less than one second of CPU time per GB allows 2
	// GB/s.
	b.ReportMetric(writingCPU.Seconds()/(float64(task)*size/1e9), "write-cpu-s/GB")
	b.ReportMetric(readingCPU.Seconds()/(float64(task)*size/1e9), "read-cpu-s/GB")
	if err := conn.Close(); err != nil {
		b.Error(err)
	}
	cancel()
	if err := <-ended; err != nil {
		b.Error(err)
	}
}

// BenchmarkExecutor measures short tasks in one executor process.
func BenchmarkExecutor(b *testing.B) {
	binary, err := buildEcho()
	if err != nil {
		b.Fatal(err)
	}
	s := workertest.NewScheduler(b)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- worker.Run(ctx, worker.Config{
			Name: "host-0", Scheduler: s.Address, Slots: 1, BLASLibrary: "none", PythonCommand: []string{""}, Exec: map[string][]string{"echo": {binary}}, Log: slog.New(slog.DiscardHandler),
		})
	}()
	session := s.Accept(b)
	session.Op(1, exec, "echo/upper")
	arguments := workertest.Arguments("x")
	const batch = 200
	next, reported := uint64(0), 0
	hear := func(left int) {
		session.Until("reports", func() bool {
			reported += len(session.Tasks)
			session.Tasks = session.Tasks[:0]
			return int(next)-reported <= left
		})
	}
	for b.Loop() {
		m := &workerv1.SessionResponse{}
		for range batch {
			next++
			m.Assignments = append(m.Assignments, &workerv1.Assignment{TaskId: next, Attempt: 1, OpId: 1, Rank: next, Arguments: arguments})
		}
		session.Send(m)
		hear(batch)
	}
	hear(0)
	b.ReportMetric(float64(next)/b.Elapsed().Seconds(), "tasks/s")
	cancel()
	if err := <-ended; err != nil {
		b.Error(err)
	}
}

// BenchmarkLatency measures the time from assignment to report of one tiny native task at a time.
func BenchmarkLatency(b *testing.B) {
	s := workertest.NewScheduler(b)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- worker.Run(ctx, worker.Config{Name: "host-0", Scheduler: s.Address, Slots: 1, BLASLibrary: "none", PythonCommand: []string{""}, Log: slog.New(slog.DiscardHandler)})
	}()
	session := s.Accept(b)
	session.Op(1, native, "bench.noop")
	next := uint64(0)
	for b.Loop() {
		next++
		session.Assign(&workerv1.Assignment{TaskId: next, Attempt: 1, OpId: 1})
		session.Report(next)
	}
	cancel()
	if err := <-ended; err != nil {
		b.Error(err)
	}
}
