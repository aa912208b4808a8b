package sched

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/internal/invariant"
)

func TestReadyQueueGivesTheLowestRankFirst(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var q readyQueue
		var model []uint64
		for range rapid.IntRange(1, 300).Draw(t, "steps") {
			if len(model) > 0 && rapid.IntRange(0, 2).Draw(t, "pop") == 0 {
				r, ok := q.first()
				if !ok || r.rank != model[0] {
					t.Fatalf("got %v %v, want %d", r, ok, model[0])
				}
				q.pop()
				model = model[1:]
				continue
			}
			rank := rapid.Uint64Range(0, 1000).Draw(t, "rank")
			q.push(readyTask{rank: rank})
			at, _ := slices.BinarySearch(model, rank)
			model = slices.Insert(model, at, rank)
		}
		for _, want := range model {
			if r, ok := q.first(); !ok || r.rank != want {
				t.Fatalf("got %v %v, want %d", r, ok, want)
			}
			q.pop()
		}
		if r, ok := q.first(); ok {
			t.Fatalf("left over: %v", r)
		}
	})
}

func TestTaskSetAgreesWithAMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s taskSet
		model := make(map[ids.TaskID]bool)
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			id := ids.TaskID(rapid.SampledFrom([]uint64{1, 63, 64, 1023, 1024, 1025, 5000, 1 << 40}).Draw(t, "id"))
			switch rapid.IntRange(0, 2).Draw(t, "what") {
			case 0:
				if s.add(id) == model[id] {
					t.Fatalf("add %s: known %v", id, model[id])
				}
				model[id] = true
			case 1:
				if s.remove(id) != model[id] {
					t.Fatalf("remove %s: known %v", id, model[id])
				}
				delete(model, id)
			case 2:
				if s.has(id) != model[id] {
					t.Fatalf("has %s: known %v", id, model[id])
				}
			}
			if s.count != len(model) {
				t.Fatalf("count %d, want %d", s.count, len(model))
			}
		}
		if got := s.members(nil); !slices.Equal(got, slices.Sorted(maps.Keys(model))) {
			t.Fatalf("members %v, want %v", got, slices.Sorted(maps.Keys(model)))
		}
	})
}

func TestTimersComeInOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := New(Config{})
		times := rapid.SliceOf(rapid.Int64Range(0, 50)).Draw(t, "times")
		for i, at := range times {
			m.arm(timer{at: time.Unix(at, 0), id: uint64(i)})
		}
		slices.Sort(times)
		last := uint64(0)
		for i, want := range times {
			got := m.timers.pop()
			if got.at.Unix() != want {
				t.Fatalf("got %d, want %d", got.at.Unix(), want)
			}
			if i > 0 && times[i-1] == want && got.seq < last {
				t.Fatalf("timers of one moment are out of order")
			}
			last = got.seq
		}
	})
}

