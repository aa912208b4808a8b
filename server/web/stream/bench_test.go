package stream

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/loop"
	"github.com/millrace/millrace/server/rpc"
	"github.com/millrace/millrace/server/sched"
	"github.com/millrace/millrace/server/schedapi"
)

// BenchmarkASecondOfViewers measures the processor time of one second of the dashboard, with three
// viewers of all topics, 256 workers that report each second, and tasks that end: 1 % of a core are
// 10 ms. Writing to sockets is not in it.
func BenchmarkASecondOfViewers(b *testing.B) {
	for _, test := range []struct {
		name                  string
		tasks, routes, ending int
	}{
		{"idle", 1_000_000, 0, 0}, {"busy", 1_000_000, 0, 20_000}, {"full", 1_000_000, 0, 140_000}, {"routes", 1_000_000, 255, 0},
	} {
		b.Run(test.name, func(b *testing.B) { second(b, test.tasks, test.routes, test.ending) })
	}
}

func second(b *testing.B, tasks, routes, ending int) {
	b.Helper()
	ctx, cancel := context.WithCancel(b.Context())
	l := loop.New(loop.Config{NativeOps: []string{"bench.noop"}})
	looped := make(chan struct{})
	go func() { defer close(looped); l.Run(ctx) }()
	defer func() { cancel(); <-looped }()
	var sessions []schedapi.Session
	for i := range 256 {
		s, err := l.Register(ctx, schedapi.Registration{Worker: sched.WorkerRegistered{
			Name: fmt.Sprintf("host-%d", i), Incarnation: fmt.Sprint(i), Host: fmt.Sprintf("h%d", i/8), Slots: 4, MemoryBytes: 1 << 30, Executors: []string{"native"},
		}, DataAddress: "127.0.0.1:1"})
		if err != nil {
			b.Fatal(err)
		}
		sessions = append(sessions, s)
	}
	specs := make([]sched.TaskSpec, tasks)
	for i := range specs {
		specs[i] = sched.TaskSpec{Key: fmt.Sprintf("task-%d", i)}
	}
	_, err := l.Submit(ctx, schedapi.Submission{Graph: sched.GraphSubmitted{
		Name: "big", Namespace: "default", Tasks: specs, Ops: []sched.OpSpec{{Kind: sched.OpNative, Name: "bench.noop"}}, Options: []sched.Options{{}},
	}})
	if err != nil {
		b.Fatal(err)
	}
	h := New(Config{Scheduler: l, Rows: rpc.Rows{}})
	all, err := h.selection("summary,workers,graphs,clients,datasets,runs,events,alarms,routes")
	if err != nil {
		b.Fatal(err)
	}
	for range 3 {
		v := &viewer{topics: all, ready: make(chan struct{}, 1), ended: make(chan struct{})}
		v.missing.Store(all)
		if err := h.join(v); err != nil {
			b.Fatal(err)
		}
	}
	// report sends the figures of a tenth of the workers, and ends a tenth of a second's tasks.
	report := func(round, part int) {
		for i := part; i < len(sessions); i += 10 {
			stats := &schedapi.WorkerStats{MemoryUsedBytes: uint64(round*4096 + i), RSSBytes: uint64(round)}
			for r := range routes {
				stats.Routes = append(stats.Routes, schedapi.Route{Peer: ids.WorkerID(r + 1), PeerName: "host-7", Path: schedapi.PathUCX, State: schedapi.RouteOpen, Bytes: uint64(round * r), Transport: "rc_mlx5"})
			}
			if err := sessions[i].Report(ctx, schedapi.Inbound{Stats: stats}); err != nil {
				b.Fatal(err)
			}
		}
		var out schedapi.Outbound
		for left, before := ending/10, -1; left > 0 && left != before; {
			before = left
			if err := l.Read(ctx, func(schedapi.Reader) {}); err != nil { // The loop has handled all reports.
				b.Fatal(err)
			}
			for _, s := range sessions {
				var reports []sched.Report
				for left > len(reports) && s.Take(&out) {
					for _, a := range out.Assignments {
						reports = append(reports, sched.Report{Task: a.Task, Attempt: a.Attempt, Outcome: sched.OutcomeSucceeded, RunTime: time.Millisecond, Inline: []byte{8, 0}})
					}
				}
				left -= min(len(reports), left)
				if err := s.Report(ctx, schedapi.Inbound{Reports: reports}); err != nil {
					b.Fatal(err)
				}
			}
		}
	}
	now := time.Now()
	var used time.Duration
	var bytes int
	for round := range b.N {
		for part := range 10 {
			report(round, part)
			if _, err := l.Snapshot(ctx); err != nil {
				b.Fatal(err)
			}
			before := processorTime()
			now = now.Add(tick)
			h.samples.take(now)
			h.serve(now)
			used += processorTime() - before
			for v := range h.viewers {
				for _, e := range v.take(nil) {
					bytes += len(e.data)
				}
			}
		}
	}
	b.ReportMetric(float64(used.Milliseconds())/float64(b.N), "cpu-ms/s")
	b.ReportMetric(float64(bytes)/1e6/float64(b.N), "MB/s")
	b.ReportMetric(float64(h.topics[5].topic.(*runs).last), "runs")
}
