package executor_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/worker/executor"
	"github.com/millrace/millrace/worker/workertest"
)

func runFunction(t *testing.T, p *pools, r *millracev1.RunFunctionRequest) (*millracev1.RunFunctionResponse, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), workertest.EventTimeout)
	defer cancel()
	return (&executor.Service{Pools: p.Pools}).RunFunction(ctx, r)
}

// only returns the result of the one process that answers.
func only(t *testing.T, p *pools, name string, arguments ...any) *millracev1.FunctionResult {
	t.Helper()
	given := &millracev1.Arguments{}
	for _, v := range arguments {
		given.Positional = append(given.Positional, workertest.ValueOf(v))
	}
	response, err := runFunction(t, p, &millracev1.RunFunctionRequest{Name: name, Arguments: given})
	if err != nil {
		t.Fatal(err)
	}
	if n := len(response.GetResults()); n != 1 {
		t.Fatalf("%d processes answered: %v", n, response)
	}
	return response.GetResults()[0]
}

// A call is answered while the process runs a task that does not end, in every language.
func TestCallIsAnsweredByBusyProcess(t *testing.T) {
	p := newPools(t, 0)
	module := "def hold(path):\n    open(path).read()\n"
	if err := os.WriteFile(filepath.Join(p.modules, "holding.py"), []byte(module), 0o600); err != nil {
		t.Fatal(err)
	}
	for kind, x := range map[string]struct {
		hold *millracev1.Op
		args func(path string) []byte
		pid  string
	}{
		"echo":   {&millracev1.Op{Kind: millracev1.OpKind_OP_KIND_EXEC, Name: "echo/wait"}, func(path string) []byte { return workertest.Arguments("", path) }, "echo/pid"},
		"python": {&millracev1.Op{Kind: millracev1.OpKind_OP_KIND_PYTHON_IMPORT, Name: "holding:hold"}, func(path string) []byte { return workertest.Arguments(path) }, "os:getpid"},
	} {
		t.Run(kind, func(t *testing.T) {
			gate := filepath.Join(t.TempDir(), "gate")
			if err := unix.Mkfifo(gate, 0o600); err != nil {
				t.Fatal(err)
			}
			p.Start(kind, 0, &executor.Run{Ref: attemptOne(1), Op: x.hold, Arguments: x.args(gate)})
			open, err := os.OpenFile(gate, os.O_WRONLY, 0) // returns when the run has begun
			if err != nil {
				t.Fatal(err)
			}
			got := only(t, p, x.pid)
			if got.GetError() != nil || got.GetPid() == 0 || got.GetValue().GetIntValue() != got.GetPid() {
				t.Errorf("the busy process answered %v", got)
			}
			if err := open.Close(); err != nil {
				t.Fatal(err)
			}
			select {
			case out := <-p.results:
				if out.Error != nil {
					t.Errorf("the run beside the call: %v", out.Error)
				}
			case <-time.After(workertest.EventTimeout):
				t.Fatal("the run beside the call has no result")
			}
		})
	}
}

func TestCallStartsProcess(t *testing.T) {
	p := newPools(t, 0)
	if got := only(t, p, "operator:add", 20, 22); got.GetValue().GetIntValue() != 42 {
		t.Errorf("20 + 22 is %v", got)
	}
}

