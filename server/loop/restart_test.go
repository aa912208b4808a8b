package loop_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
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

// directory is the directory of a journal, whose disk can be broken.
type directory struct {
	*journal.Directory
	mu sync.Mutex
	// fault is the error of each further write; nil: writes succeed. stuck, if not nil, is closed
	// when the disk goes on: until then a write takes for ever.
	fault error
	stuck chan struct{}
	// snapshotBytes is the least size of the log from which a snapshot is taken; 0: the default.
	snapshotBytes int
	// sound counts the writes that succeed before the fault, failed those that have failed.
	sound, failed int
}

var errDisk = errors.New("the disk is broken")

func newDirectory(t *testing.T) *directory {
	t.Helper()
	d, err := journal.OpenDirectory(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() }) // Its file was only read.
	return &directory{Directory: d}
}

func (d *directory) Append(name string) (journal.File, error) {
	file, err := d.Directory.Append(name)
	return breakable{file, d}, err
}

func (d *directory) Rename(from, to string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.Directory.Rename(from, to)
}

func (d *directory) Remove(name string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.Directory.Remove(name)
}

// breakNow makes each further write fail; with nil, writes succeed again.
func (d *directory) breakNow(fault error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fault = fault
}

// copied is the directory as a scheduler finds it that starts now.
func (d *directory) copied(t *testing.T) *directory {
	t.Helper()
	next := newDirectory(t)
	next.snapshotBytes = d.snapshotBytes
	// Files come and go with snapshots.
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := os.CopyFS(next.Path(), os.DirFS(d.Path())); err != nil {
		t.Fatal(err)
	}
	return next
}

type breakable struct {
	journal.File
	directory *directory
}

func (b breakable) Write(p []byte) (int, error) {
	b.directory.mu.Lock()
	fault, stuck := b.directory.fault, b.directory.stuck
	if b.directory.sound > 0 {
		b.directory.sound--
		fault = nil
	}
	if fault != nil {
		b.directory.failed++
	}
	b.directory.mu.Unlock()
	if stuck != nil {
		<-stuck
	}
	if fault != nil {
		return 0, fault
	}
	return b.File.Write(p)
}

// Sync does nothing: no test takes the power away.
func (b breakable) Sync() error { return nil }

// start is one start of a scheduler with a journal.
type start struct {
	*loop.Loop
	t         *testing.T
	directory *directory
	config    loop.Config
	end       func()
}

