package loop_test

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/journal"
	"github.com/millrace/millrace/server/loop"
	"github.com/millrace/millrace/server/sched"
	"github.com/millrace/millrace/server/schedapi"
)

// start is one start of a scheduler with a journal.
type start struct {
	*loop.Loop
	t         *testing.T
	directory *directory
	config    loop.Config
	end       func()
}

// patience is the longest time that a test waits for an event.
const patience = 5 * time.Minute

// begin starts a scheduler with a journal. It fails the test if the start is refused. Unless the
// test says so, no worker is lost by its silence: on a busy machine the next step of a test may
// take longer than a worker's lease.
func begin(t *testing.T, d *directory, config loop.Config) *start {
	t.Helper()
	config.Cluster.WorkerLease = cmp.Or(config.Cluster.WorkerLease, time.Hour)
	config.ReconnectGrace = cmp.Or(config.ReconnectGrace, time.Hour)
	config.RestartGrace = cmp.Or(config.RestartGrace, time.Hour)
	config.Machine.Facts = true
	config.Cluster.Life = 1
	s := &start{Loop: loop.New(config), t: t, directory: d, config: config}
	if err := s.Restore(t.Context(), journal.Config{Files: d, RetryTime: time.Millisecond, SnapshotBytes: d.snapshotBytes}); err != nil {
		t.Fatalf("the start is refused: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	group.Go(func() { s.Run(ctx) })
	s.end = sync.OnceFunc(func() {
		cancel()
		group.Wait()
		_ = s.CloseJournal() // Its disk may be broken.
	})
	t.Cleanup(s.end)
	return s
}

// fresh starts a scheduler with an empty journal.
func fresh(t *testing.T) *start {
	t.Helper()
	return begin(t, newDirectory(t), loop.Config{})
}

// restart kills a scheduler, and starts the next one with what is on the disk at that time.
func (s *start) restart() *start {
	s.t.Helper()
	d := s.directory.copied(s.t)
	s.end()
	return begin(s.t, d, s.config)
}

// stop stops a scheduler in good order, and starts the next one.
func (s *start) stop() *start {
	s.t.Helper()
	s.end()
	return begin(s.t, s.directory.copied(s.t), s.config)
}

func (s *start) open(name string) ids.ClientID {
	s.t.Helper()
	c, err := s.tryOpen(name)
	s.must(err)
	return c
}

// tryOpen is open for any goroutine.
func (s *start) tryOpen(name string) (ids.ClientID, error) {
	c, err := s.OpenClient(s.t.Context(), schedapi.ClientSpec{Name: name, Namespace: "n", TTL: time.Hour})
	if err != nil {
		return 0, err
	}
	return c.ID, nil
}

// openShort opens a client whose lease ends soon after the scheduler has been killed. Until then a
// watch keeps it, however long the test takes.
func (s *start) openShort(name string) ids.ClientID {
	s.t.Helper()
	for deadline := time.Now().Add(patience); ; {
		opened, err := s.OpenClient(s.t.Context(), schedapi.ClientSpec{Name: name, Namespace: "n", TTL: time.Second})
		s.must(err)
		_, err = s.WatchTasks(s.t.Context(), opened.ID, 0)
		if err == nil {
			return opened.ID
		}
		if time.Now().After(deadline) { // The lease has always ended before the watch began.
			s.must(err)
		}
	}
}

func (s *start) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// submit submits one task with a hold, and returns its number.
func (s *start) submit(c ids.ClientID, key string, inputs ...string) ids.TaskID {
	s.t.Helper()
	task, err := s.trySubmit(c, key, inputs...)
	s.must(err)
	return task
}

// trySubmit is submit for any goroutine.
func (s *start) trySubmit(c ids.ClientID, key string, inputs ...string) (ids.TaskID, error) {
	accepted, err := s.Submit(s.t.Context(), schedapi.Submission{Graph: sched.GraphSubmitted{
		Namespace: "n", Client: c, Ops: []sched.OpSpec{{Kind: sched.OpNative, Name: "op"}},
		Tasks: []sched.TaskSpec{{Key: key, Hold: true, Inputs: inputs}}, Retention: time.Hour,
	}})
	if err != nil {
		return 0, err
	}
	return accepted.Tasks[0], nil
}

// tasks describes all known tasks: number, key and state.
func (s *start) tasks() (all []string) {
	s.t.Helper()
	s.must(s.Read(s.t.Context(), func(r schedapi.Reader) {
		for after, more := ids.TaskID(0), true; more; more = after != 0 {
			var some []sched.TaskInfo
			some, after = r.Tasks(sched.TaskFilter{}, after, 100)
			for i := range some {
				all = append(all, fmt.Sprintf("%d: %s of graph %d is %s", some[i].Task, some[i].Key, some[i].Graph, some[i].State))
			}
		}
	}))
	return all
}

// same fails the test if the tasks are not those from before the restart.
func (s *start) same(before []string) {
	s.t.Helper()
	if after := s.tasks(); !slices.Equal(before, after) {
		s.t.Fatalf("before the restart there were the tasks\n%q\nand after it\n%q", before, after)
	}
}

// until waits for a state of the tasks.
func (s *start) until(what string, is func(schedapi.Reader) bool) {
	s.t.Helper()
	for deadline := time.Now().Add(patience); ; {
		done := false
		s.must(s.Read(s.t.Context(), func(r schedapi.Reader) { done = is(r) }))
		if done {
			return
		}
		if time.Now().After(deadline) {
			s.t.Fatal("it did not come to pass: " + what)
		}
		time.Sleep(time.Millisecond)
	}
}

// is waits until a task is in a state.
func (s *start) is(task ids.TaskID, state sched.TaskState) {
	s.t.Helper()
	s.until(fmt.Sprintf("task %s is %s", task, state), func(r schedapi.Reader) bool {
		info, known := r.Task(task)
		return known && info.State == state
	})
}

// keys lists the known tasks with their keys.
func (s *start) keys() (all []string) {
	s.t.Helper()
	for _, text := range s.tasks() {
		text, _, _ = strings.Cut(text, " is ")
		all = append(all, text)
	}
	return all
}

// worker is a worker with one slot, whose tasks end when the test says so.
type worker struct {
	schedapi.Session
	start *start
	name  string
	// running are the attempts that it has, and has the objects that it made.
	running map[ids.TaskID]ids.Attempt
	has     map[ids.TaskID]ids.Attempt
}

// join registers a worker with what an earlier one of the same incarnation has; nil: nothing.
func (s *start) join(name string, earlier *worker) *worker {
	s.t.Helper()
	w := &worker{start: s, name: name, running: map[ids.TaskID]ids.Attempt{}, has: map[ids.TaskID]ids.Attempt{}}
	r := schedapi.Registration{Worker: sched.WorkerRegistered{
		Name: name, Incarnation: name, Slots: 1, MemoryBytes: 1 << 30, Executors: []string{"native"},
	}}
	if earlier != nil {
		w.running, w.has = earlier.running, earlier.has
		r.Life = s.Cluster().Life
		for _, task := range slices.Sorted(maps.Keys(w.has)) {
			r.Worker.Inventory = append(r.Worker.Inventory, sched.Replica{Task: task, Generation: w.has[task], Bytes: 8})
		}
		for _, task := range slices.Sorted(maps.Keys(w.running)) {
			r.Worker.Running = append(r.Worker.Running, sched.TaskRef{Task: task, Attempt: w.running[task]})
		}
	}
	var err error
	w.Session, err = s.Register(s.t.Context(), r)
	s.must(err)
	return w
}

// take carries out all orders that have come.
func (w *worker) take() {
	var out schedapi.Outbound
	for w.Take(&out) {
		for i := range out.Assignments {
			w.running[out.Assignments[i].Task] = out.Assignments[i].Attempt
		}
		for _, refs := range [][]sched.TaskRef{out.Cancellations, out.Retractions} {
			for _, r := range refs {
				if w.running[r.Task] == r.Attempt {
					delete(w.running, r.Task)
				}
			}
		}
		for _, r := range out.Releases {
			if w.has[r.Task] == r.Generation {
				delete(w.has, r.Task)
			}
		}
	}
}

// succeed ends a task, for which it waits.
func (w *worker) succeed(task ids.TaskID) {
	s := w.start
	s.t.Helper()
	s.until("a worker has task "+task.String(), func(schedapi.Reader) bool {
		w.take()
		return w.running[task] != 0
	})
	attempt := w.running[task]
	delete(w.running, task)
	w.has[task] = attempt
	s.must(w.Report(s.t.Context(), schedapi.Inbound{Reports: []sched.Report{{Task: task, Attempt: attempt, Outcome: sched.OutcomeSucceeded, OutputBytes: 8}}}))
	s.is(task, sched.TaskSucceeded)
}
