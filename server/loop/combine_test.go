package loop

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/members"
	"github.com/millrace/millrace/server/sched"
	"github.com/millrace/millrace/server/schedapi"
)

// running starts a loop that ends with the test. No worker is lost by its silence: on a busy
// machine a step of a test may take longer than a lease.
func running(t *testing.T) *Loop {
	t.Helper()
	l := New(Config{Cluster: schedapi.Cluster{WorkerLease: time.Hour}})
	ctx, cancel := context.WithCancel(context.Background())
	go l.Run(ctx)
	t.Cleanup(func() { cancel(); <-l.stopped })
	return l
}

// One graph of one task that waits for a worker, submitted by a client or detached.
func oneTask(client ids.ClientID, key string) schedapi.Submission {
	return schedapi.Submission{Graph: sched.GraphSubmitted{
		Namespace: "n", Client: client, Ops: []sched.OpSpec{{Kind: sched.OpNative, Name: "op"}},
		Tasks: []sched.TaskSpec{{Key: key, Hold: true}}, Retention: time.Hour,
	}}
}

// TestAReadWithoutAnythingNewNeedsNoLoop: the test holds the lock, so that neither the loop nor a
// caller can do any work.
func TestAReadWithoutAnythingNewNeedsNoLoop(t *testing.T) {
	l := running(t)
	client, err := l.OpenClient(t.Context(), schedapi.ClientSpec{Namespace: "n", TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Snapshot(t.Context()); err != nil {
		t.Fatal(err)
	}
	// A step that nobody was told of: the graph makes progress.
	l.owning.Lock()
	defer l.owning.Unlock()
	l.dirty.graph(1, l.now)
	read := make(chan schedapi.Snapshot, 1)
	go func() {
		snapshot, _ := l.Snapshot(t.Context())
		read <- snapshot
	}()
	select {
	case snapshot := <-read:
		if snapshot.Client(client.ID) == nil {
			t.Error("the client that was opened is not in the snapshot")
		}
	case <-time.After(5 * time.Minute):
		t.Error("the read waits for the loop")
	}
}

// TestEveryAcknowledgedCallIsInTheNextSnapshot: other calls go on at the same time, so the loop is
// busy and commits late.
func TestEveryAcknowledgedCallIsInTheNextSnapshot(t *testing.T) {
	l := running(t)
	ctx, cancel := context.WithCancel(t.Context())
	busy := make(chan struct{})
	go func() {
		defer close(busy)
		for ctx.Err() == nil {
			_ = l.post(ctx, func() { l.dirty.graph(1<<40, l.now) })
		}
	}()
	defer func() { cancel(); <-busy }()
	seen := func(what string, err error, is func(schedapi.Snapshot) bool) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		snapshot, err := l.Snapshot(ctx)
		if err != nil || !is(snapshot) {
			t.Fatalf("%s is not in the next snapshot; %v", what, err)
		}
	}
	for range 50 {
		client, err := l.OpenClient(ctx, schedapi.ClientSpec{Namespace: "n", TTL: time.Hour})
		seen("a new client", err, func(s schedapi.Snapshot) bool { return s.Client(client.ID) != nil })
		accepted, err := l.Submit(ctx, oneTask(client.ID, "k"))
		seen("a new graph", err, func(s schedapi.Snapshot) bool {
			return s.Graph(accepted.Graph) != nil && s.Client(client.ID).HeldTasks == 1
		})
		_, err = l.Publish(ctx, schedapi.DatasetSpec{Namespace: "n", Name: "d", Keys: []string{"k"}})
		seen("a new dataset", err, func(s schedapi.Snapshot) bool { return s.Dataset("n", "d") != nil })
		err = l.Unpublish(ctx, "n", "d")
		seen("the end of a dataset", err, func(s schedapi.Snapshot) bool { return s.Dataset("n", "d") == nil })
		_, err = l.Cancel(ctx, sched.TasksCancelled{}, schedapi.TaskSet{Tasks: accepted.Tasks})
		seen("a cancellation", err, func(s schedapi.Snapshot) bool { return s.Graph(accepted.Graph).State == schedapi.GraphCancelled })
		err = l.ReleaseGraph(ctx, sched.GraphReleased{Graph: accepted.Graph})
		seen("the end of a graph", err, func(s schedapi.Snapshot) bool { return s.Graph(accepted.Graph) == nil })
		err = l.CloseClient(ctx, client.ID)
		seen("the end of a client", err, func(s schedapi.Snapshot) bool { return s.Client(client.ID) == nil })
	}
	session, err := l.Register(ctx, schedapi.Registration{Worker: sched.WorkerRegistered{
		Name: "w", Incarnation: "i", Slots: 1, Executors: []string{"native"},
	}, DataAddress: "there:1"})
	if w := l.LastSnapshot().Worker(session.Worker()); err != nil || w == nil || w.DataAddress != "there:1" {
		t.Errorf("a registered worker in the last snapshot: %v, %v", w, err)
	}
	err = l.ReportDeath(ctx, members.Died{Name: "w"})
	seen("a death", err, func(s schedapi.Snapshot) bool { return s.Worker(session.Worker()).State == schedapi.WorkerLost })
}

// TestAWatchThatReportsTheLastTaskIsFollowedByTheEndOfItsGraph: clients ask for a graph when all
// its tasks have ended.
func TestAWatchThatReportsTheLastTaskIsFollowedByTheEndOfItsGraph(t *testing.T) {
	l := running(t)
	ctx := t.Context()
	session, err := l.Register(ctx, schedapi.Registration{Worker: sched.WorkerRegistered{
		Name: "w", Incarnation: "i", Slots: 1, MemoryBytes: 1 << 30, Executors: []string{"native"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	client, err := l.OpenClient(ctx, schedapi.ClientSpec{Namespace: "n", TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	watch, err := l.WatchTasks(ctx, client.ID, 0)
	if err != nil {
		t.Fatal(err)
	}
	for range 50 {
		accepted, err := l.Submit(ctx, oneTask(client.ID, "k"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := l.Snapshot(ctx); err != nil { // It commits: nothing is acknowledged any more.
			t.Fatal(err)
		}
		var out schedapi.Outbound
		for len(out.Assignments) == 0 {
			<-session.Wake()
			session.Take(&out)
		}
		if err := session.Report(ctx, schedapi.Inbound{Reports: []sched.Report{{
			Task: out.Assignments[0].Task, Attempt: out.Assignments[0].Attempt, Outcome: sched.OutcomeSucceeded, Inline: []byte{1},
		}}}); err != nil {
			t.Fatal(err)
		}
		for ended := false; !ended; {
			batch, err := watch.Next(ctx)
			if err != nil {
				t.Fatal(err)
			}
			for _, update := range batch.Updates {
				ended = ended || update.Task == accepted.Tasks[0] && update.State == sched.TaskSucceeded
			}
		}
		snapshot, err := l.Snapshot(ctx)
		if err != nil || snapshot.Graph(accepted.Graph).State != schedapi.GraphSucceeded {
			t.Fatalf("the graph after its last task: %+v, %v", snapshot.Graph(accepted.Graph), err)
		}
		if err := l.ReleaseGraph(ctx, sched.GraphReleased{Graph: accepted.Graph}); err != nil {
			t.Fatal(err)
		}
	}
}

// TestAnInlineStepOvertakesNothing: a closure that was posted before runs first.
func TestAnInlineStepOvertakesNothing(t *testing.T) {
	l := New(Config{})
	var order []string
	if err := l.post(t.Context(), func() { order = append(order, "posted") }); err != nil {
		t.Fatal(err)
	}
	if l.tryStepInline(func() { order = append(order, "inline") }) {
		t.Errorf("the order is %v", order)
	}
	ctx, cancel := context.WithCancel(t.Context())
	go l.Run(ctx)
	if err := l.inspect(ctx, func() { order = append(order, "called") }); err != nil || order[0] != "posted" || len(order) != 2 {
		t.Errorf("the order is %v; %v", order, err)
	}
	cancel()
	<-l.stopped
}

// TestAPanicOfAnInlineStepEndsTheProcess: the goroutines of calls recover panics.
func TestAPanicOfAnInlineStepEndsTheProcess(t *testing.T) {
	if os.Getenv("MILLRACE_TEST_PANIC") != "" {
		defer func() { _ = recover() }()
		New(Config{}).tryStepInline(func() { panic("a broken invariant") })
		return
	}
	command := exec.Command(os.Args[0], "-test.run=^TestAPanicOfAnInlineStepEndsTheProcess$")
	command.Env = append(os.Environ(), "MILLRACE_TEST_PANIC=1")
	output, err := command.CombinedOutput()
	if err == nil || !bytes.Contains(output, []byte("panic: a broken invariant")) || !bytes.Contains(output, []byte("combine_test.go")) {
		t.Errorf("the process went on: %v\n%s", err, output)
	}
}

// TestACommitBetweenACallAndAReadHidesNoCounter: commits of the loop mostly leave counters for
// later.
func TestACommitBetweenACallAndAReadHidesNoCounter(t *testing.T) {
	l := New(Config{})
	client, err := l.OpenClient(t.Context(), schedapi.ClientSpec{Namespace: "n", TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	held := func() uint64 {
		snapshot, err := l.Snapshot(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return snapshot.Client(client.ID).HeldTasks
	}
	accepted, err := l.Submit(t.Context(), oneTask(client.ID, "k"))
	if n := held(); err != nil || n != 1 {
		t.Fatalf("%d tasks are held after the submission, %v", n, err)
	}
	if err := l.Release(t.Context(), client.ID, schedapi.TaskSet{Tasks: accepted.Tasks}); err != nil {
		t.Fatal(err)
	}
	l.owning.Lock()
	l.commit()
	l.owning.Unlock()
	if n := held(); n != 0 {
		t.Errorf("%d tasks are held after their release", n)
	}
}
