package sched

import (
	"strings"
	"testing"
	"time"
)

// The start of a running attempt is known for as long as it runs, also when so many others have
// come and gone that the history of transitions does not reach back to it.
func TestTheStartOfARunIsKnownUntilItEnds(t *testing.T) {
	m := New(Config{})
	begin := time.Unix(1000, 0)
	m.Step(begin, WorkerRegistered{Worker: 1, Name: "w", Host: "h", Slots: 2, Executors: []string{"native"}}, nil)
	m.Step(begin, ClientOpened{Client: 1, TTL: 100 * time.Hour}, nil)
	_, effects, err := m.Submit(begin, GraphSubmitted{
		Client: 1, Ops: []OpSpec{{Kind: OpNative, Name: "f"}}, Tasks: []TaskSpec{{Key: "a", Hold: true}, {Key: "b", Hold: true}},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	look := func(key string) TaskInfo {
		found, _ := m.Tasks(TaskFilter{KeyPrefix: key}, 0, 1)
		return found[0]
	}
	a := look("a")
	if !a.StartedAt.IsZero() {
		t.Errorf("a task that does not run has started at %v", a.StartedAt)
	}
	report := func(now time.Time, outcome Outcome, attempt TaskInfo) []Effect {
		return m.Step(now, TasksReported{Worker: 1, Reports: []Report{{Task: attempt.Task, Attempt: attempt.Attempt, Outcome: outcome}}}, nil)
	}
	started := begin.Add(time.Second)
	report(started, OutcomeStarted, a)
	for range historyLength {
		effects = report(started, OutcomeRetracted, look("b")) // It is assigned again.
	}
	if len(effects) == 0 || look("b").State != TaskAssigned {
		t.Fatalf("b is %s", stateName(look("b").State))
	}
	if got := look("a"); got.State != TaskRunning || !got.StartedAt.Equal(started) {
		t.Errorf("%s since %v, want since %v", stateName(got.State), got.StartedAt, started)
	}
	if e, _ := m.Explain(started.Add(time.Hour), a.Task); !strings.Contains(e.Text, "for 1h0m0s") {
		t.Errorf("%q", e.Text)
	}
	if err := m.Check(); err != nil {
		t.Error(err)
	}
	report(started.Add(time.Hour), OutcomeSucceeded, a)
	if got := look("a"); got.State != TaskSucceeded || !got.StartedAt.IsZero() || len(m.starts) != 0 {
		t.Errorf("%s since %v; %d starts are kept", stateName(got.State), got.StartedAt, len(m.starts))
	}
}
