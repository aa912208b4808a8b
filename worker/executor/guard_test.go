package executor_test

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/worker/executor"
	"github.com/millrace/millrace/worker/lifecycle"
	"github.com/millrace/millrace/worker/tasklog"
	"github.com/millrace/millrace/worker/workertest"
)

// hogs is a Python module with functions that use memory. An interpreter itself has less than 60
// MiB here.
const hogs = `
import subprocess, sys
kept = []
def take(mib, gate):
    block = b"x" * (mib << 20)
    with open(gate) as f:  # blocks until the test opens the pipe for writing
        f.read()
    open(gate + ".freed", "w").close()  # before it is: runs may begin before this one ends
    del block
def keep(mib):
    kept.append(b"x" * (mib << 20))
def wait(mib, gate):  # keeps its memory, and waits for other tasks until the gate opens
    from millrace._connection import _slot
    block = b"x" * (mib << 20)
    _slot.current.during(lambda: open(gate).read())
def own(mib):  # like an actor, whose process must not end for being idle
    from millrace._connection import _slot
    _slot.current._out.needed()
    kept.append(b"x" * (mib << 20))
def child(mib, gate):
    subprocess.run([sys.executable, "-c", f"x = b'x' * ({mib} << 20); open({gate!r}).read()"])
`

// notices is a log that tells the messages that a test waits for.
type notices struct {
	slog.Handler
	seen chan string
}

func (n notices) Handle(ctx context.Context, r slog.Record) error {
	select {
	case n.seen <- r.Message:
	default:
	}
	return n.Handler.Handle(ctx, r)
}
func (n notices) WithAttrs(a []slog.Attr) slog.Handler {
	return notices{n.Handler.WithAttrs(a), n.seen}
}
func (n notices) WithGroup(s string) slog.Handler { return notices{n.Handler.WithGroup(s), n.seen} }

type guarded struct {
	*pools
	logs *tasklog.Logs
	seen chan string
	gate string
}

