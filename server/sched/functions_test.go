package sched_test

import (
	"testing"
	"time"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/sched"
)

// The loop keeps the functions of every submission, and drops a function when it gets
// EffectFunctionUnused.
func TestFunctionsBroughtInVainAreToldUnused(t *testing.T) {
	m := sched.New(sched.Config{})
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	needed, idle := ids.FunctionHash{1}, ids.FunctionHash{2}
	m.Step(now, sched.ClientOpened{Client: 1, TTL: time.Minute}, nil)
	submit := func() (sched.SubmitResult, map[ids.FunctionHash]int) {
		result, effects, err := m.Submit(now, sched.GraphSubmitted{
			Client: 1, RequestID: "once",
			Ops: []sched.OpSpec{
				{Kind: sched.OpPythonPickle, Name: "f", Function: needed},
				{Kind: sched.OpPythonPickle, Name: "g", Function: idle},
			},
			Tasks: []sched.TaskSpec{{Key: "a", Hold: true}},
		}, nil)
		if err != nil {
			t.Fatal(err)
		}
		return result, unused(effects)
	}
	result, told := submit()
	if told[needed] != 0 || told[idle] != 1 {
		t.Errorf("told unused: %v; want only the function that no task has", told)
	}
	if told := unused(m.Step(now, sched.TasksReleased{Client: 1, Tasks: result.Tasks}, nil)); told[needed] != 1 {
		t.Errorf("told unused when the task was released: %v; want its function", told)
	}
	if _, told := submit(); told[needed] != 1 || told[idle] != 1 {
		t.Errorf("told unused when the submission came again: %v; want both", told)
	}
}

func unused(effects []sched.Effect) map[ids.FunctionHash]int {
	told := map[ids.FunctionHash]int{}
	for _, e := range effects {
		if e.Kind == sched.EffectFunctionUnused {
			told[e.Function]++
		}
	}
	return told
}
