package worker_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
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

// BenchmarkNoop measures tiny tasks in batches, with the scheduler that sends
// them and hears of them in the same process.
func BenchmarkNoop(b *testing.B) {
	for _, zero := range []bool{true, false} {
		name := map[bool]string{true: "zero", false: "native"}[zero]
		b.Run(name, func(b *testing.B) {
			s := workertest.NewScheduler(b)
			ctx, cancel := context.WithCancel(context.Background())
			ended := make(chan error, 1)
			go func() {
				ended <- worker.Run(ctx, worker.Config{
					Name: "host-0", Scheduler: s.Address, Slots: 1, PythonCommand: []string{""}, Zero: zero, Log: slog.New(slog.DiscardHandler),
				})
			}()
			session := s.Accept(b)
			session.Op(1, native, "bench.noop")
			const batch = 1000
			next, reported := uint64(0), 0
			b.ReportAllocs()
			begin := cpu()
			for b.Loop() {
				m := &millracev1.SessionResponse{}
				for range batch {
					next++
					m.Assignments = append(m.Assignments, &millracev1.Assignment{TaskId: next, Attempt: 1, OpId: 1, Rank: next, Key: "bench-key"})
				}
				session.Send(m)
				// At most two batches are under way at any time.
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
