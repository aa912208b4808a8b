package cli

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

// topExample has a worker on a GPU with a lower tier, one that is disconnected, two graphs that
// share a function, and an alarm. It is 10 seconds after the frame before.
func topExample() *topFrame {
	now := time.Unix(1_700_000_000, 0)
	begin := timestamppb.New(now.Add(-time.Minute))
	op := func(name string, c *millracev1.TaskCounts, run time.Duration) *millracev1.OpSummary {
		return &millracev1.OpSummary{Op: name, Counts: c, RunTime: durationpb.New(run), OutputBytes: 1 << 20}
	}
	graphs := []*millracev1.Graph{
		{GraphId: 1, Ops: []*millracev1.OpSummary{
			op("load", &millracev1.TaskCounts{Waiting: 1, Ready: 2, Assigned: 1, Running: 2, Succeeded: 3, Released: 1}, time.Second),
			op("sum", &millracev1.TaskCounts{Failed: 1, Cancelled: 1}, time.Minute),
		}},
		{GraphId: 2, Ops: []*millracev1.OpSummary{op("load", &millracev1.TaskCounts{Succeeded: 4}, time.Second)}},
	}
	worker := func(finished, received uint64) *millracev1.Worker {
		return &millracev1.Worker{
			WorkerId: 1, Name: "gpu-0", Host: "a", State: millracev1.WorkerState_WORKER_STATE_ACTIVE, Slots: 4, AssignedTasks: 6, CreateTime: begin,
			MemoryUsedBytes: 1 << 30, MemoryLimitBytes: 4 << 30, FinishedTasks: finished, ReceivedBytes: received,
			Gpu: &millracev1.Gpu{MemoryBytes: 80 << 30}, GpuHealth: &millracev1.GpuHealth{UtilizationPercent: 97, UsedBytes: 8 << 30},
			Tiers: []*millracev1.MemoryTier{{Name: "slab", SizeBytes: 4 << 30, UsedBytes: 1 << 30, LargestFreeBytes: 2 << 30}, {Name: "disk", UsedBytes: 3 << 20, Failure: "no space"}},
		}
	}
	f := &topFrame{
		time: now, address: "127.0.0.1:1",
		cluster: &millracev1.ClusterInfo{ActiveWorkers: 1, TotalSlots: 4, Clients: 2, MemoryUsedBytes: 1 << 30, MemoryLimitBytes: 4 << 30, Tasks: &millracev1.TaskCounts{Succeeded: 7, Released: 1, Failed: 1}},
		workers: []*millracev1.Worker{worker(250, 10<<20), {WorkerId: 2, Name: "host\x1b-0", State: millracev1.WorkerState_WORKER_STATE_DISCONNECTED, CreateTime: begin}},
		groups:  groupsOf(slices.Values(graphs)), pairs: pairsOf(mixedReader()),
		alarms: []*millracev1.Alarm{{
			Severity: millracev1.AlarmSeverity_ALARM_SEVERITY_CRITICAL, Subject: "gpu-0", StartTime: begin,
			Text: "worker gpu-0 spills", Remedy: "give it more memory",
		}},
	}
	f.compare(&topFrame{time: now.Add(-10 * time.Second), workers: []*millracev1.Worker{worker(50, 0)}})
	return f
}

func TestTopPrintsAllPanels(t *testing.T) {
	f := topExample()
	var out strings.Builder
	if err := f.print(&out, -1); err != nil {
		t.Fatal(err)
	}
	for _, parts := range [][]string{
		{"127.0.0.1:1", "1 worker ", "4 of 4 slots busy", "20 tasks/s", "memory 1.0 GiB of 4.0 GiB", "2 clients"},
		{"tasks: 0 waiting, 0 running, 8 done, 1 failed"},
		{"WORKER", "STATE", "SLOTS", "TASKS/S", "MEMORY", "GPU", "RX/S"},
		{"gpu-0", "active", "4/4", "20", "1.0 GiB", "4.0 GiB", "25%", "3.0 MiB", "97%", "10%", "1.0 MiB"},
		{`host\u001b-0`, "disconnected", "0/0", "-"},
		{"sum", "0", "0", "0", "1", "1", "1m0s", "1m0s", "1.0 MiB", "100%"},
		{"load", "3", "3", "8", "0", "0", "2s", "250ms", "2.0 MiB", "57%"},
		{"WORKER", "TIER", "USED", "SIZE", "SHARE", "LARGEST FREE"},
		{"gpu-0", "slab", "1.0 GiB", "4.0 GiB", "25%", "2.0 GiB"},
		{"gpu-0", "disk", "3.0 MiB", "no space"},
		{"a-0", "b-0", "ucx (rc_mlx5, staged at both ends)", "21"},
		{"critical", "1m0s", "gpu-0", "worker gpu-0 spills", "give it more memory"},
	} {
		if !hasLine(out.String(), parts) {
			t.Errorf("no line has %q:\n%s", parts, out.String())
		}
	}
	if strings.Index(out.String(), "\nsum ") > strings.Index(out.String(), "\nload ") {
		t.Errorf("the function that took the most time is not the first one:\n%s", out.String())
	}
	out.Reset()
	if err := f.print(&out, panelAlarms); err != nil || strings.Contains(out.String(), "WORKER ") || !strings.Contains(out.String(), "give it more memory") {
		t.Errorf("one panel: %v\n%s", err, out.String())
	}
}

