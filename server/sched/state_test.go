package sched

import (
	"testing"

	"github.com/millrace/millrace/internal/statestest"
)

// docs/states/task.md shows the ways between states as they are in the code.
func TestThePageShowsTheStatesOfTasks(t *testing.T) {
	states := []statestest.State{{Name: "(submitted)"}}
	for s := TaskState(0); s <= TaskRescuing; s++ {
		if s > 0 {
			states = append(states, statestest.State{Name: s.String()})
		}
		for _, next := range s.next() {
			states[s].Next = append(states[s].Next, next.String())
		}
	}
	statestest.Check(t, "task", `# The states of a task

The scheduler keeps the state of each task. This page is drawn from the table in
`+"`server/sched/state.go`"+`. In test builds the machine stops at a step that is not in it. The comment
of the package says when a task takes which way.

A task is PRE-ASSIGNED if it is ASSIGNED before its inputs exist. A task that is forgotten is
RELEASED at that moment. RESCUING means that other workers copy the result out of the memory of a
worker that died.
`, states)
}