// one submits a task that a client holds.
func one(t *testing.T, m *Machine, spec TaskSpec, op OpSpec) ids.TaskID {
	t.Helper()
	r, _, err := m.Submit(time.Unix(0, 0), GraphSubmitted{Client: 1, Ops: []OpSpec{op}, Tasks: []TaskSpec{spec}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return r.Tasks[0]
}

func TestKeysComeAndGo(t *testing.T) {
	m := New(Config{})
	m.Step(time.Unix(0, 0), ClientOpened{Client: 1, TTL: time.Hour}, nil)
	live := make(map[string]ids.TaskID)
	n := 30_000
	if invariant.Enabled {
		n = 2000 // small, because each step checks all tasks
	}
	for i := range n {
		key := fmt.Sprint("key", i)
		live[key] = one(t, m, TaskSpec{Key: key, Hold: true}, OpSpec{Kind: OpNative, Name: "f"})
		if i%3 != 0 {
			old := fmt.Sprint("key", i-i%7)
			if id, ok := live[old]; ok {
				m.Step(time.Unix(0, 0), TasksReleased{Client: 1, Tasks: []ids.TaskID{id}}, nil)
				delete(live, old)
			}
		}
	}
	for i := range n {
		key := fmt.Sprint("key", i)
		if id, ok := m.Lookup("", key); id != live[key] || ok != (live[key] != 0) {
			t.Fatalf("%s finds %s, want %s", key, id, live[key])
		}
	}
	if err := m.Check(); err != nil {
		t.Fatal(err)
	}
	m.Step(time.Unix(0, 0), ClientClosed{Client: 1}, nil)
	if len(m.namespaces) != 0 || m.Totals().Tasks != 0 {
		t.Fatalf("left over: %d namespaces, %+v", len(m.namespaces), m.Totals())
	}
}

func TestFunctionsThatNobodyUsesAreForgotten(t *testing.T) {
	m := New(Config{})
	m.Step(time.Unix(0, 0), ClientOpened{Client: 1, TTL: time.Hour}, nil)
	const n = unusedOps + 1000
	for i := range n {
		f := ids.FunctionHash{1, byte(i), byte(i >> 8), byte(i >> 16)}
		id := one(t, m, TaskSpec{Key: "k", Hold: true}, OpSpec{Kind: OpPythonPickle, Name: "f", Function: f})
		effects := m.Step(time.Unix(0, 0), TasksReleased{Client: 1, Tasks: []ids.TaskID{id}}, nil)
		if !slices.ContainsFunc(effects, func(e Effect) bool { return e.Kind == EffectFunctionUnused && e.Function == f }) {
			t.Fatalf("function %d is not said to be unused: %v", i, effects)
		}
	}
	if len(m.ops) > unusedOps+2 || len(m.opIndex) > unusedOps+1 {
		t.Fatalf("%d ops are kept in %d slots", len(m.opIndex), len(m.ops))
	}
}

func TestAnswersToOldRequestsAreDropped(t *testing.T) {
	l := requestLog{index: make(map[requestKey]answered)}
	for i := range keptRequests + 5 {
		l.add(requestKey{client: 1, request: fmt.Sprint(i)}, answered{SubmitResult: SubmitResult{Tasks: make([]ids.TaskID, 2)}})
	}
	if len(l.index) != keptRequests || l.tasks != 2*keptRequests {
		t.Fatalf("%d answers with %d tasks are kept", len(l.index), l.tasks)
	}
	l.add(requestKey{client: 1, request: "large"}, answered{SubmitResult: SubmitResult{Tasks: make([]ids.TaskID, keptRequestTasks)}})
	if _, ok := l.index[requestKey{client: 1, request: "large"}]; !ok || len(l.index) != 1 {
		t.Fatalf("beside a large answer %d are kept, the large one %v", len(l.index)-1, ok)
	}
}

func TestOldTasksDoNotKeepTheDirectory(t *testing.T) {
	m := New(Config{})
	m.Step(time.Unix(0, 0), ClientOpened{Client: 1, TTL: time.Hour}, nil)
	op := OpSpec{Kind: OpNative, Name: "f"}
	one(t, m, TaskSpec{Key: "old", Hold: true}, op)
	blocks := 2200
	if invariant.Enabled {
		blocks = 20 // they fit in one leaf of the directory; few, because each step checks all tasks
	}
	for range blocks {
		specs := make([]TaskSpec, blockTasks)
		for i := range specs {
			specs[i] = TaskSpec{Key: fmt.Sprint(i), Hold: true}
		}
		r, _, err := m.Submit(time.Unix(0, 0), GraphSubmitted{Client: 1, Ops: []OpSpec{op}, Tasks: specs}, nil)
		if err != nil {
			t.Fatal(err)
		}
		m.Step(time.Unix(0, 0), TasksReleased{Client: 1, Tasks: r.Tasks}, nil)
	}
	leaves := 0
	for _, l := range m.tasks.leaves {
		if l != nil {
			leaves++
		}
	}
	if leaves > 2 {
		t.Fatalf("%d leaves of the directory are kept for one old task", leaves)
	}
	if _, ok := m.Lookup("", "old"); !ok {
		t.Fatal("the old task is gone")
	}
	if err := m.Check(); err != nil {
		t.Fatal(err)
	}
}

func TestOneStackIsTold(t *testing.T) {
	crash := func(pid int, stack string) string { return fmt.Sprintf("pid %d died\n%s", pid, stack) }
	got := joinCauses([]string{crash(1, "stack\nof f"), crash(2, "stack\nof f"), crash(3, "stack\nof g"), "left", "left"})
	want := "1. pid 1 died; 2. pid 2 died; 3. pid 3 died\nstack\nof g; 4. left; 5. left"
	if got != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}