// press sends keys to the model, as a terminal does.
func press(t *testing.T, m *topModel, keys ...string) (quit bool) {
	t.Helper()
	special := map[string]tea.Key{
		"tab": {Code: tea.KeyTab}, "enter": {Code: tea.KeyEnter}, "esc": {Code: tea.KeyEscape}, "backspace": {Code: tea.KeyBackspace},
		"end": {Code: tea.KeyEnd}, "space": {Code: tea.KeySpace, Text: " "},
	}
	for _, name := range keys {
		key, ok := special[name]
		if !ok {
			key = tea.Key{Code: []rune(name)[0], Text: name}
		}
		if _, cmd := m.Update(tea.KeyPressMsg(key)); cmd != nil {
			_, quit = cmd().(tea.QuitMsg)
		}
	}
	return quit
}

func TestKeysOfTop(t *testing.T) {
	m := newTopModel(nil, time.Hour, -1)
	m.Update(tea.WindowSizeMsg{Width: 200, Height: linesAround + 1})
	m.Update(sampled{frame: topExample()})
	shows := func(step string, want, not string) {
		t.Helper()
		if s := m.screen(); !strings.Contains(s, want) || not != "" && strings.Contains(s, not) {
			t.Errorf("%s: want %q and not %q:\n%s", step, want, not, s)
		}
	}
	shows("at first", "gpu-0", `host\u001b-0`)
	press(t, m, "end")
	shows("the end", `host\u001b-0`, "gpu-0  ")
	press(t, m, "2")
	shows("functions", "sum", "load")
	press(t, m, "r")
	shows("reversed", "load", "sum")
	press(t, m, "r", ">", ">", ">", ">") // from the run time to the first column
	shows("by name, descending", "FUNCTION↓", "load")
	press(t, m, "/", "o", "q", "backspace")
	shows("filtered", "load", "sum")
	press(t, m, "enter", "1", "tab")
	shows("after a look at another panel", "filter: o", "sum")
	press(t, m, "esc")
	shows("not filtered", "sum", "load")
	press(t, m, "5")
	shows("alarms", "give it more memory", "sum")
	press(t, m, "space")
	m.Update(sampled{frame: &topFrame{cluster: &millracev1.ClusterInfo{}}})
	shows("paused", "give it more memory", "")
	m.Update(sampled{err: errors.New("rpc error: code = Unavailable desc = the line is cut")})
	shows("without an answer", "no answer: the line is cut", "rpc error")
	m.Update(tea.WindowSizeMsg{Width: 20, Height: 3})
	if lines := strings.Split(m.screen(), "\n"); len(lines) != 3 {
		t.Errorf("%d lines on a screen of 3", len(lines))
	}
	if press(t, m, "1") || !press(t, m, "q") {
		t.Error("q does not quit")
	}
}

// A graph or worker that is gone leaves the frame, and a snapshot replaces all.
func TestTopFollowsChanges(t *testing.T) {
	s := newTopSource(nil)
	s.apply(&millracev1.WatchResponse{
		Snapshot: true,
		Graphs:   []*millracev1.Graph{{GraphId: 1}, {GraphId: 2}},
		Workers:  []*millracev1.Worker{{WorkerId: 1}, {WorkerId: 2}, {WorkerId: 3}},
	})
	s.apply(&millracev1.WatchResponse{
		RemovedGraphIds: []uint64{1}, RemovedWorkerIds: []uint32{1},
		Workers: []*millracev1.Worker{{WorkerId: 2, State: millracev1.WorkerState_WORKER_STATE_LOST}},
	})
	if len(s.graphs) != 1 || s.graphs[2] == nil || len(s.workers) != 1 || s.workers[3] == nil {
		t.Errorf("%v %v", s.graphs, s.workers)
	}
	s.apply(&millracev1.WatchResponse{Snapshot: true})
	if len(s.graphs)+len(s.workers) != 0 {
		t.Errorf("after a snapshot: %v %v", s.graphs, s.workers)
	}
}
