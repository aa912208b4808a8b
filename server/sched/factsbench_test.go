package sched_test

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/millrace/millrace/server/sched"
)

// BenchmarkFacts submits and runs tasks, with and without the rows for a journal.
func BenchmarkFacts(b *testing.B) {
	for _, on := range []bool{false, true} {
		b.Run(fmt.Sprintf("facts=%t", on), func(b *testing.B) {
			const n = 10_000
			specs := shape("stencil", n)
			b.ReportAllocs()
			for range b.N {
				c := newClusterOf(sched.Config{Facts: on}, 4)
				c.submit(specs)
				c.run()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/task")
		})
	}
}

// BenchmarkLoad writes the table of a machine with a million tasks in parts, and loads it, part by
// part, as a restart does.
func BenchmarkLoad(b *testing.B) {
	const n, graph = 1_000_000, 10_000
	c := newClusterOf(sched.Config{Facts: true}, 0)
	for first := 0; first < n; first += graph {
		specs := make([]sched.TaskSpec, graph)
		for i := range specs {
			specs[i] = sched.TaskSpec{Key: fmt.Sprintf("key-%012d", first+i), Arguments: []byte("0123456789abcdef"), Hold: true}
			if i > 0 {
				specs[i].Inputs = []string{specs[i-1].Key}
			}
		}
		c.submit(specs)
	}
	heap := func() float64 {
		var s runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&s)
		return float64(s.HeapAlloc)
	}
	for range b.N {
		before, longest := heap(), time.Duration(0)
		m := sched.New(sched.Config{Facts: true})
		m.SetTime(c.now)
		m.Load(&sched.ClientOpened{Client: 1, TTL: time.Hour})
		began, loading := time.Now(), time.Duration(0)
		for cursor, more := uint64(0), true; more; {
			var rows []sched.Row
			at := time.Now()
			cursor, more = c.m.Rows(cursor, func(r sched.Row) { rows = append(rows, r) })
			longest = max(longest, time.Since(at))
			at = time.Now()
			for _, r := range rows {
				m.Load(r)
			}
			loading += time.Since(at)
		}
		at := time.Now()
		m.Step(c.now, sched.Loaded{Restarts: 1}, nil)
		b.ReportMetric(time.Since(began).Seconds(), "s-write-and-load")
		b.ReportMetric(loading.Seconds(), "s-load")
		b.ReportMetric(time.Since(at).Seconds(), "s-derive")
		b.ReportMetric(float64(longest.Microseconds())/1e3, "ms-longest-part")
		b.ReportMetric((heap()-before)/n, "B/task")
		if tasks := m.Totals().Tasks; tasks != n {
			b.Fatalf("%d tasks", tasks)
		}
	}
}