// begin starts a scheduler with a journal. It fails the test if the start is refused.
func begin(t *testing.T, d *directory, config loop.Config) *start {
	t.Helper()
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

// until waits for a state of the tasks.
func (s *start) until(what string, is func(schedapi.Reader) bool) {
	s.t.Helper()
	for deadline := time.Now().Add(time.Minute); ; {
		done := false
		s.must(s.Read(s.t.Context(), func(r schedapi.Reader) { done = is(r) }))
		if done {
			return
		}
		if time.Now().After(deadline) {
			s.t.Fatal("it did not come to pass within a minute: " + what)
		}
		time.Sleep(time.Millisecond)
	}
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

// A disk that stands still delays the answers that need it. The scheduler itself goes on, and takes
// no further tasks when too many wait for the disk.
func TestAStuckDiskStopsOnlyWhatNeedsIt(t *testing.T) {
	d := newDirectory(t)
	s := begin(t, d, loop.Config{UnrecordedTasks: 8})
	c := s.open("c")
	w := s.join("w", nil)
	stuck := make(chan struct{})
	goOn := sync.OnceFunc(func() { close(stuck) })
	defer goOn()
	d.mu.Lock()
	d.stuck = stuck
	d.mu.Unlock()
	var group sync.WaitGroup
	answers := make(chan error, 100)
	refused := &sched.Error{}
	for i := range 100 {
		group.Go(func() {
			_, err := s.Submit(t.Context(), oneTask(c, fmt.Sprint(i)))
			answers <- err
		})
	}
	for err := range answers { // The others wait for the disk.
		if !errors.As(err, &refused) || refused.Kind != sched.ErrFull {
			t.Fatalf("a submission is answered with %v", err)
		}
		if len(answers) == 0 {
			break
		}
	}
	s.must(w.Report(t.Context(), schedapi.Inbound{}))
	goOn()
	group.Wait()
	s.submit(c, "later")
}

func oneTask(client ids.ClientID, key string) schedapi.Submission {
	return schedapi.Submission{Graph: sched.GraphSubmitted{
		Namespace: "n", Client: client, Ops: []sched.OpSpec{{Kind: sched.OpNative, Name: "op"}},
		Tasks: []sched.TaskSpec{{Key: key, Hold: true}}, Retention: time.Hour,
	}}
}

// A full disk takes the scheduler nothing but new records: workers come back, watches are opened,
// and locks, variables and drains go on.
func TestAFullDiskRefusesOnlyWhatNeedsARecord(t *testing.T) {
	s := fresh(t)
	ctx := t.Context()
	c := s.open("c")
	at := schedapi.Place{Client: c}
	w := s.join("w", nil)
	k := s.submit(c, "k")
	w.succeed(k)
	acquired := coord.Call{ID: "a", Ask: coord.Acquire{Names: []string{"l"}, Limit: 1, Needed: 1}}
	_, err := s.Ask(ctx, at, acquired)
	s.must(err)
	s.must(s.SetVariable(ctx, at, "v", coord.Value{Keys: []string{"k"}}))
	refused := func(what string, err error) {
		t.Helper()
		var journal *schedapi.Error
		if !errors.As(err, &journal) || journal.Kind != schedapi.ErrJournal {
			t.Errorf("%s, with a full disk: %v", what, err)
		}
	}
	goesOn := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Errorf("%s, with a full disk: %v", what, err)
		}
	}
	s.directory.breakNow(errDisk)
	for range 2 {
		_, err = s.OpenClient(ctx, schedapi.ClientSpec{Namespace: "n"})
		refused("a new client", err)
	}
	_, err = s.Submit(ctx, oneTask(c, "more"))
	refused("a submission", err)
	_, err = s.Register(ctx, schedapi.Registration{Worker: sched.WorkerRegistered{Name: "new", Incarnation: "new", Slots: 1}})
	refused("a new worker", err)

	w.Disconnect()
	w = s.join("w", w)
	s.is(k, sched.TaskSucceeded)
	watch, err := s.WatchTasks(ctx, c, 0)
	goesOn("a watch", err)
	if err == nil {
		watch.Close()
	}
	_, err = s.Await(ctx, "n", "k")
	goesOn("a call that waits for a result", err)
	goesOn("an acknowledgement", s.Acknowledge(ctx, c, "a"))
	goesOn("a lock that is given back", s.ReleaseLocks(ctx, c, "a", []string{"l"}))
	goesOn("a call that is withdrawn", s.Withdraw(ctx, c, "b"))
	refused("a variable", s.SetVariable(ctx, at, "v", coord.Value{}))
	_, err = s.Ask(ctx, at, coord.Call{ID: "b", Ask: coord.Acquire{Names: []string{"l"}, Limit: 1, Needed: 1}})
	refused("a lock", err)
	_, err = s.Ask(ctx, at, coord.Call{ID: "r", Ask: coord.ReadVariable{Name: "v"}})
	goesOn("a read of a variable", err)
	_, err = s.Queue(ctx, at, "q")
	goesOn("the state of a queue", err)
	goesOn("the end of a drain", s.UndoDrains(ctx, []string{"w"}))
	refused("a drain", s.DrainWorkers(ctx, sched.DrainOrdered{Workers: []ids.WorkerID{w.Worker()}, Purpose: copies.DrainKeep}))
	goesOn("the renewal of a lease", s.RenewClient(ctx, c))

	s.directory.breakNow(nil)
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if _, err = s.OpenClient(ctx, schedapi.ClientSpec{Namespace: "n"}); err == nil || time.Now().After(deadline) {
			break
		}
	}
	s.must(err)
}

