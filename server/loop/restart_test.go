package loop_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/coord"
	"github.com/millrace/millrace/server/copies"
	"github.com/millrace/millrace/server/journal"
	"github.com/millrace/millrace/server/loop"
	"github.com/millrace/millrace/server/sched"
	"github.com/millrace/millrace/server/schedapi"
)

// A result is kept by a variable, a queue, a topic, or a call that waits for it, while the client
// that submitted it leaves. All that was submitted with that result is there after a restart.
func TestResultsThatNoClientHoldsOutliveTheScheduler(t *testing.T) {
	value := coord.Value{Keys: []string{"k"}}
	place := schedapi.Place{Namespace: "n"}
	for _, test := range []struct {
		name string
		keep func(*start)
		drop func(*start)
	}{
		{"variable", func(s *start) {
			s.must(s.SetVariable(s.t.Context(), place, "v", value))
		}, func(s *start) {
			s.must(s.DeleteVariable(s.t.Context(), place, "v"))
		}},
		{"queue", func(s *start) {
			_, err := s.Ask(s.t.Context(), place, coord.Call{Wait: time.Hour, Ask: coord.PutInQueue{Name: "q", Value: value}})
			s.must(err)
		}, func(s *start) {
			_, err := s.CloseQueue(s.t.Context(), place, "q", false)
			s.must(err)
		}},
		{"topic", func(s *start) {
			_, err := s.PublishToTopic(s.t.Context(), place, "t", []coord.Value{value})
			s.must(err)
		}, nil},
		{"answer", func(s *start) {
			s.must(s.SetVariable(s.t.Context(), place, "v", value))
			_, err := s.Ask(s.t.Context(), schedapi.Place{Client: s.open("reader")}, coord.Call{Ask: coord.ReadVariable{Name: "v"}})
			s.must(err)
			s.must(s.DeleteVariable(s.t.Context(), place, "v"))
		}, nil},
		{"waiting call", func(s *start) {
			ctx, cancel := context.WithCancel(s.t.Context())
			var group sync.WaitGroup
			s.t.Cleanup(func() { cancel(); group.Wait() })
			group.Go(func() { _, _ = s.Await(ctx, "n", "k") })
			s.until("somebody waits for k", func(r schedapi.Reader) bool {
				task, _ := r.Lookup("n", "k")
				info, _ := r.Task(task)
				return info.Holders == 2
			})
		}, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := fresh(t)
			a := s.open("a")
			s.submit(a, "k")
			test.keep(s)
			s.must(s.CloseClient(t.Context(), a))
			b := s.open("b")
			s.submit(b, "k2", "k")
			s.submit(b, "k")
			before := s.tasks()
			s = s.restart()
			s.same(before)
			// A second restart reads what the first one has written.
			s = s.restart()
			s.same(before)
		})
		if test.drop == nil {
			continue
		}
		t.Run(test.name+" dropped", func(t *testing.T) {
			s := fresh(t)
			a := s.open("a")
			s.submit(a, "k")
			test.keep(s)
			s.must(s.CloseClient(t.Context(), a))
			test.drop(s)
			b := s.open("b")
			s.submit(b, "k") // It is another task.
			before := s.tasks()
			s.restart().same(before)
		})
	}
}

// A task that has succeeded decides as such when requests are decided again after a restart.
func TestSucceededTasksDecideAsBefore(t *testing.T) {
	t.Run("a submission joins one without a hold", func(t *testing.T) {
		s := fresh(t)
		a, b, c := s.open("a"), s.open("b"), s.open("c")
		k := s.submit(a, "k")
		s.join("w", nil).succeed(k)
		joined := oneTask(b, "k")
		joined.Graph.Tasks[0].Hold = false
		_, err := s.Submit(t.Context(), joined)
		s.must(err)
		s.must(s.Release(t.Context(), a, schedapi.TaskSet{Tasks: []ids.TaskID{k}}))
		if again := s.submit(c, "k"); again == k {
			t.Fatal("the released task is there")
		}
		before := s.keys()
		s = s.restart()
		if after := s.keys(); !slices.Equal(before, after) {
			t.Errorf("after the restart there are %q, not %q", after, before)
		}
	})
	t.Run("a client cancels the input of one", func(t *testing.T) {
		s := fresh(t)
		a, b := s.open("a"), s.open("b")
		k := s.submit(a, "k")
		w := s.join("w", nil)
		w.succeed(k)
		after := s.submit(b, "k2", "k")
		w.succeed(after)
		// The object of k is lost, and k is wanted: it runs again.
		s.must(w.Report(t.Context(), schedapi.Inbound{Lost: []sched.Replica{{Task: k, Generation: w.has[k]}}}))
		s.until("k runs again", func(r schedapi.Reader) bool {
			info, _ := r.Task(k)
			return info.State != sched.TaskSucceeded
		})
		_, err := s.Cancel(t.Context(), sched.TasksCancelled{Client: a}, schedapi.TaskSet{Tasks: []ids.TaskID{k}})
		s.must(err)
		s.is(k, sched.TaskCancelled)
		s = s.restart()
		s.is(k, sched.TaskCancelled)
	})
}

