package sim

import (
	"testing"

	"github.com/millrace/millrace/server/sched"
)

// A function that fails at first has enough retries for that. Runs that find no memory use some of
// them up, and then it may fail for good.
func TestRunsWithoutMemoryUseUpRetries(t *testing.T) {
	w := &world{}
	o := newOracle(w)
	s := o.add(&spec{key: "a", kind: flaky, failures: 3})
	user := o.add(&spec{key: "b", inputs: []*spec{s}})
	raised := &sched.TaskError{Reason: "FUNCTION_RAISED", OriginKey: "a"}
	failed := &sched.TaskError{Reason: "INPUT_FAILED", OriginKey: "a"}
	for _, starved := range []bool{false, true} {
		s.starved = starved
		if err := o.check(s, sched.TaskFailed, raised); (err == nil) != starved {
			t.Errorf("without memory %v, the task failed: %v", starved, err)
		}
		if err := o.check(user, sched.TaskFailed, failed); (err == nil) != starved {
			t.Errorf("without memory %v, the task that needs it failed: %v", starved, err)
		}
	}
}
