package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	millrace "github.com/millrace/millrace/clients/go"
	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

// workerOf returns the newest incarnation of a worker.
func workerOf(t *testing.T, client *millrace.Client, name string) *millracev1.Worker {
	t.Helper()
	w, err := client.Worker(soon(t), name)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// numbered returns n float64 numbers that begin with the given one.
func numbered(first, n int) []float64 {
	numbers := make([]float64, n)
	for i := range numbers {
		numbers[i] = float64(first + i)
	}
	return numbers
}

// holds checks that a result consists of numbers that begin with the given one.
func holds(t *testing.T, f *millrace.Future, first, n int) {
	t.Helper()
	got, err := millrace.Get[[]float64](soon(t), f)
	if err != nil || len(got) != n || got[0] != float64(first) || got[n-1] != float64(first+n-1) {
		t.Errorf("%s: %d numbers, %v", f.Key(), len(got), err)
	}
}

// TestOperatorsDrainRestartAndRetireWorkers: the life of a worker under an operator, with the
// command line. No result is lost or computed again in it.
func TestOperatorsDrainRestartAndRetireWorkers(t *testing.T) {
	c := startCluster(t, "--workers", "1", "--memory-limit", "256MiB")
	second := c.worker(t, "--name", "second", "--memory-limit", "256MiB")
	client := c.dial(t)
	active(t, client, "host-0", "second-0")
	there := millrace.WithWorkers("second-0")
	const size = 1 << 17
	data, err := client.Scatter(soon(t), numbered(7, size), there)
	if err != nil {
		t.Fatal(err)
	}
	// The function records each of its runs.
	file := filepath.Join(t.TempDir(), "runs")
	code := fmt.Sprintf("(lambda f: [open(%q, 'a').write('x'), __import__('time').sleep(2), __import__('numpy').arange(5.0, 5.0 + %d)][2])(0)", file, size)
	computed, err := client.Submit(soon(t), millrace.Python("builtins:eval"), millrace.Args(code), millrace.WithPreferredWorkers("second-0"))
	if err != nil {
		t.Fatal(err)
	}
	runs := func() string {
		text, err := os.ReadFile(file)
		if err != nil {
			return ""
		}
		return string(text)
	}
	within(t, "the task runs", func() bool { return runs() == "x" })

	// The drain waits for the task, and hands over its result and the data.
	drained := c.succeed(t, "drain", "second-0", "--reason", "a loud fan", "--wait", "-o", "json")
	if dig(drained, "workers", 0, "state") != "WORKER_STATE_DRAINED" || dig(drained, "workers", 0, "drain", "reason") != "a loud fan" {
		t.Errorf("drained: %v", drained)
	}
	before := workerOf(t, client, "second-0")
	if d := before.GetDrain(); d.GetCopiedObjects() != 2 || d.GetCopiedBytes() < 2*8*size || d.GetRemainingObjects() != 0 {
		t.Errorf("the drain: %v", d)
	}
	if out, _, code := c.command(t, "", "get", "workers", "-o", "wide"); code != 0 || !strings.Contains(out, "keep: a loud fan") {
		t.Errorf("get workers: %s", out)
	}
	// It can be killed now. Its supervisor starts it again, and it still gets no tasks.
	if err := syscall.Kill(int(before.GetPid()), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	within(t, "the next process is drained", func() bool {
		w := workerOf(t, client, "second-0")
		return w.GetPid() != before.GetPid() && w.GetState() == millracev1.WorkerState_WORKER_STATE_DRAINED
	})
	holds(t, data, 7, size)
	holds(t, computed, 5, size)
	blocked, err := client.Submit(soon(t), millrace.Native("bench.noop"), millrace.Args(), there)
	if err != nil {
		t.Fatal(err)
	}
	within(t, "explain names the drain", func() bool {
		why, err := client.Explain(soon(t), blocked.Key())
		return err == nil && strings.Contains(why.GetExplanation(), "second-0: drained: a loud fan")
	})
	c.succeed(t, "drain", "second-0", "--undo", "-o", "json")
	if err := blocked.Wait(soon(t)); err != nil {
		t.Error(err)
	}

	// A restart is a new process and no death.
	if _, err := client.Scatter(soon(t), numbered(9, size), there); err != nil {
		t.Fatal(err)
	}
	more, err := client.Scatter(soon(t), numbered(11, size), there)
	if err != nil {
		t.Fatal(err)
	}
	old := workerOf(t, client, "second-0")
	// A wrong name among others is an error before any worker is restarted.
	for _, wrong := range []string{"nobody", "w99"} {
		if _, stderr, code := c.command(t, "", "restart", "second-0", wrong); code != 3 || !strings.Contains(stderr, wrong) {
			t.Errorf("restart of %s: exit code %d, %s", wrong, code, stderr)
		}
	}
	for _, args := range [][]string{{"restart", "second-0", ""}, {"rebalance", "second-0", ""}} {
		if _, stderr, code := c.command(t, "", args...); code != 2 || !strings.Contains(stderr, "worker 2 of 2 has an empty name") {
			t.Errorf("%s of an empty name: exit code %d, %s", args[0], code, stderr)
		}
	}
	if _, stderr, code := c.command(t, "", "restart", "second-0", "--within", "-1s"); code != 2 || !strings.Contains(stderr, "--within -1s: ") {
		t.Errorf("a negative limit: exit code %d, %s", code, stderr)
	}
	if err := client.RestartWorkers(soon(t), millrace.RetireOptions{}, "second-0", "nobody"); !errors.Is(err, millrace.ErrUnknownWorker) {
		t.Errorf("restart of nobody: %v", err)
	}
	if err := client.RestartWorkers(soon(t), millrace.RetireOptions{}); err == nil || !strings.Contains(err.Error(), "no worker is named") {
		t.Errorf("restart of none: %v", err)
	}
	if now := workerOf(t, client, "second-0"); now.GetIncarnation() != old.GetIncarnation() || now.GetState() != millracev1.WorkerState_WORKER_STATE_ACTIVE {
		t.Errorf("after wrong orders: %v", now)
	}
	c.succeed(t, "restart", "second-0", "host-0", "--reason", "a new driver", "-o", "json")
	again := workerOf(t, client, "second-0")
	if again.GetIncarnation() == old.GetIncarnation() || again.GetPid() == old.GetPid() || again.GetState() != millracev1.WorkerState_WORKER_STATE_ACTIVE || again.GetDeathCount() != 1 {
		t.Errorf("after the restart: %v", again)
	}
	for f, first := range map[*millrace.Future]int{data: 7, computed: 5, more: 11} {
		holds(t, f, first, size)
	}

	// Retired, the process and its supervisor end, and nothing is lost.
	c.succeed(t, "retire", "second-0", "--wait", "-o", "json")
	if code := second.code(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
	active(t, client, "host-0")
	for f, first := range map[*millrace.Future]int{data: 7, computed: 5, more: 11} {
		holds(t, f, first, size)
	}
	if runs() != "x" {
		t.Errorf("the task ran %d times", len(runs()))
	}
	if _, stderr, code := c.command(t, "", "retire", "second-0"); code != 3 || !strings.Contains(stderr, "lost") {
		t.Errorf("a worker that is gone: exit code %d, %s", code, stderr)
	}
}

// TestWorkerIsKilledInTheMiddleOfItsDrain: the only other worker has room for a part of the
// results. The drain says which of them stay, and why. Then the worker is killed: the results that
// were handed over are there, the next process is drained, and once that is undone it computes the
// others again.
func TestWorkerIsKilledInTheMiddleOfItsDrain(t *testing.T) {
	c := startCluster(t, "--workers", "1", "--memory-limit", "16MiB", "--spill-limit", "none")
	c.worker(t, "--name", "large", "--memory-limit", "256MiB")
	client := c.dial(t)
	victim := active(t, client, "host-0", "large-0")["large-0"]
	there := millrace.WithWorkers("large-0")
	const size, few, many = 1 << 17, 4, 30
	var scattered, computed []*millrace.Future
	for i := range few {
		f, err := client.Scatter(soon(t), numbered(i, size), there)
		if err != nil {
			t.Fatal(err)
		}
		scattered = append(scattered, f)
	}
	for i := range many {
		f, err := client.Submit(soon(t), millrace.Native("array.arange"), millrace.Args(float64(i), float64(i+size), 1.0), there)
		if err != nil {
			t.Fatal(err)
		}
		computed = append(computed, f)
		if err := f.Wait(soon(t)); err != nil {
			t.Fatal(err)
		}
	}
	c.succeed(t, "drain", "large-0", "-o", "json")
	var d *millracev1.WorkerDrain
	within(t, "all scattered results are copied, and nothing more can be", func() bool {
		w := workerOf(t, client, "large-0")
		if d = w.GetDrain(); w.GetState() != millracev1.WorkerState_WORKER_STATE_DRAINING {
			t.Fatalf("the drain: %v", w)
		}
		return d.GetCopiedObjects() >= few && d.GetCopiedObjects()+d.GetRemainingObjects() == few+many &&
			d.GetStayingObjects() > 0 && d.GetStayingObjects() == d.GetRemainingObjects()
	})
	within(t, "the command that waits says why it waits in vain", func() bool {
		_, stderr, code := c.command(t, "", "drain", "large-0", "--wait", "--timeout", "8s")
		if code != 6 {
			t.Fatalf("exit code %d: %s", code, stderr)
		}
		return strings.Contains(stderr, "stay") && strings.Contains(stderr, "has room for")
	})
	if o := d.GetStaying()[0]; o.GetKey() == "" || o.GetBytes() < 8*size || !strings.Contains(o.GetReason(), "host-0, has room for") {
		t.Errorf("it stays: %v", o)
	}
	if err := syscall.Kill(int(victim.GetPid()), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	within(t, "the next process is drained", func() bool {
		w := workerOf(t, client, "large-0")
		return w.GetPid() != victim.GetPid() && w.GetState() == millracev1.WorkerState_WORKER_STATE_DRAINED
	})
	for i, f := range scattered {
		holds(t, f, i, size)
	}
	if err := client.UndrainWorkers(soon(t), "large-0"); err != nil {
		t.Fatal(err)
	}
	for i, f := range computed {
		holds(t, f, i, size)
	}
}
