package loop_test

import (
	"context"
	"errors"
	"fmt"
	"os"
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
	// when the disk goes on: until then a write takes for ever, and reached gets a value for it, if
	// it has room.
	fault   error
	stuck   chan struct{}
	reached chan struct{}
	// snapshotBytes is the least size of the log from which a snapshot is taken; 0: the default.
	snapshotBytes int
	// sound counts the writes that succeed before the fault. failed gets a value for each write
	// that fails, if it has room.
	sound  int
	failed chan struct{}
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

// mend lets writes succeed again, and waits until the disk has taken all.
func (s *start) mend() {
	s.t.Helper()
	s.directory.breakNow(nil)
	err := s.Recorded(s.t.Context())
	if err != nil { // by a write that had begun
		err = s.Recorded(s.t.Context())
	}
	s.must(err)
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
	b.directory.mu.Unlock()
	if stuck != nil {
		select {
		case b.directory.reached <- struct{}{}:
		default:
		}
		<-stuck
	}
	if fault == nil {
		return b.File.Write(p)
	}
	select {
	case b.directory.failed <- struct{}{}:
	default:
	}
	return 0, fault
}

// Sync does nothing: no test takes the power away.
func (b breakable) Sync() error { return nil }

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

	s.mend()
	s.open("later")
}

// A release that the disk refuses ends with an error, although its task is gone: a crash brings the
// task back. It goes for good when the client repeats the release, as clients do, or when the lease
// of the client ends. (docs/running.md: the disk is full.)
func TestAReleaseThatTheDiskRefusesMustBeRepeated(t *testing.T) {
	s := fresh(t)
	ctx := t.Context()
	stays := s.open("stays")
	ends := s.openShort("ends")
	w := s.join("w", nil)
	k, e := s.submit(stays, "k"), s.submit(ends, "e")
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
	_ = s.CloseClient(ctx, ends) // It fails, too.
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

// A start whose record is not durable gives out nothing: the next one would give out the same
// numbers.
func TestAStartWaitsForItsRecord(t *testing.T) {
	for _, heal := range []bool{false, true} {
		d := newDirectory(t)
		d.fault, d.sound = errDisk, 1 // The head of the first segment can be written.
		d.failed = make(chan struct{}, 1)
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		l := loop.New(loop.Config{Cluster: schedapi.Cluster{Life: 1}})
		restored := make(chan error, 1)
		go func() { restored <- l.Restore(ctx, journal.Config{Files: d, RetryTime: time.Millisecond}) }()
		for range 3 {
			select {
			case <-d.failed:
			case err := <-restored:
				t.Fatalf("the start ends before its record is durable: %v", err)
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

// Graphs, datasets and clients that are ended while the disk is full come back if the scheduler is
// killed. So a call that finds nothing to end fails like the first one, until the end is durable.
func TestAnEndThatTheDiskRefusesIsRefusedAgain(t *testing.T) {
	s := fresh(t)
	ctx := t.Context()
	c := s.open("c")
	w := s.join("w", nil)
	w.succeed(s.submit(c, "k"))
	detached, err := s.Submit(ctx, oneTask(0, "d"))
	s.must(err)
	w.succeed(detached.Tasks[0])
	_, err = s.Publish(ctx, schedapi.DatasetSpec{Client: c, Name: "d", Keys: []string{"k"}})
	s.must(err)
	ends := []struct {
		name string
		end  func() error
		gone sched.ErrorKind // the error if there is nothing to end; 0: none
	}{
		{"graph", func() error { return s.ReleaseGraph(ctx, sched.GraphReleased{Graph: detached.Graph}) }, sched.ErrUnknownGraph},
		{"dataset", func() error { return s.Unpublish(ctx, "n", "d") }, sched.ErrUnknownDataset},
		{"client", func() error { return s.CloseClient(ctx, c) }, 0},
	}
	s.directory.breakNow(errDisk)
	for _, e := range ends {
		for range 2 {
			var refused *schedapi.Error
			if err := e.end(); !errors.As(err, &refused) || refused.Kind != schedapi.ErrJournal {
				t.Errorf("the end of a %s, with a full disk: %v", e.name, err)
			}
		}
	}
	s.mend()
	for _, e := range ends {
		var gone *sched.Error
		if err := e.end(); e.gone != 0 && (!errors.As(err, &gone) || gone.Kind != e.gone) || e.gone == 0 && err != nil {
			t.Errorf("the end of a %s that has ended: %v", e.name, err)
		}
	}
}

// A call whose caller is gone ends while the disk stands still. A leader that was replaced ends all
// calls first, and its journal answers after that.
func TestCallsWithoutACallerWaitForNoDisk(t *testing.T) {
	d := newDirectory(t)
	s := begin(t, d, loop.Config{})
	c := s.open("c")
	k := s.submit(c, "k")
	stuck := make(chan struct{})
	defer close(stuck)
	d.mu.Lock()
	d.stuck = stuck
	d.mu.Unlock()
	for i := range 10 {
		for name, call := range map[string]func(ctx context.Context) error{
			"an acquisition": func(ctx context.Context) error {
				_, err := s.Ask(ctx, schedapi.Place{Client: c}, coord.Call{ID: fmt.Sprint(i), Ask: coord.Acquire{Names: []string{fmt.Sprint(i)}, Limit: 1, Needed: 1}})
				return err
			},
			"a wait for a result": func(ctx context.Context) error {
				_, err := s.Await(ctx, "n", "k")
				return err
			},
		} {
			before := s.Journal().Records
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- call(ctx) }()
			s.until(name+" is in the journal", func(schedapi.Reader) bool { return s.Journal().Records > before })
			cancel()
			select {
			case err := <-ended:
				if !errors.Is(err, context.Canceled) {
					t.Errorf("%s ends with %v", name, err)
				}
			case <-time.After(patience):
				t.Fatalf("%s waits for the disk although its caller is gone; task %v", name, k)
			}
		}
	}
}

// A scheduler that is told to stop while it starts takes nothing out of its journal.
func TestAStartThatIsEndedForgetsNothing(t *testing.T) {
	s := fresh(t)
	c := s.open("c")
	s.submit(c, "k")
	at := schedapi.Place{Client: c}
	_, err := s.Publish(t.Context(), schedapi.DatasetSpec{Client: c, Name: "d", Keys: []string{"k"}})
	s.must(err)
	s.must(s.SetVariable(t.Context(), at, "v", coord.Value{Keys: []string{"k"}}))
	s.end()

	d := s.directory.copied(t)
	ctx, cancel := context.WithCancel(t.Context())
	d.stuck, d.reached, d.snapshotBytes = make(chan struct{}), make(chan struct{}, 1), 64
	next := loop.New(s.config)
	ended := make(chan error, 1)
	go func() {
		ended <- next.Restore(ctx, journal.Config{Files: d, RetryTime: time.Millisecond, SnapshotBytes: d.snapshotBytes})
	}()
	<-d.reached
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the start ends with %v", err)
	}
	close(d.stuck)
	s.must(next.CloseJournal())

	d.stuck, d.snapshotBytes = nil, 0
	last := begin(t, d.copied(t), s.config)
	now, err := last.Snapshot(t.Context())
	s.must(err)
	if now.Dataset("n", "d") == nil {
		t.Error("the dataset is not there")
	}
	answer, err := last.Ask(t.Context(), at, coord.Call{Ask: coord.ReadVariable{Name: "v"}})
	if err != nil || !answer.Met {
		t.Errorf("the variable: %+v, %v", answer, err)
	}
}