// guardedPools are pools with two Python processes and a limit of memory.
func guardedPools(t *testing.T, limit executor.MemoryLimit) *guarded {
	t.Helper()
	g := &guarded{logs: new(tasklog.Logs), seen: make(chan string, 1000), gate: filepath.Join(t.TempDir(), "gate")}
	g.pools = newPools(t, 1, func(c *executor.Config) {
		c.Processes, c.Memory, c.Logs = 2, limit, g.logs
		c.Log = slog.New(notices{c.Log.Handler(), g.seen})
	})
	if err := os.WriteFile(filepath.Join(g.modules, "hogs.py"), []byte(hogs), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(g.gate, 0o600); err != nil {
		t.Fatal(err)
	}
	return g
}

// await returns when the log has had a message that begins like this.
func (g *guarded) await(t *testing.T, beginning string) {
	t.Helper()
	for timeout := time.After(workertest.EventTimeout); ; {
		select {
		case message := <-g.seen:
			if strings.HasPrefix(message, beginning) {
				return
			}
		case <-timeout:
			t.Fatalf("the log has no message %q", beginning)
		}
	}
}

// open lets the function that waits at the gate go on.
func (g *guarded) open(t *testing.T) {
	t.Helper()
	f, err := os.OpenFile(g.gate, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_ = f.Close() // nothing was written
}

// A process is ended if functions use more than they may, and its run fails with the reason.
func TestFunctionsThatUseTooMuchMemoryAreEnded(t *testing.T) {
	for _, function := range []string{"hogs:take", "hogs:child"} {
		g := guardedPools(t, executor.MemoryLimit{Bytes: 400 << 20, Warn: 0.7, Pause: 0.8, End: 0.95})
		g.begin(t, 0, "python", function, 600, g.gate)
		out := g.result(t)
		if out.Outcome != lifecycle.ExecutorDied || out.Error.GetMetadata()["out_of_memory"] != "true" ||
			!strings.Contains(out.Error.GetMessage(), "of the 400 MiB of memory that they may use together (--function-memory-limit)") {
			t.Errorf("%s: %v %v, want an end for its memory", function, out.Outcome, out.Error)
		}
		// The next run has a new process.
		g.call(t, "python", "os:getpid")
	}
}

// A warning goes to the output of the task that uses most.
func TestFunctionsAreWarnedAboutTheirMemory(t *testing.T) {
	g := guardedPools(t, executor.MemoryLimit{Bytes: 400 << 20, Warn: 0.5})
	g.begin(t, 0, "python", "hogs:take", 300, g.gate)
	g.await(t, "functions use much memory")
	g.open(t)
	if out := g.result(t); out.Error != nil {
		t.Fatal(out.Error)
	}
	if text, _ := g.logs.Read(ids.TaskID(g.tasks)); !strings.HasPrefix(text, "millrace: warning: the functions of worker w use ") || strings.Contains(text, "above") {
		t.Errorf("the task's output is %q, want the warning alone: no other step is on", text)
	}
}

// While functions use much memory, no run begins; runs that were held back begin afterwards.
func TestNoRunBeginsWhileFunctionsUseMuchMemory(t *testing.T) {
	g := guardedPools(t, executor.MemoryLimit{Bytes: 400 << 20, Pause: 0.6})
	first := g.call(t, "python", "os:getpid").GetIntValue()
	g.begin(t, 0, "python", "hogs:take", 300, g.gate)
	g.await(t, "no task begins")
	// The other slot has no process yet, and the first one is at work.
	g.begin(t, 1, "python", "os.path:exists", g.gate+".freed")
	g.begin(t, 0, "python", "os.path:exists", g.gate+".freed")
	g.open(t)
	for range 3 {
		out := g.result(t)
		if out.Error != nil {
			t.Fatal(out.Ref, out.Error)
		}
		if out.Ref.Task != 2 && !workertest.Decode(t, out.Inline).GetBoolValue() {
			t.Errorf("%v began before there was memory", out.Ref)
		}
	}
	if now := g.call(t, "python", "os:getpid").GetIntValue(); now != first {
		t.Errorf("process %d works, not %d, which holds no memory", now, first)
	}
}

// An idle process that keeps much memory is replaced, so that runs can begin again.
func TestAnIdleProcessThatKeepsMemoryIsReplaced(t *testing.T) {
	g := guardedPools(t, executor.MemoryLimit{Bytes: 400 << 20, Pause: 0.6})
	first := g.call(t, "python", "os:getpid").GetIntValue()
	g.begin(t, 0, "python", "hogs:keep", 300)
	if out := g.result(t); out.Error != nil {
		t.Fatal(out.Error)
	}
	g.await(t, "an idle process that holds much memory is replaced")
	if now := g.call(t, "python", "os:getpid").GetIntValue(); now == first || slices.Contains(g.processes(), int(first)) {
		t.Errorf("process %d works after %d, which kept memory", now, first)
	}
	if n, last := g.Deaths(); n != 0 {
		t.Errorf("%d deaths are counted: %s", n, last)
	}
}

// A run that holds much memory and waits for other tasks does not hold these back: it could never
// end. A process that begins one of them is at work, and holds back the next.
func TestRunsBeginWhileOnlyWaitingOnesUseMuchMemory(t *testing.T) {
	g := guardedPools(t, executor.MemoryLimit{Bytes: 400 << 20, Pause: 0.6})
	g.begin(t, 0, "python", "hogs:wait", 300, g.gate)
	if out := g.result(t); !out.Blocked {
		t.Fatalf("%v, want word that the run waits", out)
	}
	if x := described(t, g.pools, 0).GetProcesses()[0]; x.GetState() != millracev1.ExecutorState_EXECUTOR_STATE_BLOCKED || x.GetTaskId() != 1 {
		t.Errorf("a process whose run waits: %v", x)
	}
	g.await(t, "no task begins")
	g.begin(t, 1, "python", "os:getpid") // the task that run 0 waits for
	if out := g.result(t); out.Error != nil || out.Ref.Task != 2 {
		t.Fatalf("%v %v, want the end of the task that the other one waits for", out.Ref, out.Error)
	}
	g.open(t)
	if out := g.result(t); !out.Unblocked {
		t.Fatalf("%v, want word that the run goes on", out)
	}
	g.Resume("python", 0, attemptOne(1))
	if out := g.result(t); out.Error != nil || out.Ref.Task != 1 {
		t.Fatalf("%v %v, want the end of the task that waited", out.Ref, out.Error)
	}
}

// A process that has an actor is not replaced while it is idle, and does not hold runs back.
func TestAProcessWithAnActorIsNotReplaced(t *testing.T) {
	g := guardedPools(t, executor.MemoryLimit{Bytes: 400 << 20, Pause: 0.6})
	first := g.call(t, "python", "os:getpid").GetIntValue()
	g.call(t, "python", "hogs:own", 300)
	g.await(t, "no task begins")
	if now := g.call(t, "python", "os:getpid").GetIntValue(); now != first {
		t.Errorf("process %d works after %d, which had an actor", now, first)
	}
}
