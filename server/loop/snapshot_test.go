package loop_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/coord"
	"github.com/millrace/millrace/server/copies"
	"github.com/millrace/millrace/server/functions"
	"github.com/millrace/millrace/server/loop"
	"github.com/millrace/millrace/server/plugins"
	"github.com/millrace/millrace/server/sched"
	"github.com/millrace/millrace/server/schedapi"
	"github.com/millrace/millrace/server/templates"
)

// snapshots makes requests until two more snapshots were taken: one of them has begun after the
// call.
func (s *start) snapshots() {
	s.t.Helper()
	before := s.Journal().Snapshots
	for deadline := time.Now().Add(patience); s.Journal().Snapshots < before+2; {
		s.must(s.CloseClient(s.t.Context(), s.open("another")))
		if time.Now().After(deadline) {
			s.t.Fatalf("no snapshots are taken: %+v", s.Journal())
		}
	}
}

// All that was accepted is in a snapshot, without the log of before it.
func TestASnapshotHasAllThatWasAccepted(t *testing.T) {
	d := newDirectory(t)
	d.snapshotBytes = 1
	s := begin(t, d, loop.Config{})
	ctx := t.Context()
	owned, err := s.OpenClient(ctx, schedapi.ClientSpec{Name: "owned", Namespace: "n", TTL: time.Hour, Owner: "somebody"})
	s.must(err)
	a := s.open("a")
	w := s.join("w", nil)
	function := functions.Function{Hash: ids.FunctionHash{7}, Payload: []byte(strings.Repeat("f", 70000)), Language: "python"}
	accepted, err := s.Submit(ctx, schedapi.Submission{
		Graph: sched.GraphSubmitted{
			Namespace: "n", Client: a, Name: "g", RequestID: "r", Ops: []sched.OpSpec{{Kind: sched.OpPythonPickle, Name: "f", Function: function.Hash}},
			Tasks: []sched.TaskSpec{{Key: "p", Hold: true, Arguments: slices.Repeat([]byte("x"), 70000)}}, Retention: time.Hour,
		},
		Functions: []functions.Function{function}, Needed: []ids.FunctionHash{function.Hash},
	})
	s.must(err)
	s.submit(a, "k")
	s.submit(a, "k2", "k")
	_, err = s.Publish(ctx, schedapi.DatasetSpec{Namespace: "n", Name: "d", Keys: []string{"k"}, Value: []byte("v")})
	s.must(err)
	at := schedapi.Place{Client: a}
	s.must(s.SetVariable(ctx, at, "v", coord.Value{Data: []byte("v"), Keys: []string{"k"}}))
	lock := s.ask(at, acquire("1", "l"))
	s.change(func(m *plugins.Machine) []plugins.Effect { return m.Register(1, "plugin", []byte("body")) })
	s.define("n", 7)
	s.must(s.DrainWorkers(ctx, sched.DrainOrdered{Workers: []ids.WorkerID{w.Worker()}, Purpose: copies.DrainKeep, Reason: "a loud fan"}))
	before := s.keys()

	check := func(how string) {
		t.Helper()
		if after := s.keys(); !slices.Equal(before, after) {
			t.Fatalf("%s: the tasks are %q, and not %q", how, after, before)
		}
		if owner, known := s.OwnerOf(owned.ID); !known || owner != "somebody" {
			t.Errorf("%s: the owner of a client is %q, %t", how, owner, known)
		}
		snapshot, err := s.Snapshot(ctx)
		s.must(err)
		if d := snapshot.Dataset("n", "d"); d == nil || !slices.Equal(d.Keys, []string{"k"}) || string(d.Value) != "v" {
			t.Errorf("%s: the dataset is %+v", how, d)
		}
		if answer := s.ask(at, coord.Call{Ask: coord.ReadVariable{Name: "v"}}); len(answer.Values) != 1 || string(answer.Values[0].Data) != "v" {
			t.Errorf("%s: the variable is %+v", how, answer)
		}
		if again := s.ask(at, acquire("1", "l")); !again.Met || again.Fence != lock.Fence {
			t.Errorf("%s: the lock is %+v", how, again)
		}
		if list := s.change(func(m *plugins.Machine) []plugins.Effect { return m.Join(1, "w") })[0].Plugins; len(list) != 1 || string(list[0].Body) != "body" {
			t.Errorf("%s: the plugins are %+v", how, list)
		}
		if s.Template("n", templates.Hash{7}) == nil {
			t.Errorf("%s: the template is gone", how)
		}
		next, err := s.Submit(ctx, schedapi.Submission{
			Graph: sched.GraphSubmitted{
				Namespace: "n", Client: a, Graph: accepted.Graph, Ops: []sched.OpSpec{{Kind: sched.OpPythonPickle, Name: "f", Function: function.Hash}},
				Tasks: []sched.TaskSpec{{Key: "again " + how}}, Retention: time.Hour,
			},
			Needed: []ids.FunctionHash{function.Hash},
		})
		s.must(err)
		if len(next.MissingFunctions) > 0 {
			t.Errorf("%s: the function is gone", how)
		}
		before = s.keys()
		w = s.join("w", w)
		if reason, drained := s.drained(w); !drained || reason != "a loud fan" {
			t.Errorf("%s: the worker is drained: %t, because of %q", how, drained, reason)
		}
	}
	s.snapshots()
	s = s.restart()
	check("after a kill")
	s = s.stop()
	check("after a stop")
	s.snapshots()
	s = s.restart()
	check("after another kill")
	if other := s.join("other", nil); other.Worker() <= w.Worker() {
		t.Errorf("the worker %s came after %s", other.Worker(), w.Worker())
	}
}