// A release that the disk refuses ends with an error, although its task is gone: a crash brings the
// task back. It goes for good when the client repeats the release, as clients do, or when the lease
// of the client ends. (docs/running.md: the disk is full.)
func TestAReleaseThatTheDiskRefusesMustBeRepeated(t *testing.T) {
	s := fresh(t)
	ctx := t.Context()
	stays := s.open("stays")
	opened, err := s.OpenClient(ctx, schedapi.ClientSpec{Name: "ends", Namespace: "n", TTL: time.Second})
	s.must(err)
	w := s.join("w", nil)
	k, e := s.submit(stays, "k"), s.submit(opened.ID, "e")
	w.succeed(k)
	w.succeed(e)
	s.must(s.Recorded(ctx))
	known := func(task ids.TaskID) (known bool) {
		s.must(s.Read(ctx, func(r schedapi.Reader) { _, known = r.Task(task) }))
		return known
	}

	s.directory.breakNow(errDisk)
	for range 2 { // The second one finds nothing to release.
		var refused *schedapi.Error
		if err := s.Release(ctx, stays, schedapi.TaskSet{Tasks: []ids.TaskID{k}}); !errors.As(err, &refused) || refused.Kind != schedapi.ErrJournal {
			t.Errorf("with a full disk a release ends with %v", err)
		}
		if known(k) {
			t.Error("with a full disk a released task stays")
		}
	}
	_ = s.CloseClient(ctx, opened.ID) // It fails, too.
	if known(e) {
		t.Error("with a full disk the task of a client that was closed stays")
	}

	s = s.restart()
	if !known(k) {
		t.Error("the released task is not wanted after the crash, and nothing says so")
	}
	s.join("w", w)
	s.is(k, sched.TaskSucceeded)
	s.must(s.Release(ctx, stays, schedapi.TaskSet{Tasks: []ids.TaskID{k}}))
	if known(k) {
		t.Error("the release that was repeated has no effect")
	}
	s.until("the lease of the other client ends", func(r schedapi.Reader) bool {
		_, wanted := r.Task(e)
		return !wanted
	})
	s.must(s.Recorded(ctx))
	s = s.restart()
	if known(k) || known(e) {
		t.Error("a released task came back")
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

// A start whose record is not durable gives out nothing: the next one would give out the same
// numbers.
func TestAStartWaitsForItsRecord(t *testing.T) {
	for _, heal := range []bool{false, true} {
		d := newDirectory(t)
		d.fault, d.sound = errDisk, 1 // The head of the first segment can be written.
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		l := loop.New(loop.Config{Cluster: schedapi.Cluster{Life: 1}})
		restored := make(chan error, 1)
		go func() { restored <- l.Restore(ctx, journal.Config{Files: d, RetryTime: time.Millisecond}) }()
		deadline := time.Now().Add(time.Minute)
		for failed := 0; failed < 3; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("the start has tried its record %d times in a minute, want 3", failed)
			}
			d.mu.Lock()
			failed = d.failed
			d.mu.Unlock()
			select {
			case err := <-restored:
				t.Fatalf("the start ends before its record is durable: %v", err)
			default:
			}
		}
		if heal {
			d.breakNow(nil)
		} else {
			cancel()
		}
		if err := <-restored; (err == nil) != heal {
			t.Errorf("the start ends with %v, disk healed: %v", err, heal)
		}
		if begun, err := journal.Identify(d); err != nil || (begun != nil) != heal {
			t.Errorf("in the journal is %v, disk healed: %v; %v", begun, heal, err)
		}
		_ = l.CloseJournal() // Its disk may be broken.
	}
}

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
