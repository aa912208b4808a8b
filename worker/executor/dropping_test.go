package executor_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/worker/executor"
	"github.com/millrace/millrace/worker/lifecycle"
	"github.com/millrace/millrace/worker/workertest"
)

// An attempt that a process has dropped may be given to the same process again: its worker took it
// back from behind a long run and found no other process, or another life of the scheduler uses
// the same numbers. An executor that remembered the numbers of dropped runs never answered.
func TestDroppedRunIsGivenToTheSameProcessAgain(t *testing.T) {
	p := newPools(t, 0)
	module := "def hold(path):\n    open(path).read()\n"
	if err := os.WriteFile(filepath.Join(p.modules, "holding.py"), []byte(module), 0o600); err != nil {
		t.Fatal(err)
	}
	exec := func(name string) *millracev1.Op {
		return &millracev1.Op{Kind: millracev1.OpKind_OP_KIND_EXEC, Name: "echo/" + name}
	}
	python := func(name string) *millracev1.Op {
		return &millracev1.Op{Kind: millracev1.OpKind_OP_KIND_PYTHON_IMPORT, Name: name}
	}
	for _, kind := range []struct {
		name        string
		hold, quick *millracev1.Op
		// holding and short are the arguments of the two ops.
		holding func(path string) []byte
		short   []byte
	}{
		{"echo", exec("wait"), exec("upper"), func(path string) []byte { return workertest.Arguments("", path) }, workertest.Arguments("a")},
		{"python", python("holding:hold"), python("builtins:abs"), func(path string) []byte { return workertest.Arguments(path) }, workertest.Arguments(-3)},
	} {
		t.Run(kind.name, func(t *testing.T) {
			gate := filepath.Join(t.TempDir(), "gate")
			if err := unix.Mkfifo(gate, 0o600); err != nil {
				t.Fatal(err)
			}
			start := func(task int, op *millracev1.Op, arguments []byte) {
				p.Start(kind.name, 0, &executor.Run{Ref: attemptOne(task), Op: op, Arguments: arguments})
			}
			ended := func(task int) executor.Result {
				t.Helper()
				select {
				case out := <-p.results:
					if out.Ref != attemptOne(task) {
						t.Fatalf("a result of %s, want one of task %d", out.Ref, task)
					}
					return out
				case <-time.After(workertest.EventTimeout):
					t.Fatalf("task %d has no result", task)
					return executor.Result{}
				}
			}
			start(1, kind.hold, kind.holding(gate))
			open, err := os.OpenFile(gate, os.O_WRONLY, 0) // returns when the run has begun
			if err != nil {
				t.Fatal(err)
			}
			for task := 2; task <= 3; task++ {
				start(task, kind.quick, kind.short)
			}
			for range 2 {
				p.TakeBack(kind.name, 0, attemptOne(2))
				if out := ended(2); !out.Returned {
					t.Errorf("taken back: %+v", out)
				}
				start(2, kind.quick, kind.short)
			}
			if err := open.Close(); err != nil {
				t.Fatal(err)
			}
			for _, task := range []int{1, 3, 2} { // in the order in which the process was given them
				if out := ended(task); out.Outcome != lifecycle.Succeeded {
					t.Errorf("task %d: %+v", task, out)
				}
			}
		})
	}
}

func attemptOne(task int) lifecycle.Ref { return lifecycle.Ref{Task: ids.TaskID(task), Attempt: 1} }