// pass opens clients, which submit a task and close, one after the other until done.
func (s *start) pass(done <-chan struct{}) error {
	for {
		select {
		case <-done:
			return nil
		default:
		}
		c, err := s.tryOpen("passing")
		if err == nil {
			_, err = s.trySubmit(c, fmt.Sprint("passing", c))
		}
		if err == nil {
			err = s.CloseClient(s.t.Context(), c)
		}
		if err != nil {
			return fmt.Errorf("a passing client: %w", err)
		}
	}
}

// Snapshots are taken while clients submit and close, and the scheduler is killed at any time. No
// acknowledged task is lost.
func TestSnapshotsAreTakenUnderLoad(t *testing.T) {
	d := newDirectory(t)
	d.snapshotBytes = 1
	s := begin(t, d, loop.Config{})
	keeper := s.open("keeper")
	submitted := 0
	for round := range 3 {
		taken := s.Journal().Snapshots
		done, passed := make(chan struct{}), make(chan error, 1)
		go func(s *start) { passed <- s.pass(done) }(s)
		deadline := time.Now().Add(patience)
		for n := 0; n < 20 || s.Journal().Snapshots < taken+2; n++ {
			s.submit(keeper, fmt.Sprint("kept", submitted))
			submitted++
			if time.Now().After(deadline) {
				t.Errorf("round %d: no snapshots are taken: %+v", round, s.Journal())
				break
			}
		}
		close(done)
		s.must(<-passed)
		s = s.restart()
		kept := 0
		for _, task := range s.tasks() {
			if strings.Contains(task, "kept") {
				kept++
			}
		}
		if kept != submitted {
			t.Fatalf("round %d: %d tasks are kept of %d", round, kept, submitted)
		}
	}
}

// A journal keeps the arguments and the functions of tasks only as long as a task has them.
func TestTheJournalForgetsWhatNobodyHolds(t *testing.T) {
	const size = 300_000
	d := newDirectory(t)
	d.snapshotBytes = 1
	s := begin(t, d, loop.Config{})
	random := rand.NewChaCha8([32]byte{1})
	noise := func() []byte {
		b := make([]byte, size)
		_, _ = random.Read(b) // It never fails.
		return b
	}
	function := functions.Function{Hash: ids.FunctionHash{7}, Payload: noise(), Language: "python"}
	client := s.open("a")
	_, err := s.Submit(t.Context(), schedapi.Submission{
		Graph: sched.GraphSubmitted{
			Namespace: "n", Client: client, Ops: []sched.OpSpec{{Kind: sched.OpPythonPickle, Name: "f", Function: function.Hash}},
			Tasks: []sched.TaskSpec{{Key: "p", Hold: true, Arguments: noise()}},
		},
		Functions: []functions.Function{function}, Needed: []ids.FunctionHash{function.Hash},
	})
	s.must(err)
	s.snapshots()
	if kept := s.Journal().Bytes; kept < 2*size {
		t.Errorf("%d bytes are kept, and the task is held", kept)
	}
	s = s.stop() // It begins another file of values. The present one stays, whatever is in it.
	s.must(s.CloseClient(t.Context(), client))
	s.snapshots()
	s.until(fmt.Sprintf("fewer than %d bytes are kept, since nobody holds the task", size), func(schedapi.Reader) bool { return s.Journal().Bytes < size })
}
