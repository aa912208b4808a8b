package executor_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/millrace/millrace/worker/workertest"
)

// leaves is a module with functions for tasks that leave processes behind. Each function returns
// the pid of a process that is in another session and not a child of its executor.
const leaves = `
import os, signal

def leave(*command):
    r, w = os.pipe()
    if os.fork() == 0:
        os.setsid()
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            for fd in (0, 1, 2):
                os.dup2(os.open(os.devnull, os.O_RDWR), fd)
            os.execv(command[0], command)
        os.write(w, b"%d" % pid)
        os._exit(0)
    os.wait()
    return int(os.read(r, 20))

def stays():
    return leave("/bin/sleep", "1000")

def ends():
    return leave("/bin/true")

def children():
    pids = [os.fork() or os.execv("/bin/sleep", ["sleep", "1000"]) for _ in range(20)]
    pids += [os.fork() or os._exit(0) for _ in range(20)]
    return pids[0]
`

func newLeaving(t *testing.T) *pools {
	t.Helper()
	p := newPools(t, 0)
	if err := os.WriteFile(filepath.Join(p.modules, "leaves.py"), []byte(leaves), 0o600); err != nil {
		t.Fatal(err)
	}
	return p
}

// waitForEnd waits until a process has ended and been reaped.
func waitForEnd(t *testing.T, pid int) {
	t.Helper()
	for limit := time.Now().Add(workertest.EventTimeout); time.Now().Before(limit); time.Sleep(time.Millisecond) {
		if _, err := os.Stat(fmt.Sprint("/proc/", pid)); err != nil {
			return
		}
	}
	t.Errorf("%d is still there", pid)
}

// waitForProgram waits until a program that a task has left behind is seen. Without that, a test of
// its end tests nothing. A process has no environment for a moment while it starts a program.
func (p *pools) waitForProgram(t *testing.T, pid int) {
	t.Helper()
	for limit := time.Now().Add(workertest.EventTimeout); !slices.Contains(p.processes(), pid); time.Sleep(time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatalf("the program %d, which a task has left behind, was ended before its executor", pid)
		}
	}
}

func TestNothingOutlivesAnExecutor(t *testing.T) {
	p := newLeaving(t)
	first := p.pid(t)
	left := int(p.call(t, "python", "leaves:stays").GetIntValue())
	p.call(t, "python", "leaves:children")
	p.waitForProgram(t, left)
	p.end(t, first)
	// The next process begins when all processes that the previous one left behind have ended.
	if now := p.pid(t); now == first {
		t.Fatal("the dead process works")
	} else if all := p.processes(); !slices.Equal(all, []int{now}) {
		t.Errorf("processes %v, and only %d should live", all, now)
	}
	waitForEnd(t, left)
	// Closing the pools leaves no process either; newPools checks that.
	p.call(t, "python", "leaves:stays")
	p.call(t, "python", "leaves:children")
}

func TestOrphansOfALivingExecutorAreReapedAndNotKilled(t *testing.T) {
	p := newLeaving(t)
	stays := int(p.call(t, "python", "leaves:stays").GetIntValue())
	waitForEnd(t, int(p.call(t, "python", "leaves:ends").GetIntValue()))
	p.call(t, "echo", "upper", "x")
	p.waitForProgram(t, stays)
}
