package loop_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/loop"
	"github.com/millrace/millrace/server/members"
	"github.com/millrace/millrace/server/sched"
	"github.com/millrace/millrace/server/schedapi"
)

// data submits a task whose bytes a client brings.
func (s *start) data(c ids.ClientID, key string) ids.TaskID {
	s.t.Helper()
	accepted, err := s.Submit(s.t.Context(), schedapi.Submission{Graph: sched.GraphSubmitted{
		Client: c, Ops: []sched.OpSpec{{Kind: sched.OpData, Name: "data"}}, Tasks: []sched.TaskSpec{{Key: key, Hold: true}},
	}})
	s.must(err)
	return accepted.Tasks[0]
}

// wrote reports that a client has written the bytes of a task to a worker.
func (w *worker) wrote(task ids.TaskID) {
	w.start.t.Helper()
	w.start.must(w.Report(w.start.t.Context(), schedapi.Inbound{Gained: []sched.Stored{{
		Replica: sched.Replica{Task: task, Generation: 1, Bytes: 1 << 20}, Written: true,
	}}}))
}

// accepted says whether a worker was told that the bytes of a task are accepted. It takes all
// messages to the worker.
func (w *worker) accepted(task ids.TaskID) bool {
	var out schedapi.Outbound
	return w.Take(&out) && slices.ContainsFunc(out.Accepted, func(r sched.Replica) bool { return r.Task == task })
}

// Scattered bytes are accepted when that is durable, and not before. After a restart a client finds
// the accepted bytes, or learns that they are lost if their worker has died, too.
func TestScatteredDataIsAcceptedWhenThatIsDurable(t *testing.T) {
	d := newDirectory(t)
	d.snapshotBytes = 1 // A snapshot takes the place of records all the time.
	s := begin(t, d, loop.Config{Machine: sched.Config{DataGrace: time.Millisecond}, Cluster: schedapi.Cluster{WorkerLease: time.Hour}})
	c := s.open("c")
	w, broken := s.join("w", nil), s.join("broken", nil)
	task, second, lost, dropped := s.data(c, "k"), s.data(c, "second"), s.data(c, "lost"), s.data(c, "dropped")
	stuck := make(chan struct{})
	goOn := sync.OnceFunc(func() { close(stuck) })
	defer goOn()
	d.mu.Lock()
	d.stuck = stuck
	d.mu.Unlock()
	w.wrote(task)
	w.wrote(second)
	w.wrote(lost)
	s.must(w.Report(t.Context(), schedapi.Inbound{Lost: []sched.Replica{{Task: lost, Generation: 1}}}))
	broken.wrote(dropped)
	broken.Disconnect()
	for range 2 { // The loop has made a pass.
		s.is(task, sched.TaskWaiting)
	}
	if w.accepted(task) {
		t.Fatal("the bytes are accepted before that is durable")
	}
	goOn()
	s.until("the bytes are accepted", func(schedapi.Reader) bool { return w.accepted(task) })
	s.is(task, sched.TaskSucceeded)
	s.is(second, sched.TaskSucceeded)
	s.must(s.CloseClient(t.Context(), s.open("sync")))
	s.is(lost, sched.TaskWaiting)
	s.is(dropped, sched.TaskWaiting)

	s = s.restart()
	for _, name := range []string{"w", "broken"} {
		s.must(s.ReportDeath(t.Context(), members.Died{Name: name, Death: members.Death{Incarnation: name, Cause: "killed"}}))
	}
	s.until("the bytes are reported lost", func(r schedapi.Reader) bool {
		u, _ := r.UpdateOf(task)
		return u.State == sched.TaskFailed && u.Err.Reason == "OBJECT_LOST"
	})
}

// Scattered data whose worker does not come back after a restart counts as lost after a while,
// although nobody knows of the worker's death, and what needs it fails. (docs/running.md.)
func TestScatteredDataOfAWorkerThatStaysAwayIsLost(t *testing.T) {
	s := begin(t, newDirectory(t), loop.Config{RestartGrace: time.Millisecond, Machine: sched.Config{DataGrace: time.Millisecond}})
	c := s.open("c")
	w := s.join("w", nil)
	task := s.data(c, "k")
	w.wrote(task)
	s.is(task, sched.TaskSucceeded)
	needs := s.submit(c, "needs", "k")
	s = s.restart()
	for id, reason := range map[ids.TaskID]string{task: "OBJECT_LOST", needs: "INPUT_FAILED"} { // order-free: each is awaited
		s.until("it fails with "+reason, func(r schedapi.Reader) bool {
			u, _ := r.UpdateOf(id)
			return u.State == sched.TaskFailed && u.Err.Reason == reason && strings.Contains(u.Err.Message, "no worker brought them back")
		})
	}
}

// A worker that says it will leave gets no task in the place of those that have ended.
func TestAWorkerThatLeavesGetsNoTaskForItsReports(t *testing.T) {
	s := begin(t, newDirectory(t), loop.Config{Cluster: schedapi.Cluster{WorkerLease: time.Hour}})
	c := s.open("c")
	w := s.join("w", nil)
	first, second := s.submit(c, "a"), ids.TaskID(0)
	s.until("the first task is assigned", func(schedapi.Reader) bool { w.take(); return w.running[first] != 0 })
	for i := range 200 { // More than a worker gets ahead.
		second = s.submit(c, fmt.Sprint("b", i))
	}
	w.take()
	s.must(w.Report(t.Context(), schedapi.Inbound{Draining: true, Reports: []sched.Report{{
		Task: first, Attempt: w.running[first], Outcome: sched.OutcomeSucceeded, OutputBytes: 8,
	}}}))
	s.is(first, sched.TaskSucceeded)
	s.is(second, sched.TaskReady)
	var out schedapi.Outbound
	for w.Take(&out) {
		if len(out.Assignments) > 0 {
			t.Errorf("it gets %d tasks", len(out.Assignments))
		}
	}
}
