package server_test

import (
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"

	pb "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/server"
)

// BenchmarkIndependent sends b.N no-op tasks through Submit, assignment to 4 zero-cost workers,
// reports and a watch, over TCP, with all parts in this process.
func BenchmarkIndependent(b *testing.B) {
	c := start(b, server.Config{})
	ctx := timeout(b)
	for i := range 4 {
		conn := dial(b, c.server.Address())
		b.Cleanup(func() { conn.Close() })
		c.join(conn, registration(fmt.Sprintf("w-%d", i)), succeed)
	}
	id := c.open(ctx)
	watch := c.watch(ctx, &pb.WatchRequest{ClientId: id})
	b.ReportAllocs()
	b.ResetTimer()
	before := cpu()
	stream, err := c.client.Submit(ctx)
	if err != nil {
		b.Fatal(err)
	}
	const chunk = 10000
	for first := 0; first < b.N; first += chunk {
		request := &pb.SubmitRequest{}
		if first == 0 {
			request.Header = &pb.SubmitHeader{ClientId: id}
			request.Ops = []*pb.Op{{Kind: pb.OpKind_OP_KIND_NATIVE, Name: "bench.noop"}}
		}
		for i := first; i < min(first+chunk, b.N); i++ {
			request.Tasks = append(request.Tasks, &pb.TaskSpec{Key: fmt.Sprintf("noop-%d", i), OpIndex: new(uint32), Hold: true})
		}
		if err := stream.Send(request); err != nil {
			b.Fatal(err)
		}
	}
	if _, err := stream.CloseAndRecv(); err != nil {
		b.Fatal(err)
	}
	for done := 0; done < b.N; {
		message, err := watch.Recv()
		if err != nil {
			b.Fatal(err)
		}
		for _, update := range message.GetTasks() {
			if update.GetState() == pb.TaskState_TASK_STATE_SUCCEEDED {
				done++
			}
		}
	}
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "tasks/s")
	b.ReportMetric(float64((cpu()-before).Nanoseconds())/float64(b.N), "cpu-ns/task")
}

// BenchmarkLatency measures the time from SubmitBatch of one task to its result in the watch.
func BenchmarkLatency(b *testing.B) {
	c := start(b, server.Config{})
	ctx := timeout(b)
	conn := dial(b, c.server.Address())
	b.Cleanup(func() { conn.Close() })
	c.join(conn, registration("w-0"), succeed)
	id := c.open(ctx)
	watch := c.watch(ctx, &pb.WatchRequest{ClientId: id})
	taken := make([]time.Duration, 0, b.N)
	b.ResetTimer()
	for i := range b.N {
		began := time.Now()
		response, err := c.client.SubmitBatch(ctx, &pb.SubmitRequest{
			Header: &pb.SubmitHeader{ClientId: id}, Tasks: []*pb.TaskSpec{{Key: fmt.Sprintf("noop-%d", i), Op: "bench.noop", Hold: true}},
		})
		if err != nil {
			b.Fatal(err)
		}
		c.final(watch, response.GetTaskIds())
		taken = append(taken, time.Since(began))
	}
	b.StopTimer()
	slices.Sort(taken)
	b.ReportMetric(float64(taken[len(taken)/2].Microseconds()), "p50-us")
	b.ReportMetric(float64(taken[len(taken)*99/100].Microseconds()), "p99-us")
}

// cpu returns the CPU time that this process has used, including system time.
func cpu() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		panic(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
