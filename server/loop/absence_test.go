package loop_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/loop"
	"github.com/millrace/millrace/server/sched"
	"github.com/millrace/millrace/server/schedapi"
)

// While a worker is awaited after a restart, those that are back get new tasks. Old tasks, which
// the absent worker may run, wait for it.
func TestNewTasksDoNotWaitForAbsentWorkers(t *testing.T) {
	s := begin(t, newDirectory(t), loop.Config{RestartGrace: time.Hour})
	c := s.open("c")
	old := s.submit(c, "old")
	here, absent := s.join("here", nil), s.join("absent", nil)
	for len(here.running)+len(absent.running) == 0 {
		here.take()
		absent.take()
	}
	if len(here.running) > 0 {
		here, absent = absent, here
	}
	s = s.restart()
	c2 := s.open("c2")
	here = s.join(here.name, here)
	here.succeed(s.submit(c2, "new"))
	if here.take(); len(here.running) > 0 {
		t.Errorf("the task that the absent worker runs runs again: %v", here.running)
	}
	absent = s.join(absent.name, absent)
	attempt := absent.running[old]
	absent.succeed(old)
	if absent.has[old] != attempt {
		t.Errorf("attempt %d made the result, not %d", absent.has[old], attempt)
	}
}

// A worker comes back after the grace of a restart. Its results count, and are not computed again,
// whether another worker has been sent the task, or runs it, or the task is still queued.
func TestAWorkerThatComesBackAfterTheGraceKeepsItsResults(t *testing.T) {
	s := begin(t, newDirectory(t), loop.Config{RestartGrace: time.Millisecond})
	c := s.open("c")
	w := s.join("w", nil)
	var tasks []ids.TaskID
	for i := range 10 {
		tasks = append(tasks, s.submit(c, fmt.Sprint("k", i)))
		w.succeed(tasks[i])
	}
	s = s.restart()
	other := s.join("other", nil)
	s.until("the other worker has a task", func(schedapi.Reader) bool {
		other.take()
		return len(other.running) > 0
	})
	for task, attempt := range other.running {
		s.must(other.Report(t.Context(), schedapi.Inbound{Reports: []sched.Report{{Task: task, Attempt: attempt, Outcome: sched.OutcomeStarted}}}))
		s.is(task, sched.TaskRunning)
		break
	}
	w = s.join("w", w)
	for _, task := range tasks {
		s.is(task, sched.TaskSucceeded)
	}
	s.until("the other worker has no task", func(schedapi.Reader) bool {
		other.take()
		return len(other.running) == 0
	})
	if w.take(); len(w.has) != len(tasks) {
		t.Errorf("the worker keeps %d results of %d", len(w.has), len(tasks))
	}
}

// A worker that came back after a restart and is disconnected when the restart ends keeps what it
// runs.
func TestAnAttemptOutlivesARestartAndABrokenConnection(t *testing.T) {
	s := begin(t, newDirectory(t), loop.Config{RestartGrace: time.Hour, ReconnectGrace: time.Hour})
	c := s.open("c")
	task := s.submit(c, "k")
	runs := s.join("runs", nil)
	for len(runs.running) == 0 {
		runs.take()
	}
	attempt := runs.running[task]
	late := s.join("late", nil)
	s = s.restart()
	runs = s.join("runs", runs)
	runs.Disconnect()
	s.until("the connection is broken", func(schedapi.Reader) bool {
		return s.LastSnapshot().Worker(runs.Worker()).State == schedapi.WorkerDisconnected
	})
	late = s.join("late", late)
	runs = s.join("runs", runs)
	runs.succeed(task)
	if late.take(); len(late.running) > 0 || runs.has[task] != attempt {
		t.Errorf("attempt %d made the result, not %d; the other worker runs %v", runs.has[task], attempt, late.running)
	}
}

// Small scattered data, which the scheduler has itself, outlives its worker and the scheduler.
func TestSmallScatteredDataOutlivesWorkerAndScheduler(t *testing.T) {
	s := fresh(t)
	c := s.open("c")
	accepted, err := s.Submit(t.Context(), schedapi.Submission{Graph: sched.GraphSubmitted{
		Client: c, Ops: []sched.OpSpec{{Kind: sched.OpData, Name: "data"}}, Tasks: []sched.TaskSpec{{Key: "k", Hold: true}},
	}})
	s.must(err)
	task := accepted.Tasks[0]
	w := s.join("w", nil)
	s.must(w.Report(t.Context(), schedapi.Inbound{Gained: []sched.Stored{{
		Replica: sched.Replica{Task: task, Generation: 1, Bytes: 5}, Inline: []byte("bytes"), Written: true,
	}}}))
	s.is(task, sched.TaskSucceeded)
	s.must(w.Report(t.Context(), schedapi.Inbound{Leaving: true}))
	for range 2 {
		s.must(s.CloseClient(t.Context(), s.open("sync"))) // All records are durable then.
		s = s.restart()
		s.is(task, sched.TaskSucceeded)
		s.must(s.Read(t.Context(), func(r schedapi.Reader) {
			if update, _ := r.UpdateOf(task); string(update.Inline) != "bytes" {
				t.Errorf("its bytes are %q", update.Inline)
			}
		}))
	}
}
