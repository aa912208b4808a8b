package sched

import (
	"strings"
	"testing"
	"time"
)

// TestReschedulesAreLimited: a function that always asks to run again fails at last. A worker that
// gives back what has not begun is no such case.
func TestReschedulesAreLimited(t *testing.T) {
	for name, runs := range map[string]bool{"a run that asks for it": true, "a task that has not begun": false} {
		m := New(Config{})
		now := time.Unix(1, 0)
		m.Step(now, WorkerRegistered{Worker: 1, Name: "w", Host: "h", Slots: 1, Executors: []string{"native"}}, nil)
		m.Step(now, ClientOpened{Client: 1, TTL: time.Hour}, nil)
		_, effects, err := m.Submit(now, GraphSubmitted{Client: 1, Ops: []OpSpec{{Kind: OpNative, Name: "f"}}, Tasks: []TaskSpec{{Key: "a", Hold: true}}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		assigned := 0
		for range 2 * maxReschedules {
			var reports []Report
			for _, e := range effects {
				if e.Kind == EffectAssign {
					assigned++
					if runs {
						reports = append(reports, Report{Task: e.Task, Attempt: e.Attempt, Outcome: OutcomeStarted})
					}
					reports = append(reports, Report{Task: e.Task, Attempt: e.Attempt, Outcome: OutcomeRetracted})
				}
			}
			effects = m.Step(now, TasksReported{Worker: 1, Reports: reports}, nil)
		}
		some, _ := m.Tasks(TaskFilter{KeyPrefix: "a"}, 0, 1)
		switch {
		case !runs && assigned != 2*maxReschedules:
			t.Errorf("%s: %d attempts", name, assigned)
		case runs && (assigned != maxReschedules+1 || some[0].State != TaskFailed || !strings.Contains(m.errors[some[0].Task].Message, "asked more than 100 times")):
			t.Errorf("%s: %d attempts, %+v", name, assigned, some[0])
		}
	}
}
