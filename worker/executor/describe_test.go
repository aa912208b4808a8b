package executor_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/worker/executor"
	"github.com/millrace/millrace/worker/workertest"
)

func described(t *testing.T, p *pools, limit uint32) *millracev1.DescribeExecutorsResponse {
	t.Helper()
	r, err := (&executor.Service{Pools: p.Pools}).DescribeExecutors(t.Context(), &millracev1.DescribeExecutorsRequest{Limit: limit})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// A description tells of each process what it runs, and since when.
func TestDescribeExecutors(t *testing.T) {
	p := newPools(t, 1)
	if r := described(t, p, 0); r.GetProcessCount() != 0 || len(r.GetProcesses()) != 0 {
		t.Fatalf("the description has started processes: %v", r)
	}
	module := "def hold(path):\n    open(path).read()\n"
	if err := os.WriteFile(filepath.Join(p.modules, "holding.py"), []byte(module), 0o600); err != nil {
		t.Fatal(err)
	}
	gate := filepath.Join(t.TempDir(), "gate")
	if err := unix.Mkfifo(gate, 0o600); err != nil {
		t.Fatal(err)
	}
	op := &millracev1.Op{Kind: millracev1.OpKind_OP_KIND_PYTHON_IMPORT, Name: "holding:hold"}
	before := time.Now()
	p.Start("python", 0, &executor.Run{Ref: attemptOne(7), Op: op, Arguments: workertest.Arguments(gate), Key: "held"})
	p.Start("python", 0, &executor.Run{Ref: attemptOne(8), Op: op, Arguments: workertest.Arguments(os.DevNull)})
	open, err := os.OpenFile(gate, os.O_WRONLY, 0) // returns when the run has begun
	if err != nil {
		t.Fatal(err)
	}
	x := described(t, p, 0).GetProcesses()[0]
	if x.GetKind() != "python" || x.Slot == nil || x.GetSlot() != 0 || x.GetState() != millracev1.ExecutorState_EXECUTOR_STATE_RUNNING ||
		x.GetTaskId() != 7 || x.GetAttempt() != 1 || x.GetKey() != "held" || x.GetOp() != op.GetName() ||
		x.GetQueuedTasks() != 1 || x.GetFinishedTasks() != 0 || x.GetMemoryBytes() == 0 || x.GetLanguage() == "" {
		t.Errorf("a busy process: %v", x)
	}
	created, since := x.GetCreateTime().AsTime(), x.GetStateTime().AsTime()
	if created.Before(before) || since.Before(created) || since.After(time.Now()) {
		t.Errorf("created %v, in its state since %v, and the run was sent after %v", created, since, before)
	}
	pid := x.GetPid()
	if err := open.Close(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if out := p.result(t); out.Error != nil {
			t.Fatal(out.Error)
		}
	}
	x = described(t, p, 0).GetProcesses()[0]
	if x.GetPid() != pid || x.GetState() != millracev1.ExecutorState_EXECUTOR_STATE_IDLE || x.GetTaskId() != 0 ||
		x.GetQueuedTasks() != 0 || x.GetFinishedTasks() != 2 || x.GetStateTime().AsTime().Before(since) {
		t.Errorf("an idle process: %v", x)
	}
	if got := p.pid(t); int64(got) != pid {
		t.Errorf("the process is %d, not %d", got, pid)
	}
	spare := millracev1.ExecutorState_EXECUTOR_STATE_STARTING
	for end := time.Now().Add(workertest.EventTimeout); spare == millracev1.ExecutorState_EXECUTOR_STATE_STARTING; time.Sleep(time.Millisecond) {
		if r := described(t, p, 0); r.GetProcessCount() == 2 {
			x := r.GetProcesses()[1]
			if spare = x.GetState(); x.Slot != nil || x.GetPid() == pid || x.GetTaskId() != 0 {
				t.Fatalf("a spare process: %v", x)
			}
		}
		if time.Now().After(end) {
			t.Fatal("there is no spare process")
		}
	}
	if spare != millracev1.ExecutorState_EXECUTOR_STATE_SPARE {
		t.Errorf("a process without a slot is %v", spare)
	}
	if r := described(t, p, 1); r.GetProcessCount() != 2 || len(r.GetProcesses()) != 1 {
		t.Errorf("%d of %d processes, and the limit is 1", len(r.GetProcesses()), r.GetProcessCount())
	}
}