// A journal with rows that cannot be used: the tasks that need them fail and say why, and all else
// goes on.
func TestATaskThatCannotBeBroughtBackFailsAlone(t *testing.T) {
	d := newDirectory(t)
	j, err := journal.Open(journal.Config{Files: d}, func(time.Time, journal.Record) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	const client, first = 7, 1<<32 + 1
	now := time.Now()
	number := ids.TaskID(first)
	put := func(graph ids.GraphID, op sched.OpSpec, key string, inputs ...ids.TaskID) ids.TaskID {
		row := &sched.TasksPut{Graph: graph, Ops: []sched.OpSpec{op}, Tasks: []sched.TaskRow{{Task: number, Key: key, Inputs: uint32(len(inputs))}}}
		for _, in := range inputs {
			row.Inputs = append(row.Inputs, sched.InputRow{Task: in})
		}
		j.Append(now, row)
		j.Append(now, &sched.HoldsPut{Holder: sched.Holder{Kind: sched.HolderClient, Number: client}, Tasks: []ids.TaskID{number}})
		number++
		return number - 1
	}
	op := sched.OpSpec{Kind: sched.OpNative, Name: "op"}
	j.Append(now, &journal.Begun{Cluster: "c", Life: 1, Starts: 1})
	j.Append(now, &journal.ClientOpened{Client: client, Spec: schedapi.ClientSpec{Namespace: "n", TTL: time.Hour}})
	j.Append(now, &sched.GraphPut{Graph: 1, Client: client, Namespace: "n", CreatedAt: now})
	sound := put(1, op, "sound")
	bad := put(1, op, "bad", first-1)
	after := put(1, op, "after", bad, sound)
	kind := put(1, sched.OpSpec{Kind: 99, Name: "op"}, "kind")
	function := put(1, sched.OpSpec{Kind: sched.OpPythonPickle, Name: "f", Function: ids.FunctionHash{1}}, "function")
	lost := put(2, op, "lost")
	twice := put(1, op, "sound")
	ended := put(1, op, "ended", bad)
	j.Append(now, &sched.TasksEnded{State: sched.TaskSucceeded, Tasks: []sched.TaskRef{{Task: sound, Attempt: 1}}})
	j.Append(now, &sched.TasksEnded{State: sched.TaskFailed, Err: &sched.TaskError{Reason: "R", Message: "its own"}, Tasks: []sched.TaskRef{{Task: ended, Attempt: 1}}})
	last := put(1, op, "last")
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	s := begin(t, d, loop.Config{})
	w := s.join("w", nil)
	for task, cause := range map[ids.TaskID]string{
		bad: "is not recorded", after: "is not recorded", kind: "kind 99", function: "function", lost: "graph g2", twice: "the same key", ended: "its own",
	} {
		s.is(task, sched.TaskFailed)
		s.must(s.Read(t.Context(), func(r schedapi.Reader) {
			info, _ := r.Task(task)
			if update, _ := r.UpdateOf(task); update.Err == nil || !strings.Contains(update.Err.Message, cause) || info.Holders != 1 {
				t.Errorf("task %s with %d holders failed with %v, not because of %q", task, info.Holders, update.Err, cause)
			}
		}))
	}
	for _, task := range []ids.TaskID{sound, last} {
		w.succeed(task)
	}
	before := s.keys()
	s = s.restart()
	if after := s.keys(); !slices.Equal(before, after) {
		t.Errorf("after another restart there are %q, not %q", after, before)
	}
	if found, err := s.Hold(t.Context(), client, schedapi.TaskSet{Keys: []string{"last"}}); err != nil || found[0] != last {
		t.Errorf("the last task is %v, %v", found, err)
	}
}

// A reader that has read five messages of a topic reads all of those that come after a restart.
// (docs/running.md: topics.)
func TestReadersOfATopicSkipNothingAfterARestart(t *testing.T) {
	s := fresh(t)
	place := schedapi.Place{Namespace: "n"}
	publish := func(messages int) uint64 {
		t.Helper()
		number, err := s.PublishToTopic(t.Context(), place, "t", make([]coord.Value, messages))
		s.must(err)
		return number
	}
	read := publish(5)
	s = s.restart()
	last := publish(7)
	answer, err := s.Ask(t.Context(), place, coord.Call{Ask: coord.ReadTopic{Name: "t", After: read, Most: 100}})
	s.must(err)
	if len(answer.Messages) != 7 || answer.Missed != 0 || answer.Number != last || last <= read {
		t.Errorf("after message %d come %d messages up to %d, %d are missed", read, len(answer.Messages), answer.Number, answer.Missed)
	}
}

// Retries and deaths go on counting after a restart.
func TestTroublesOfATaskOutliveTheScheduler(t *testing.T) {
	for _, test := range []struct {
		outcome sched.Outcome
		times   int
		reason  string
	}{{sched.OutcomeFailed, 2, "R"}, {sched.OutcomeExecutorDied, 3, "POISON_TASK"}} {
		s := fresh(t)
		submission := oneTask(s.open("c"), "k")
		submission.Graph.Options = []sched.Options{{MaxRetries: 1, RetryBackoff: time.Millisecond}}
		submission.Graph.Tasks[0].Options = 1
		accepted, err := s.Submit(t.Context(), submission)
		s.must(err)
		task := accepted.Tasks[0]
		w := s.join("w", nil)
		for n := range test.times {
			if n > 0 {
				s.must(s.CloseClient(t.Context(), s.open("sync"))) // All records are durable then.
				s = s.restart()
				w = s.join("w", w)
			}
			s.until("the task runs", func(schedapi.Reader) bool {
				w.take()
				return w.running[task] != 0
			})
			attempt := w.running[task]
			delete(w.running, task)
			s.must(w.Report(t.Context(), schedapi.Inbound{Reports: []sched.Report{{
				Task: task, Attempt: attempt, Outcome: test.outcome, Err: &sched.TaskError{Reason: "R", Message: "m"},
			}}}))
		}
		s.is(task, sched.TaskFailed)
		s.must(s.Read(t.Context(), func(r schedapi.Reader) {
			if update, _ := r.UpdateOf(task); update.Err.Reason != test.reason {
				t.Errorf("it fails with %+v", update.Err)
			}
		}))
	}
}

// A restarted scheduler gives out the number of a task, and is killed before anything about it is
// on the disk. The next one gives that number to no other task: a worker may have its object.
func TestTheNumberOfATaskThatWasLostIsNotGivenAgain(t *testing.T) {
	s := fresh(t)
	c := s.open("c")
	s = s.restart()
	w := s.join("w", nil)
	s.directory.breakNow(errDisk)
	if _, err := s.trySubmit(c, "lost"); err == nil {
		t.Fatal("a submission is accepted without a disk")
	}
	var lost ids.TaskID
	s.must(s.Read(t.Context(), func(r schedapi.Reader) { lost, _ = r.Lookup("n", "lost") }))
	w.succeed(lost)
	s = s.restart()
	other := s.submit(c, "other")
	s.join("w", w)
	if other == lost {
		t.Errorf("%s is the number of another task, too", lost)
	}
	s.must(s.Read(t.Context(), func(r schedapi.Reader) {
		if info, _ := r.Task(other); info.State == sched.TaskSucceeded {
			t.Error("a task has the object of a task that was lost")
		}
	}))
}

// The list of events is that of one process. (docs/running.md: what does not survive a restart.)
func TestEventsAreForgotten(t *testing.T) {
	s := fresh(t)
	w := s.join("w", nil)
	s.must(s.DrainWorkers(t.Context(), sched.DrainOrdered{Workers: []ids.WorkerID{w.Worker()}, Purpose: copies.DrainKeep, Reason: "a loud fan"}))
	told := func() bool {
		return slices.ContainsFunc(s.Events(0), func(e schedapi.Event) bool { return e.Kind == schedapi.EventDrain })
	}
	if !told() {
		t.Error("there is no event of the drain")
	}
	if s = s.restart(); told() {
		t.Error("an event of before the restart is in the list")
	}
}

// A copy of the directory of a scheduler that is stopped is a backup. The next one that starts with
// it does not know what came later: workers drop that, and clients get an error. (docs/running.md:
// how large a journal is.)
func TestACopyOfAStoppedSchedulerIsABackup(t *testing.T) {
	s := fresh(t)
	kept := s.submit(s.open("before"), "kept")
	w := s.join("w", nil)
	w.succeed(kept)
	s.end()
	backup := s.directory.copied(t)
	s = begin(t, s.directory, s.config)
	w = s.join("w", w)
	client := s.open("later")
	later := s.submit(client, "later")
	w.succeed(later)
	s.end()
	s = begin(t, backup, s.config)
	w = s.join("w", w)
	s.until("the worker drops what came later", func(schedapi.Reader) bool {
		w.take()
		return w.has[later] == 0
	})
	if s.is(kept, sched.TaskSucceeded); w.has[kept] == 0 {
		t.Error("the worker has dropped what came before")
	}
	var refused *sched.Error
	if _, err := s.WatchTasks(t.Context(), client, 0); !errors.As(err, &refused) || refused.Kind != sched.ErrUnknownClient {
		t.Errorf("a client that came later gets %v", err)
	}
}
