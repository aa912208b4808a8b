package sched

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// Attempts that have ended are counted by the names of their ops, with the time in the queue and in
// the function.
func TestEndedAttemptsAreCountedByOp(t *testing.T) {
	m := New(Config{})
	now := time.Unix(1, 0)
	m.Step(now, WorkerRegistered{Worker: 1, Name: "w", Host: "h", Slots: 4, Executors: []string{"native"}}, nil)
	m.Step(now, ClientOpened{Client: 1, TTL: time.Hour}, nil)
	_, effects, err := m.Submit(now, GraphSubmitted{
		Client: 1, Ops: []OpSpec{{Kind: OpNative, Name: "load"}, {Kind: OpNative, Name: "fit"}},
		Tasks: []TaskSpec{{Key: "a", Hold: true}, {Key: "b", Op: 1, Hold: true}},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	now = now.Add(3 * time.Second)
	for _, e := range effects {
		if e.Kind != EffectAssign {
			continue
		}
		r := Report{Task: e.Task, Attempt: e.Attempt, Outcome: OutcomeSucceeded, RunTime: 2 * time.Second, Phases: Phases{Fetch: 300 * time.Millisecond, FetchedBytes: 1}}
		if info, _ := m.Task(e.Task); info.Key == "b" {
			r.Outcome, r.Err = OutcomeFailed, &TaskError{Reason: "RAISED", Message: "no data"}
			r.Phases.FetchedBytes = 0 // its inputs came from the disk of its worker
		}
		m.Step(now, TasksReported{Worker: 1, Reports: []Report{r}}, nil)
	}
	got := m.OpTimes()
	if len(got) != 2 || got[0].Op != "load" || got[0].Succeeded != 1 || got[0].Failed != 0 || got[1].Op != "fit" || got[1].Failed != 1 {
		t.Fatalf("%+v", got)
	}
	if got[0].Run.Sum != 2*time.Second || got[0].Queue.Sum != time.Second || got[0].Run.Count() != 1 {
		t.Errorf("ran for %v after %v in the queue", got[0].Run.Sum, got[0].Queue.Sum)
	}
	if got[0].Transfer.Sum != 300*time.Millisecond || got[0].Transfer.Count() != 1 {
		t.Errorf("inputs came for %v", got[0].Transfer.Sum)
	}
	if n := got[1].Transfer.Count(); n != 0 {
		t.Errorf("%d transfers from other workers, and none took place", n)
	}
	if got[1].LastFailure != "task b: no data" {
		t.Errorf("the last failure is %q", got[1].LastFailure)
	}
}

// However many ops there are, few have counts of their own, and none is lost.
func TestFewOpsHaveCountsOfTheirOwn(t *testing.T) {
	var s opTimes
	for i := range 3 * namedOps {
		s.of(fmt.Sprint("op-", i)).Succeeded++
	}
	s.of("op-0").Succeeded++
	s.of("op-90").Succeeded++
	m := &Machine{opTimes: s}
	got := m.OpTimes()
	if len(got) != namedOps+1 || got[0].Succeeded != 2 || got[namedOps].Op != OtherOps || got[namedOps].Succeeded != 2*namedOps+1 {
		t.Errorf("%d counts, first %+v, last %+v", len(got), got[0], got[len(got)-1])
	}
	if name := s.of(strings.Repeat("é", opNameBytes)); name != s.others {
		t.Errorf("an op of a full table is %q", name.Op)
	}
}

// Each duration counts in the first bucket whose bound is not below it.
func TestHistogramsCountByBounds(t *testing.T) {
	var h Histogram
	bounds := TimeBounds()
	h.Observe(-time.Second)
	for _, b := range bounds {
		h.Observe(b)
		h.Observe(b + 1)
	}
	for i, n := range h.Buckets {
		if n != 2 && i < len(bounds) || n != 1 && i == len(bounds) {
			t.Errorf("bucket %d has %d", i, n)
		}
	}
}

// Ready tasks that no worker can run are listed with the reason, and the others are not.
func TestTasksThatNoWorkerCanRunAreListed(t *testing.T) {
	m := New(Config{})
	now := time.Unix(1, 0)
	m.Step(now, WorkerRegistered{Worker: 1, Name: "w", Host: "h", Slots: 1, Executors: []string{"native"}}, nil)
	m.Step(now, ClientOpened{Client: 1, TTL: time.Hour}, nil)
	_, _, err := m.Submit(now, GraphSubmitted{
		Client: 1, Ops: []OpSpec{{Kind: OpNative, Name: "f"}}, Options: []Options{{Resources: map[string]float64{"license": 1}}},
		Tasks: []TaskSpec{{Key: "a", Hold: true}, {Key: "b", Hold: true}, {Key: "c", Options: 1, Hold: true}},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	got := m.Unserved(10)
	if len(got) != 1 || got[0].Tasks != 1 || got[0].Key != "c" || got[0].Op != "f" || !strings.Contains(got[0].Why, "license") {
		t.Errorf("%+v", got)
	}
	if some := m.Unserved(0); some != nil {
		t.Errorf("more than asked for: %+v", some)
	}
}
