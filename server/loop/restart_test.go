package loop_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/coord"
	"github.com/millrace/millrace/server/journal"
	"github.com/millrace/millrace/server/loop"
	"github.com/millrace/millrace/server/sched"
	"github.com/millrace/millrace/server/schedapi"
)

// directory is the directory of a journal, in memory.
type directory struct {
	mu    sync.Mutex
	files map[string][]byte
	// fault is the error of each further write; nil: writes succeed.
	fault error
}

var errDisk = errors.New("the disk is broken")

func (d *directory) List() ([]string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Sorted(maps.Keys(d.files)), nil
}

func (d *directory) Read(name string) ([]byte, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.files[name]), nil
}

func (d *directory) Append(name string) (journal.File, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.files[name] = slices.Clip(d.files[name])
	return opened{d, name}, nil
}

func (d *directory) Rename(from, to string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.files[to] = d.files[from]
	delete(d.files, from)
	return nil
}

func (d *directory) Remove(name string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.files, name)
	return nil
}

func (d *directory) SyncNames() error { return nil }

// breakNow makes each further write fail; with nil, writes succeed again.
func (d *directory) breakNow(fault error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fault = fault
}

// copied is the directory as a scheduler finds it that starts now.
func (d *directory) copied() *directory {
	d.mu.Lock()
	defer d.mu.Unlock()
	return &directory{files: maps.Clone(d.files)}
}

type opened struct {
	directory *directory
	name      string
}

func (o opened) Write(p []byte) (int, error) {
	o.directory.mu.Lock()
	defer o.directory.mu.Unlock()
	if o.directory.fault != nil {
		return 0, o.directory.fault
	}
	o.directory.files[o.name] = append(slices.Clip(o.directory.files[o.name]), p...)
	return len(p), nil
}

func (o opened) Sync() error  { return nil }
func (o opened) Close() error { return nil }

func (o opened) Truncate(size int64) error {
	o.directory.mu.Lock()
	defer o.directory.mu.Unlock()
	o.directory.files[o.name] = o.directory.files[o.name][:size]
	return nil
}

// start is one start of a scheduler with a journal.
type start struct {
	*loop.Loop
	t         testing.TB
	directory *directory
	end       func()
}

// begin starts a scheduler with a journal. It fails the test if the start is refused.
func begin(t testing.TB, d *directory, config loop.Config) *start {
	t.Helper()
	config.Machine.RecordEnds = true
	config.Cluster.Life = 1
	s := &start{Loop: loop.New(config), t: t, directory: d}
	if err := s.Restore(journal.Config{Files: d, RetryTime: time.Millisecond}); err != nil {
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
func fresh(t testing.TB) *start {
	t.Helper()
	return begin(t, &directory{files: map[string][]byte{}}, loop.Config{})
}

// restart kills a scheduler, and starts the next one with what is on the disk at that time.
func (s *start) restart() *start {
	s.t.Helper()
	d := s.directory.copied()
	s.end()
	return begin(s.t, d, loop.Config{})
}

func (s *start) open(name string) ids.ClientID {
	s.t.Helper()
	c, err := s.OpenClient(s.t.Context(), schedapi.ClientSpec{Name: name, Namespace: "n", TTL: time.Hour})
	s.must(err)
	return c.ID
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
	accepted, err := s.Submit(s.t.Context(), schedapi.Submission{Graph: sched.GraphSubmitted{
		Namespace: "n", Client: c, Ops: []sched.OpSpec{{Kind: sched.OpNative, Name: "op"}},
		Tasks: []sched.TaskSpec{{Key: key, Hold: true, Inputs: inputs}}, Retention: time.Hour,
	}})
	s.must(err)
	return accepted.Tasks[0]
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
