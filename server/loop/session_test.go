package loop

import (
	"testing"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/sched"
	"github.com/millrace/millrace/server/schedapi"
)

// A step may assign a task, take that back and assign it elsewhere. The first worker must not get
// the attempt of the second one.
func TestAnAttemptGoesOnlyToItsWorker(t *testing.T) {
	l := running(t)
	opened, err := l.Register(t.Context(), schedapi.Registration{Worker: sched.WorkerRegistered{
		Name: "w", Incarnation: "i", Slots: 1, MemoryBytes: 1 << 30, Executors: []string{"native"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	result, err := l.Submit(t.Context(), oneTask(0, "k"))
	if err != nil {
		t.Fatal(err)
	}
	var told schedapi.Outbound
	for len(told.Assignments) == 0 {
		<-opened.Wake()
		opened.Take(&told)
	}
	task, attempt := result.Tasks[0], told.Assignments[0].Attempt
	built := func(attempt ids.Attempt) (n int) {
		err := l.call(t.Context(), func() {
			s := l.sessionOf(opened.Worker())
			before := len(s.building.Assignments)
			l.assign(&sched.Effect{Kind: sched.EffectAssign, Worker: opened.Worker(), Task: task, Attempt: attempt})
			n = len(s.building.Assignments) - before
			s.building.Assignments = s.building.Assignments[:before]
		})
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	if earlier, current := built(attempt-1), built(attempt); earlier != 0 || current != 1 {
		t.Errorf("%d assignments are sent for the attempt before %d, %d for it", earlier, attempt, current)
	}
}