func TestCallErrors(t *testing.T) {
	p := newPools(t, 0)
	if got := only(t, p, "operator:truediv", 1, 0).GetError(); got.GetReason() != "PYTHON_EXCEPTION" ||
		!strings.Contains(got.GetMessage(), "ZeroDivisionError") || got.GetWorker() != "w" || got.GetException() == nil {
		t.Errorf("a division by zero: %v", got)
	}
	if got := only(t, p, "nowhere.at.all:f").GetError(); got.GetReason() != "FUNCTION_NOT_FOUND" || !strings.Contains(got.GetMessage(), "nowhere") {
		t.Errorf("a module that does not exist: %v", got)
	}
	if got := only(t, p, "threading:Lock").GetError(); got.GetReason() != "RESULT_NOT_SERIALISABLE" {
		t.Errorf("a result that cannot be pickled: %v", got)
	}
	if got := only(t, p, "builtins:bytes", 40<<20).GetError(); got.GetReason() != "RESULT_TOO_LARGE" {
		t.Errorf("a result of 40 MiB: %.500v", got)
	}
	if got := only(t, p, "sys:exit", 3).GetError(); got.GetReason() != "PYTHON_EXCEPTION" || !strings.HasPrefix(got.GetMessage(), "SystemExit: 3") {
		t.Errorf("sys.exit: %v", got)
	}
	if got := only(t, p, "echo/nothing").GetError(); got.GetReason() != "FUNCTION_NOT_FOUND" {
		t.Errorf("a function that echo lacks: %v", got)
	}
	for _, name := range []string{"nothing", "lisp/car"} {
		if _, err := runFunction(t, p, &millracev1.RunFunctionRequest{Name: name}); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// A process that dies in a call answers with the cause, and the next call finds the next process.
func TestCallInDyingProcess(t *testing.T) {
	p := newPools(t, 0)
	for name, said := range map[string]string{"echo/die": "exited with code 5", "os:abort": "SIGABRT"} {
		if got := only(t, p, name).GetError(); got.GetReason() != "EXECUTOR_DIED" || !strings.Contains(got.GetMessage(), said) {
			t.Errorf("%s: %v", name, got)
		}
	}
	if got := only(t, p, "echo/pid"); got.GetError() != nil {
		t.Errorf("after a death: %v", got)
	}
}

func TestCallToExecutorWithoutCalls(t *testing.T) {
	t.Setenv("ECHO_CALLS", "no")
	p := newPools(t, 0)
	if got := only(t, p, "echo/pid").GetError(); got.GetReason() != "UNIMPLEMENTED" || !strings.Contains(got.GetMessage(), "supports_calls") {
		t.Errorf("an executor that understands no calls: %v", got)
	}
}

// A call that the client gives up ends at once, although its function does not.
func TestCallIsGivenUp(t *testing.T) {
	p := newPools(t, 0)
	gate := filepath.Join(t.TempDir(), "gate")
	if err := unix.Mkfifo(gate, 0o600); err != nil {
		t.Fatal(err)
	}
	module := "def hold(path):\n    open(path).read()\n"
	if err := os.WriteFile(filepath.Join(p.modules, "holding.py"), []byte(module), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	gone := errors.New("the client is gone")
	opened := make(chan *os.File, 1)
	go func() {
		open, _ := os.OpenFile(gate, os.O_WRONLY, 0) // returns when the function reads
		opened <- open
		cancel(gone)
	}()
	c := &executor.Call{Op: &millracev1.Op{Kind: millracev1.OpKind_OP_KIND_PYTHON_IMPORT, Name: "holding:hold"}, Arguments: workertest.Arguments(gate)}
	if _, err := p.Call(ctx, "python", c, false, false); !errors.Is(err, gone) {
		t.Errorf("a call that was given up: %v", err)
	}
	_ = (<-opened).Close() // nothing was written
	pid := &executor.Call{Op: &millracev1.Op{Kind: millracev1.OpKind_OP_KIND_PYTHON_IMPORT, Name: "os:getpid"}}
	if got, err := p.Call(t.Context(), "python", pid, true, true); err != nil || len(got) != 1 || got[0].Header != nil {
		t.Errorf("without a wait: %v, %v", got, err)
	}
}

// A call that cannot be sent is an error, also for a caller that does not wait for its answer.
func TestCallThatCannotBeSent(t *testing.T) {
	p := newPools(t, 0)
	large := &executor.Call{Op: &millracev1.Op{Kind: millracev1.OpKind_OP_KIND_PYTHON_IMPORT, Name: "operator:add"}, Arguments: make([]byte, 64<<20)}
	if got, err := p.Call(t.Context(), "python", large, true, true); err != nil || len(got) != 1 || got[0].Error.GetReason() != "TOO_LARGE" {
		t.Errorf("64 MiB of arguments: %v, %v", got, err)
	}
}

// A process that is there only because runs waited does not end while a call has not returned.
func TestSurplusProcessEndsAfterItsCalls(t *testing.T) {
	p := newPools(t, 0, func(c *executor.Config) { c.Waiting, c.IdleTime = 2, 20*time.Millisecond })
	gate := filepath.Join(t.TempDir(), "gate")
	if err := unix.Mkfifo(gate, 0o600); err != nil {
		t.Fatal(err)
	}
	module := "import os\ndef hold(path):\n    open(path).read()\n    return os.getpid()\n"
	if err := os.WriteFile(filepath.Join(p.modules, "holding.py"), []byte(module), 0o600); err != nil {
		t.Fatal(err)
	}
	returned := make(chan []executor.Returned, 1)
	c := &executor.Call{Op: &millracev1.Op{Kind: millracev1.OpKind_OP_KIND_PYTHON_IMPORT, Name: "holding:hold"}, Arguments: workertest.Arguments(gate)}
	// It is called while a run keeps the process, and begins before the run ends.
	runGate := filepath.Join(t.TempDir(), "gate")
	if err := unix.Mkfifo(runGate, 0o600); err != nil {
		t.Fatal(err)
	}
	p.begin(t, 1, "python", "holding:hold", runGate)
	run, err := os.OpenFile(runGate, os.O_WRONLY, 0) // returns when the run has begun
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		got, _ := p.Call(t.Context(), "python", c, false, false) // without an answer, it is empty
		returned <- got
	}()
	call, err := os.OpenFile(gate, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_ = run.Close() // nothing was written
	if out := p.result(t); out.Error != nil {
		t.Fatal(out.Error)
	}
	// Another process of this kind ends meanwhile, although it became idle later.
	p.begin(t, 2, "python", "os:getpid")
	out := p.result(t)
	if out.Error != nil {
		t.Fatal(out.Error)
	}
	for pid := workertest.Decode(t, out.Inline).GetIntValue(); slices.Contains(p.processes(), int(pid)); {
		if t.Context().Err() != nil {
			t.Fatal("an idle process beside those of the slots does not end")
		}
		time.Sleep(time.Millisecond)
	}
	_ = call.Close() // nothing was written
	if got := <-returned; len(got) != 1 || got[0].Error != nil {
		t.Errorf("the call of a process that is not needed: %v", got)
	}
}

// A look at the samples starts no process.
func TestProfileWithoutProcess(t *testing.T) {
	p := newPools(t, 0)
	r, err := (&executor.Service{Pools: p.Pools}).GetProfile(t.Context(), &millracev1.GetProfileRequest{})
	if err != nil || r.GetSamples() != 0 || r.GetMissingProcesses() != 0 {
		t.Errorf("%v, %v", r, err)
	}
	only(t, p, "os:getpid") // starts the first one
	r, err = (&executor.Service{Pools: p.Pools}).GetProfile(t.Context(), &millracev1.GetProfileRequest{})
	if err != nil || r.GetInterval().AsDuration() != 10*time.Millisecond || r.GetMissingProcesses() != 0 {
		t.Errorf("%v, %v", r, err)
	}
}
