package loop

import (
	"testing"
	"time"

	"github.com/millrace/millrace/server/sched"
	"github.com/millrace/millrace/server/schedapi"
)

// TestEventsNameOnlyWhatHasAName: names of graphs and clients, and causes, may be empty. The text
// then shows no empty quotes, and says something after each colon.
func TestEventsNameOnlyWhatHasAName(t *testing.T) {
	l := New(Config{})
	s, err := l.register(schedapi.Registration{Worker: sched.WorkerRegistered{
		Name: "w", Incarnation: "w", Host: "h", Slots: 1, MemoryBytes: 1 << 20, Executors: []string{"native"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	texts := func(kind schedapi.EventKind) (found []string) {
		for _, e := range l.Events(0) {
			if e.Kind == kind {
				found = append(found, e.Text)
			}
		}
		return found
	}
	same := func(kind schedapi.EventKind, want ...string) {
		t.Helper()
		got := texts(kind)
		if len(got) != len(want) {
			t.Fatalf("events of kind %s: %q, not %q", kind, got, want)
		}
		for i := range want {
			if got[i] != want[i] {
				t.Errorf("event of kind %s: %q, not %q", kind, got[i], want[i])
			}
		}
	}
	fail := func(name, message string) {
		t.Helper()
		client := l.openClient(schedapi.ClientSpec{Name: name, TTL: 6 * time.Second}).id
		accepted, err := l.submit(&schedapi.Submission{Graph: sched.GraphSubmitted{
			Name: name, Namespace: "default", Client: client, Ops: []sched.OpSpec{{Kind: sched.OpNative, Name: "op"}},
			Tasks: []sched.TaskSpec{{Key: "task of " + name, Hold: true}}, Options: []sched.Options{{}},
		}})
		if err != nil {
			t.Fatal(err)
		}
		l.commit()
		l.step(sched.TasksReported{Worker: s.worker.id, Reports: []sched.Report{{
			Task: accepted.Tasks[0], Attempt: 1, Outcome: sched.OutcomeFailed, Err: &sched.TaskError{Reason: "PYTHON_EXCEPTION", Message: message},
		}}})
		l.commit()
	}
	fail("", "no")
	fail("nightly", "")
	same(schedapi.EventGraphFailed, `graph 1 has failed: no`, `graph 2 "nightly" has failed: PYTHON_EXCEPTION`)
	l.turn(7*time.Second, false)
	same(schedapi.EventClientLost,
		"the lease of a client ended: it was silent for 6s, and its results are released",
		`the lease of a client "nightly" ended: it was silent for 6s, and its results are released`)
	before := s.worker.stats
	s.worker.stats.ExecutorDeaths, s.worker.stats.GPU = 1, &schedapi.GPUHealth{XIDs: 1}
	before.GPU = &schedapi.GPUHealth{}
	l.compareStats(s.worker, &before)
	same(schedapi.EventExecutorDied, `1 executor process of worker "w" died until now, the last one by: an unknown cause`)
	same(schedapi.EventRegistered, `worker "w" registered from h with 1 slot`)
	same(schedapi.EventDevice, `the GPU of worker "w" has reported an error: an Xid error`)
}
