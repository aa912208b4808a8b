package loop_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/loop"
	"github.com/millrace/millrace/server/sched"
	"github.com/millrace/millrace/server/schedapi"
)

// BenchmarkReadsOfABusyLoop reads one graph b.N times while graphs of 100,000 no-op tasks run on
// four workers without costs, and a watch takes the updates. It reports the rate of the reads,
// their median and 99th percentile, and the tasks per second. "paced" reads 10,000 times a second,
// which shows what the tasks lose; "none" only waits for as long.
func BenchmarkReadsOfABusyLoop(b *testing.B) {
	const pace = 100 * time.Microsecond
	read := func(b *testing.B, l *load) {
		b.Helper()
		id := ids.GraphID(l.graph.Load())
		snapshot, err := l.loop.Snapshot(b.Context())
		if err != nil || snapshot.Graph(id) == nil && l.graph.Load() == uint64(id) {
			b.Errorf("graph %d: %v", id, err)
		}
	}
	for _, test := range []struct {
		name    string
		readers int
		pace    time.Duration
		read    func(*testing.B, *load)
	}{
		{"readers=1", 1, 0, read},
		{"readers=8", 8, 0, read},
		{"paced", 1, pace, read},
		{"none", 1, pace, func(*testing.B, *load) {}},
	} {
		b.Run(test.name, func(b *testing.B) {
			l := newLoad(b)
			taken := make([]time.Duration, b.N)
			var next atomic.Int64
			var group sync.WaitGroup
			first, began := l.done.Load(), time.Now()
			b.ResetTimer()
			for range test.readers {
				group.Go(func() {
					for i := next.Add(1) - 1; i < int64(b.N); i = next.Add(1) - 1 {
						// The timer of a sleep is coarse: readings that are late follow each other.
						if early := test.pace*time.Duration(i) - time.Since(began); early > 0 {
							time.Sleep(early)
						}
						start := time.Now()
						test.read(b, l)
						taken[i] = time.Since(start)
					}
				})
			}
			group.Wait()
			b.StopTimer()
			slices.Sort(taken)
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "reads/s")
			b.ReportMetric(float64(l.done.Load()-first)/b.Elapsed().Seconds(), "tasks/s")
			b.ReportMetric(float64(taken[b.N/2].Nanoseconds())/1e3, "p50-us")
			b.ReportMetric(float64(taken[b.N*99/100].Nanoseconds())/1e3, "p99-us")
		})
	}
}

// loadTasks is the number of tasks in each graph of the load.
const loadTasks = 100_000

// load keeps a loop busy until the benchmark ends.
type load struct {
	loop *loop.Loop
	// graph is the number of a graph that exists; it changes.
	graph atomic.Uint64
	// done counts the tasks that the watch has reported as succeeded.
	done atomic.Int64
}

func newLoad(b *testing.B) *load {
	b.Helper()
	ctx, cancel := context.WithCancel(b.Context())
	l := &load{loop: loop.New(loop.Config{})}
	var group sync.WaitGroup
	b.Cleanup(func() { cancel(); group.Wait() })
	group.Go(func() { l.loop.Run(ctx) })
	must := func(err error) {
		b.Helper()
		if err != nil {
			b.Fatal(err)
		}
	}
	for i := range 4 {
		session, err := l.loop.Register(ctx, schedapi.Registration{Worker: sched.WorkerRegistered{
			Name: fmt.Sprint(i), Incarnation: fmt.Sprint(i), Slots: 1, MemoryBytes: 1 << 30, Executors: []string{"native"},
		}})
		must(err)
		group.Go(func() { succeedAll(ctx, session) })
	}
	client, err := l.loop.OpenClient(ctx, schedapi.ClientSpec{Namespace: "n", TTL: time.Hour})
	must(err)
	watch, err := l.loop.WatchTasks(ctx, client.ID, 0)
	must(err)
	var graphs []ids.GraphID
	submit := func(round int) error {
		tasks := make([]sched.TaskSpec, loadTasks)
		for i := range tasks {
			tasks[i] = sched.TaskSpec{Key: fmt.Sprintf("%d-%d", round, i), Hold: true}
		}
		accepted, err := l.loop.Submit(ctx, schedapi.Submission{Graph: sched.GraphSubmitted{
			Namespace: "n", Client: client.ID, Ops: []sched.OpSpec{{Kind: sched.OpNative, Name: "op"}}, Tasks: tasks,
		}})
		graphs = append(graphs, accepted.Graph)
		return err
	}
	must(submit(0))
	must(submit(1))
	l.graph.Store(uint64(graphs[1]))
	group.Go(func() {
		for round := 2; ; {
			batch, err := watch.Next(ctx)
			if err != nil {
				return
			}
			ended := int64(0)
			for i := range batch.Updates {
				if batch.Updates[i].State == sched.TaskSucceeded {
					ended++
				}
			}
			if l.done.Add(ended) < int64(round-1)*loadTasks {
				continue
			}
			// Two graphs exist at any time, so that the workers always have tasks.
			err = submit(round)
			if round++; err == nil {
				l.graph.Store(uint64(graphs[1]))
				err = l.loop.ReleaseGraph(ctx, sched.GraphReleased{Graph: graphs[0], Cancel: true})
				graphs = graphs[1:]
			}
			if err != nil {
				if ctx.Err() == nil {
					b.Error(err)
				}
				return
			}
		}
	})
	return l
}

// succeedAll reports every task that is assigned to a session as succeeded.
func succeedAll(ctx context.Context, session schedapi.Session) {
	var out schedapi.Outbound
	for {
		select {
		case <-session.Wake():
		case <-ctx.Done():
			return
		}
		for session.Take(&out) {
			var in schedapi.Inbound
			for i := range out.Assignments {
				in.Reports = append(in.Reports, sched.Report{
					Task: out.Assignments[i].Task, Attempt: out.Assignments[i].Attempt, Outcome: sched.OutcomeSucceeded, Inline: []byte{1},
				})
			}
			if len(in.Reports) > 0 && session.Report(ctx, in) != nil {
				return
			}
		}
	}
}
