package sched_test

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/sched"
)

// cluster is a machine with simulated workers that finish every task at no cost.
type cluster struct {
	m       *sched.Machine
	now     time.Time
	effects []sched.Effect
	pending [][]sched.Report // indexed by worker id - 1
	a       sched.Assignment
	// assignments makes the cluster build each assignment too, as the loop does.
	assignments bool
	ended       int
}

func newCluster(workers int) *cluster { return newClusterOf(sched.Config{}, workers) }

func newClusterOf(config sched.Config, workers int) *cluster {
	c := &cluster{m: sched.New(config), now: time.Unix(1_700_000_000, 0), pending: make([][]sched.Report, workers)}
	for i := range workers {
		c.step(sched.WorkerRegistered{Worker: ids.WorkerID(i + 1), Name: fmt.Sprint("w", i), Host: "h", Slots: 4, Executors: []string{"native"}})
	}
	c.step(sched.ClientOpened{Client: 1, TTL: time.Hour})
	return c
}

func (c *cluster) step(ev sched.Event) {
	c.effects = c.m.Step(c.now, ev, c.effects[:0])
	c.take()
}

func (c *cluster) take() {
	for _, e := range c.effects {
		switch e.Kind {
		case sched.EffectAssign:
			if c.assignments {
				c.m.AssignmentOf(e.Task, &c.a)
			}
			c.pending[e.Worker-1] = append(c.pending[e.Worker-1], sched.Report{Task: e.Task, Attempt: e.Attempt, Outcome: sched.OutcomeSucceeded, OutputBytes: 8, RunTime: time.Microsecond})
		case sched.EffectNotify:
			c.ended++
		}
	}
}

func (c *cluster) submit(specs []sched.TaskSpec) []ids.TaskID {
	r, effects, err := c.m.Submit(c.now, sched.GraphSubmitted{Client: 1, Ops: []sched.OpSpec{{Kind: sched.OpNative, Name: "bench.noop"}}, Tasks: specs}, c.effects[:0])
	if err != nil {
		panic(err)
	}
	c.effects = effects
	c.take()
	return r.Tasks
}

// run steps reports in batches until nothing is pending.
func (c *cluster) run() {
	for moved := true; moved; {
		moved = false
		for i := range c.pending {
			batch := c.pending[i]
			if len(batch) == 0 {
				continue
			}
			moved = true
			n := min(len(batch), 256)
			c.now = c.now.Add(10 * time.Microsecond)
			reports := batch[:n:n]
			c.pending[i] = batch[n:]
			if len(c.pending[i]) == 0 {
				c.pending[i] = nil
			}
			c.step(sched.TasksReported{Worker: ids.WorkerID(i + 1), Reports: reports})
		}
	}
}

func shape(name string, n int) []sched.TaskSpec {
	specs := make([]sched.TaskSpec, n)
	key := func(i int) string { return fmt.Sprintf("%s-%012d", name[:4], i) }
	for i := range specs {
		specs[i] = sched.TaskSpec{Key: key(i), Arguments: []byte("0123456789abcdef")}
		in := func(js ...int) {
			for _, j := range js {
				specs[i].Inputs = append(specs[i].Inputs, key(j))
			}
		}
		switch name {
		case "independent":
			specs[i].Hold = true
		case "merge":
			if i%101 == 100 {
				for j := i - 100; j < i; j++ {
					in(j)
				}
				specs[i].Hold = true
			}
		case "tree":
			if 2*i+2 < n {
				in(2*i+1, 2*i+2)
			}
			specs[i].Hold = i == 0
		case "stencil":
			const width = 100
			if i >= width {
				at := i - width
				col := i % width
				if col > 0 {
					in(at - 1)
				}
				in(at)
				if col < width-1 {
					in(at + 1)
				}
			}
			specs[i].Hold = i >= n-width
		case "chain":
			if i >= 10 {
				in(i - 10)
			}
			specs[i].Hold = i >= n-10
		case "random":
			for k := uint64(0); k < uint64(i%5) && i > 10; k++ {
				h := (uint64(i)*5 + k) * 0x9e3779b97f4a7c15 >> 33
				in(i - 1 - int(h%uint64(min(i, 500))))
			}
			specs[i].Hold = i >= n-100
		}
	}
	return specs
}

// BenchmarkLife measures the whole life of tasks: submit, assign, report, notify, release. It
// reports time and allocations of the machine's steps, and of the assignments built from them.
func BenchmarkLife(b *testing.B) {
	for _, name := range []string{"independent", "merge", "tree", "stencil", "chain", "random"} {
		b.Run(name, func(b *testing.B) {
			const n = 50_000
			specs := shape(name, n)
			c := newCluster(4)
			c.assignments = true
			var before, after runtime.MemStats
			life := func() {
				tasks := c.submit(specs)
				c.run()
				c.step(sched.TasksReleased{Client: 1, Tasks: tasks})
				if t := c.m.Totals(); t.Tasks != 0 {
					b.Fatalf("left over: %+v", t)
				}
			}
			life()
			runtime.ReadMemStats(&before)
			b.ResetTimer()
			for range b.N {
				life()
			}
			b.StopTimer()
			runtime.ReadMemStats(&after)
			tasks := float64(b.N) * n
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/tasks, "ns/task")
			b.ReportMetric(float64(after.Mallocs-before.Mallocs)/tasks, "allocs/task")
			b.ReportMetric(float64(after.TotalAlloc-before.TotalAlloc)/tasks, "B/task")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// BenchmarkHeld measures the memory of a million finished and held tasks, and the memory that is
// left after their release.
func BenchmarkHeld(b *testing.B) {
	const n = 1_000_000
	heap := func() float64 {
		runtime.GC()
		runtime.GC()
		var s runtime.MemStats
		runtime.ReadMemStats(&s)
		return float64(s.HeapAlloc)
	}
	for range b.N {
		c := newCluster(4)
		start := heap()
		var tasks []ids.TaskID
		for at := 0; at < n; at += 10_000 {
			specs := make([]sched.TaskSpec, 10_000)
			for i := range specs {
				specs[i] = sched.TaskSpec{Key: fmt.Sprintf("held-%015d", at+i), Hold: true, Arguments: []byte("0123456789abcdef")}
			}
			tasks = append(tasks, c.submit(specs)...)
			c.run()
		}
		held := heap()
		gc := time.Now()
		runtime.GC()
		b.ReportMetric(float64(time.Since(gc).Microseconds()), "gc-µs")
		own := float64(8 * cap(tasks))
		b.ReportMetric((held-start-own)/n, "B/held-task")
		c.step(sched.TasksReleased{Client: 1, Tasks: tasks})
		tasks = nil
		c.effects = nil
		b.ReportMetric((heap()-start)/n, "B/released-task")
		if t := c.m.Totals(); t.Tasks != 0 {
			b.Fatalf("left over: %+v", t)
		}
	}
}
