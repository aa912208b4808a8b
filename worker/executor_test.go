package worker_test

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"os"
	osexec "os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/internal/invariant"
	"github.com/millrace/millrace/worker"
	"github.com/millrace/millrace/worker/workertest"
)

// echoDir is the directory in which the echo executor is built. TestMain removes it.
var echoDir string

var buildEcho = sync.OnceValues(func() (binary string, err error) {
	if echoDir, err = os.MkdirTemp("", "millrace-echo-"); err != nil {
		return "", err
	}
	binary = filepath.Join(echoDir, "echo")
	out, err := osexec.Command("go", "build", "-o", binary, "./executor/executortest/echo").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return binary, nil
})

// echo starts a worker with the echo executor. Its ops are defined by their names,
// with numbers from 1 on.
func echo(t *testing.T, change func(*worker.Config), ops ...string) *running {
	t.Helper()
	binary, err := buildEcho()
	if err != nil {
		t.Fatal(err)
	}
	w := start(t, workertest.NewScheduler(t), func(c *worker.Config) {
		c.Exec = map[string][]string{"echo": {binary}}
		c.Slots = 1
		if change != nil {
			change(c)
		}
	})
	for i, name := range ops {
		w.Op(uint32(i+1), exec, "echo/"+name)
	}
	return w
}

func (r *running) call(task uint64, op uint32, values ...any) {
	r.Assign(&workerv1.Assignment{TaskId: task, Attempt: 1, OpId: op, Rank: task, Arguments: workertest.Arguments(values...)})
}

func (r *running) text(t *testing.T, task uint64) string {
	t.Helper()
	report := r.Report(task)
	if report.GetOutcome() != workerv1.TaskOutcome_TASK_OUTCOME_SUCCEEDED {
		t.Fatalf("task %d: %v", task, report)
	}
	return workertest.Decode(t, report.GetInlineResult()).GetStringValue()
}

func TestExecutorRunsTasks(t *testing.T) {
	w := echo(t, func(c *worker.Config) { c.ExecutorEnv = []string{"EXTRA=yes"} }, "upper", "env", "fail", "nothing")
	t.Setenv("MILLRACE_TOKEN", "secret")
	if r := w.Registration; fmt.Sprint(r.GetExecutors()) != "[native echo]" {
		t.Errorf("executors %v", r.GetExecutors())
	}
	w.call(1, 1, "abc")
	if got := w.text(t, 1); got != "ABC" {
		t.Errorf("got %q", got)
	}
	for i, want := range map[string]string{"EXTRA": "yes", "MILLRACE_WORKER": "host-0", "MILLRACE_EXECUTOR": "echo", "MILLRACE_TOKEN": ""} {
		w.call(2, 2, i)
		if got := w.text(t, 2); got != want {
			t.Errorf("%s = %q in the executor, want %q", i, got, want)
		}
	}
	w.call(3, 3, "x")
	if e := w.Report(3).GetError(); e.GetReason() != "EXECUTOR_ERROR" || !strings.Contains(e.GetMessage(), "told to fail: x") || e.GetWorker() != "host-0" {
		t.Errorf("got %v", e)
	}
	w.call(4, 4)
	if e := w.Report(4).GetError(); e.GetReason() != "FUNCTION_NOT_FOUND" {
		t.Errorf("got %v", e)
	}
	// Many short runs, in order, by one process.
	n := uint64(2000)
	if invariant.Enabled {
		n = 300 // with invariants enabled, each step checks all of them
	}
	var many []*workerv1.Assignment
	for i := range n {
		many = append(many, &workerv1.Assignment{TaskId: 100 + i, Attempt: 1, OpId: 1, Rank: i, Arguments: workertest.Arguments(fmt.Sprint("n", i))})
	}
	w.Assign(many...)
	for i := range n {
		if got := w.text(t, 100+i); got != fmt.Sprint("N", i) {
			t.Fatalf("task %d: %q", i, got)
		}
	}
}

func TestExecutorResultsLieInTheSlab(t *testing.T) {
	w := echo(t, nil, "slab", "alias", "inline", "steal", "huge", "upper")
	d := data(t, w.Registration.GetDataAddress())
	content := strings.Repeat("0123456789", 20000)
	w.call(1, 1, content)
	r := w.Report(1)
	if r.GetOutcome() != workerv1.TaskOutcome_TASK_OUTCOME_SUCCEEDED || r.GetOutputBytes() < uint64(len(content)) {
		t.Fatalf("got %v", r)
	}
	if _, b, _ := read(t, d, 1); string(b) != content {
		t.Error("other bytes came back")
	}
	// A view of the input outlives the input.
	w.Assign(&workerv1.Assignment{
		TaskId: 2, Attempt: 1, OpId: 2, Arguments: workertest.Arguments(workertest.Input(0)),
		Inputs: []*workerv1.Input{{TaskId: 1, Generation: 1, Bytes: r.GetOutputBytes()}},
	})
	w.Report(2)
	w.Send(&workerv1.SessionResponse{Releases: []*workerv1.Replica{{TaskId: 1, Generation: 1}}})
	w.call(3, 6, "x")
	w.Report(3)
	if _, b, _ := read(t, d, 2); string(b) != content[len(content)/2:] {
		t.Error("the view does not hold")
	}
	w.call(4, 3, "small")
	if v := workertest.Decode(t, w.Report(4).GetInlineResult()); string(v.GetTensorValue().GetInlineData()) != "small" {
		t.Errorf("got %v", v)
	}
	w.call(5, 3, strings.Repeat("x", 100000))
	w.Report(5)
	if _, b, _ := read(t, d, 5); len(b) != 100000 {
		t.Errorf("%d bytes of an inline result", len(b))
	}
	w.call(6, 4)
	if e := w.Report(6).GetError(); e.GetReason() != "EXECUTOR_ERROR" || !strings.Contains(e.GetMessage(), "neither in memory that it allocated") {
		t.Errorf("got %v", e)
	}
	w.call(7, 5)
	if e := w.Report(7).GetError(); e.GetReason() != "OUT_OF_MEMORY" || !strings.Contains(e.GetMessage(), "64 MiB") {
		t.Errorf("got %v", e)
	}
	w.Op(99, exec, "echo/misfit")
	w.call(99, 99, "small")
	if e := w.Report(99).GetError(); e.GetReason() != "EXECUTOR_ERROR" || !strings.Contains(e.GetMessage(), "header.list_value.values[1].tensor_value.frame") {
		t.Errorf("got %v", e)
	}
	// Nothing is left but the retained memory: task 2 holds all of task 1's frame.
	w.Send(&workerv1.SessionResponse{Releases: []*workerv1.Replica{{TaskId: 2, Generation: 1}, {TaskId: 5, Generation: 1}}})
	w.Until("an empty slab", func() bool { return w.Stats != nil && w.Stats.GetMemoryUsedBytes() < 4096 })
}

func TestExecutorDeathIsBlamedOnWhatRan(t *testing.T) {
	w := echo(t, nil, "upper", "exit", "segv", "kill", "garbage", "oversized")
	w.call(1, 1, "warm")
	w.text(t, 1)
	for i, want := range []string{"exited with code 7", "killed by SIGSEGV", "killed by SIGKILL", "not a FromExecutor", "announced a message"} {
		base := uint64(10 * (i + 1))
		w.Assign(
			&workerv1.Assignment{TaskId: base, Attempt: 1, OpId: uint32(i + 2), Rank: base},
			&workerv1.Assignment{TaskId: base + 1, Attempt: 1, OpId: 1, Rank: base + 1, Arguments: workertest.Arguments("after")},
		)
		r := w.Report(base)
		if r.GetOutcome() != workerv1.TaskOutcome_TASK_OUTCOME_EXECUTOR_DIED || r.GetError().GetReason() != "EXECUTOR_DIED" || !strings.Contains(r.GetError().GetMessage(), want) {
			t.Errorf("%s: %v", want, r)
		}
		if got := w.text(t, base+1); got != "AFTER" {
			t.Errorf("after %s: %q", want, got)
		}
	}
	w.Until("the deaths", func() bool { return w.Stats.GetExecutorDeaths() == 5 })
	if last := w.Stats.GetLastExecutorDeath(); !strings.Contains(last, "echo executor 0") {
		t.Errorf("last death: %q", last)
	}
}

// Kills from outside are no fault of a task whose function was not called yet. A process that dies
// by itself at that time is one.
func TestAKillBeforeTheFunctionIsBlamedOnNobody(t *testing.T) {
	start := t.TempDir()
	w := echo(t, func(c *worker.Config) { c.ExecutorEnv = []string{"ECHO_CALLED=yes", "ECHO_KILLED_STARTS=" + start} }, "load", "kill", "early")
	// Five processes are killed before they are ready, and five while they load.
	w.call(1, 1, t.TempDir())
	if got := w.text(t, 1); got != "loaded" {
		t.Errorf("got %q", got)
	}
	w.Until("the deaths while they loaded", func() bool { return w.Stats.GetExecutorDeaths() == 5 })
	if starts, err := os.ReadDir(start); err != nil || len(starts) != 5 {
		t.Errorf("%d processes were killed at their start, %v", len(starts), err)
	}
	for task, want := range map[uint64]string{2: "killed by SIGKILL", 3: "exited with code 6"} {
		w.call(task, uint32(task), "")
		if r := w.Report(task); r.GetOutcome() != workerv1.TaskOutcome_TASK_OUTCOME_EXECUTOR_DIED || !strings.Contains(r.GetError().GetMessage(), want) {
			t.Errorf("task %d: %v, want %s", task, r, want)
		}
	}
}

func TestExitMessageIsQuoted(t *testing.T) {
	w := echo(t, nil, "exit")
	w.call(1, 1)
	r := w.Report(1)
	if !strings.Contains(r.GetError().GetMessage(), "about to exit") || !strings.Contains(r.GetLogTail(), "about to exit") || r.GetError().GetMetadata()["exit_code"] != "7" {
		t.Errorf("got %v", r)
	}
}

func TestQueuedRunsOutliveTheirProcess(t *testing.T) {
	w := echo(t, nil, "upper", "kill")
	var warm []*workerv1.Assignment
	for i := range uint64(200) {
		warm = append(warm, &workerv1.Assignment{TaskId: 1000 + i, Attempt: 1, OpId: 1, Rank: i, Arguments: workertest.Arguments("x")})
	}
	w.Assign(warm...)
	for i := range uint64(200) {
		w.text(t, 1000+i)
	}
	// Short runs are sent ahead to the process, behind a run that dies.
	w.Assign(append(warm[:0:0], &workerv1.Assignment{TaskId: 1, Attempt: 1, OpId: 2, Rank: 0})...)
	for i := range uint64(50) {
		w.Assign(&workerv1.Assignment{TaskId: 2000 + i, Attempt: 1, OpId: 1, Rank: i + 1, Arguments: workertest.Arguments(fmt.Sprint("q", i))})
	}
	if r := w.Report(1); r.GetOutcome() != workerv1.TaskOutcome_TASK_OUTCOME_EXECUTOR_DIED {
		t.Errorf("got %v", r)
	}
	for i := range uint64(50) {
		if got := w.text(t, 2000+i); got != fmt.Sprint("Q", i) {
			t.Errorf("task %d: %q", i, got)
		}
	}
}

func TestDeathBetweenRunsBlamesNobody(t *testing.T) {
	w := echo(t, nil, "idledeath", "upper")
	w.call(1, 1)
	w.text(t, 1)
	w.Until("the death", func() bool { return w.Stats.GetExecutorDeaths() == 1 })
	w.call(2, 2, "on")
	if got := w.text(t, 2); got != "ON" {
		t.Errorf("got %q", got)
	}
}

func TestTimeoutInterruptsThenKills(t *testing.T) {
	w := echo(t, nil, "pid", "sleep")
	w.call(1, 1)
	first := w.text(t, 1)
	w.Assign(&workerv1.Assignment{TaskId: 2, Attempt: 1, OpId: 2, Arguments: workertest.Arguments("1h"), TimeoutMillis: 50})
	e := w.Report(2).GetError()
	if e.GetReason() != "TIMEOUT" || e.GetMetadata()["stopped_by"] != "interrupt" || !strings.Contains(e.GetMessage(), "50ms") {
		t.Errorf("got %v", e)
	}
	w.call(3, 1)
	if got := w.text(t, 3); got != first {
		t.Errorf("an interrupt ended process %s, now there is %s", first, got)
	}

	w = echo(t, func(c *worker.Config) { c.StopGrace = 100 * time.Millisecond }, "pid", "stubborn")
	w.call(1, 1)
	first = w.text(t, 1)
	w.Assign(&workerv1.Assignment{TaskId: 2, Attempt: 1, OpId: 2, Arguments: workertest.Arguments("1h"), TimeoutMillis: 50})
	r := w.Report(2)
	if e := r.GetError(); r.GetOutcome() != workerv1.TaskOutcome_TASK_OUTCOME_FAILED || e.GetReason() != "TIMEOUT" || e.GetMetadata()["stopped_by"] != "kill" {
		t.Errorf("got %v", r)
	}
	w.call(3, 1)
	if got := w.text(t, 3); got == first {
		t.Error("the process that had to be killed is still there")
	}
	w.Until("stats", func() bool { return w.Stats != nil })
	if w.Stats.GetExecutorDeaths() != 0 {
		t.Error("a process that the worker killed counts as a death")
	}
}

func TestCancelStopsOrDropsRuns(t *testing.T) {
	w := echo(t, nil, "upper", "sleep")
	// A process that is still starting has no run to interrupt.
	w.call(9, 1, "up")
	w.text(t, 9)
	w.call(1, 2, "1h")
	w.Report(1, workerv1.TaskOutcome_TASK_OUTCOME_STARTED)
	w.call(2, 2, "1h")
	w.Send(&workerv1.SessionResponse{Cancellations: []*workerv1.AttemptRef{{TaskId: 2, Attempt: 1}, {TaskId: 1, Attempt: 1}}})
	w.Report(2, workerv1.TaskOutcome_TASK_OUTCOME_CANCELLED)
	r := w.Report(1, workerv1.TaskOutcome_TASK_OUTCOME_CANCELLED)
	if r.GetError().GetMetadata()["stopped_by"] != "interrupt" {
		t.Errorf("got %v", r)
	}
	w.call(3, 1, "on")
	w.text(t, 3)
}

func TestRunsStuckBehindALongOneMoveToAnIdleSlot(t *testing.T) {
	w := echo(t, func(c *worker.Config) { c.Slots = 2 }, "sleep")
	// The op looks short, so runs are sent ahead.
	for i := range uint64(64) {
		w.call(100+i, 1, "0s")
	}
	for i := range uint64(64) {
		w.text(t, 100+i)
	}
	w.call(1, 1, "1h")
	var more []*workerv1.Assignment
	for i := range uint64(20) {
		more = append(more, &workerv1.Assignment{TaskId: 10 + i, Attempt: 1, OpId: 1, Rank: 10 + i, Arguments: workertest.Arguments("0s")})
	}
	w.Assign(more...)
	for i := range uint64(20) {
		w.text(t, 10+i)
	}
	w.Send(&workerv1.SessionResponse{Cancellations: []*workerv1.AttemptRef{{TaskId: 1, Attempt: 1}}})
	w.Report(1, workerv1.TaskOutcome_TASK_OUTCOME_CANCELLED)
}

func TestLogsAreKept(t *testing.T) {
	w := echo(t, nil, "log")
	d := data(t, w.Registration.GetDataAddress())
	w.call(1, 1, "hello")
	w.Report(1)
	w.Until("both kinds of output", func() bool {
		logs, err := d.GetTaskLogs(t.Context(), &millracev1.GetTaskLogsRequest{TaskId: 1})
		return err == nil && strings.Contains(logs.GetText(), "logged hello")
	})
}

func TestExecutorThatDiesAtStartFailsItsTasks(t *testing.T) {
	w := echo(t, func(c *worker.Config) { c.ExecutorEnv = []string{"ECHO_START=broken"} }, "upper")
	w.call(1, 1, "x")
	r := w.Report(1)
	if r.GetOutcome() != workerv1.TaskOutcome_TASK_OUTCOME_EXECUTOR_DIED || !strings.Contains(r.GetError().GetMessage(), "told to fail at the start") ||
		!strings.Contains(r.GetError().GetMessage(), "3 times in a row") {
		t.Errorf("got %v", r)
	}
}

func TestExecutorIsFoundFromWhereTheWorkerStarted(t *testing.T) {
	binary, err := buildEcho()
	if err != nil {
		t.Fatal(err)
	}
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	relative, err := filepath.Rel(here, binary)
	if err != nil {
		t.Fatal(err)
	}
	w := echo(t, func(c *worker.Config) { c.Exec = map[string][]string{"echo": {relative}} }, "upper")
	w.call(1, 1, "abc")
	if got := w.text(t, 1); got != "ABC" {
		t.Errorf("got %q", got)
	}
}

func TestExecutorThatIsNotThereFailsItsTasks(t *testing.T) {
	w := echo(t, func(c *worker.Config) { c.Exec = map[string][]string{"echo": {"/nonexistent/echo", "-x"}} }, "upper")
	w.call(1, 1, "x")
	if r := w.Report(1); !strings.Contains(r.GetError().GetMessage(), "/nonexistent/echo -x") {
		t.Errorf("got %v", r)
	}
}

// unsent starts a worker that knows op 1, a function of which it has the hash but not the code.
func unsent(t *testing.T) (w *running, hash []byte) {
	t.Helper()
	binary, err := buildEcho()
	if err != nil {
		t.Fatal(err)
	}
	w = start(t, workertest.NewScheduler(t), func(c *worker.Config) { c.PythonCommand = []string{binary}; c.Executors = 1 })
	hash = bytes.Repeat([]byte{7}, 32)
	w.Send(&workerv1.SessionResponse{Ops: []*workerv1.OpDefinition{{OpId: 1, Op: &millracev1.Op{
		Kind: millracev1.OpKind_OP_KIND_PYTHON_PICKLE, Name: "x/upper", Function: hash,
	}}}})
	return w, hash
}

func TestFunctionsAreSentOnceAndAskedForIfMissing(t *testing.T) {
	w, hash := unsent(t)
	w.call(1, 1, "abc")
	w.call(2, 1, "def")
	w.Until("the question", func() bool { return len(w.Missing) > 0 })
	if !bytes.Equal(w.Missing[0], hash) {
		t.Errorf("asked for %x", w.Missing)
	}
	w.Send(&workerv1.SessionResponse{Retractions: []*workerv1.AttemptRef{{TaskId: 2, Attempt: 1}}})
	w.Report(2, workerv1.TaskOutcome_TASK_OUTCOME_RETRACTED)
	w.Send(&workerv1.SessionResponse{Functions: []*millracev1.Function{{Hash: hash, Payload: []byte("p")}}})
	if got := w.text(t, 1); got != "ABC" {
		t.Errorf("got %q", got)
	}
}

// The request for a function, or the answer, may be lost with the session.
// Therefore each new session begins with the request.
func TestAFunctionIsAskedForInEachSession(t *testing.T) {
	w, hash := unsent(t)
	w.call(1, 1, "abc")
	w.Until("the question", func() bool { return len(w.Missing) > 0 })
	w.Break(status.Error(codes.Unavailable, "the connection breaks"))
	w.Session = w.scheduler.Accept(t)
	if r := w.Registration.GetRunning(); len(r) != 1 || r[0].GetTaskId() != 1 {
		t.Errorf("registered as running %v", r)
	}
	w.Until("the question again", func() bool { return len(w.Missing) > 0 })
	if len(w.Missing) != 1 || !bytes.Equal(w.Missing[0], hash) {
		t.Errorf("asked for %x", w.Missing)
	}
	w.Send(&workerv1.SessionResponse{Functions: []*millracev1.Function{{Hash: hash, Payload: []byte("p")}}})
	if got := w.text(t, 1); got != "ABC" {
		t.Errorf("got %q", got)
	}
}

func TestNothingIsLeftBehind(t *testing.T) {
	scratch := t.TempDir()
	w := echo(t, func(c *worker.Config) { c.LocalDirectory = scratch }, "pid", "stubborn")
	w.call(1, 1)
	pid, err := strconv.Atoi(w.text(t, 1))
	if err != nil {
		t.Fatal(err)
	}
	w.call(2, 2, "1h")
	w.Report(2, workerv1.TaskOutcome_TASK_OUTCOME_STARTED)
	w.stop()
	select {
	case err := <-w.ended:
		if err != nil {
			t.Errorf("ended with %v", err)
		}
	case <-time.After(workertest.EventTimeout):
		t.Fatal("it waits for what runs")
	}
	if err := unix.Kill(pid, 0); err != unix.ESRCH {
		t.Errorf("process %d is still there: %v", pid, err)
	}
	if left, err := os.ReadDir(scratch); err != nil || len(left) != 0 {
		t.Errorf("left in the scratch directory: %v, %v", left, err)
	}
}

// A task may print any bytes, and the text may be cut at any byte. The reports on such tasks still
// arrive, in the same session.
func TestNoTextEndsTheSession(t *testing.T) {
	w := echo(t, func(c *worker.Config) { c.StopGrace = time.Second }, "noise", "upper")
	task := uint64(0)
	for _, c := range []struct {
		bytes string
		times int
	}{{"ff0a", 1}, {"e29688", 5000}, {"e29688", 5001}, {"61e29688", 5001}, {"6162e29688", 30001}, {"e9", 9000}, {"f09f9880", 3001}, {"80", 70000}, {"eda080", 3001}} {
		for _, end := range []string{"fail", "exit"} {
			task++
			w.call(task, 1, c.bytes, c.times, end)
			e := w.Report(task).GetError()
			if e.GetReason() == "" || !utf8.ValidString(e.GetLogTail()) || len(e.GetLogTail()) > 8<<10 || len(e.GetMessage()) > 4<<10 {
				t.Errorf("%d times %s, then %s: %v", c.times, c.bytes, end, e)
			}
		}
	}
	w.call(task+1, 2, "abc")
	if got := w.text(t, task+1); got != "ABC" {
		t.Errorf("got %q", got)
	}
	w.Stats = nil
	w.Until("a beat that tells of the last death", func() bool { return w.Stats.GetLastExecutorDeath() != "" })
}

// An error that quotes text of a client is cut to a limit, and the session goes on.
func TestLongErrorsAreCut(t *testing.T) {
	w := echo(t, nil, "fail")
	w.call(1, 1, strings.Repeat("x", 1<<19))
	if e := w.Report(1).GetError(); len(e.GetMessage()) > 4<<10 || !strings.Contains(e.GetMessage(), "told to fail: xxx") || !strings.Contains(e.GetMessage(), "(524302 bytes in all)") {
		t.Errorf("got a message of %d bytes, which ends with %q", len(e.GetMessage()), e.GetMessage()[max(0, len(e.GetMessage())-60):])
	}
	w.Op(2, native, "array.map")
	w.Op(3, native, "bench.fail")
	w.call(2, 2, strings.Repeat("\x01", 20<<20))
	w.call(3, 3, strings.Repeat("y", 30<<20))
	for task := uint64(2); task <= 3; task++ {
		if e := w.Report(task).GetError(); e.GetReason() == "" || len(e.GetMessage()) > 4<<10 {
			t.Errorf("task %d: %s with a message of %d bytes", task, e.GetReason(), len(e.GetMessage()))
		}
	}
}

// Arguments and headers of inputs are split over several messages, however large they are together.
func TestManySmallInputsAndLargeArguments(t *testing.T) {
	w := echo(t, nil, "upper", "lengths", "pid")
	w.call(1, 3)
	pid := w.text(t, 1)
	const inputs, each = 1500, 60_000
	letters := strings.Repeat("a", each)
	many := &workerv1.Assignment{TaskId: 2, Attempt: 1, OpId: 2, Arguments: workertest.Arguments(workertest.Input(0))}
	for i := range uint64(inputs) {
		w.call(1000+i, 1, letters)
		many.Inputs = append(many.Inputs, &workerv1.Input{TaskId: 1000 + i, Generation: 1, Bytes: each})
	}
	for i := range uint64(inputs) {
		if r := w.Report(1000 + i); r.GetOutcome() != workerv1.TaskOutcome_TASK_OUTCOME_SUCCEEDED {
			t.Fatal(r)
		}
	}
	w.Assign(many)
	if got, want := w.text(t, 2), fmt.Sprintf("%d inputs, %d bytes, ", inputs, inputs*(each+4)); !strings.HasPrefix(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	// Short runs are sent ahead, so their sizes add up.
	large := workertest.Arguments(strings.Repeat("b", 4<<20))
	const queued = 40
	for i := range uint64(queued) {
		w.Assign(&workerv1.Assignment{TaskId: 5000 + i, Attempt: 1, OpId: 2, Rank: i, Arguments: large})
	}
	for i := range uint64(queued) {
		if got := w.text(t, 5000+i); got != fmt.Sprintf("0 inputs, 0 bytes, %d of arguments", len(large)) {
			t.Errorf("got %q", got)
		}
	}
	// A run that is too large to be sent at all fails with its size, and no executor dies of it.
	w.call(3, 2, strings.Repeat("c", 63<<20+1000))
	if e := w.Report(3).GetError(); e.GetReason() != "TOO_LARGE" || !strings.Contains(e.GetMessage(), "its arguments have 660") {
		t.Errorf("got %v", e)
	}
	w.call(4, 3)
	if got := w.text(t, 4); got != pid {
		t.Errorf("process %s died, and %s took its place", pid, got)
	}
}

// An executor that does not understand split runs gets none.
func TestExecutorThatTakesNoSplitRuns(t *testing.T) {
	w := echo(t, func(c *worker.Config) { c.ExecutorEnv, c.MemoryLimitBytes = []string{"ECHO_SPLIT_RUNS=no"}, 256<<20 }, "upper", "lengths", "pid")
	w.call(1, 3)
	pid := w.text(t, 1)
	const inputs, each = 70, 1_000_000
	letters := strings.Repeat("a", each)
	many := &workerv1.Assignment{TaskId: 2, Attempt: 1, OpId: 2, Arguments: workertest.Arguments(workertest.Input(0))}
	for i := range uint64(inputs) {
		w.call(1000+i, 1, letters)
		w.Report(1000 + i)
		many.Inputs = append(many.Inputs, &workerv1.Input{TaskId: 1000 + i, Generation: 1, Bytes: each})
	}
	w.Assign(many)
	if e := w.Report(2).GetError(); e.GetReason() != "TOO_LARGE" || !strings.Contains(e.GetMessage(), "its 70 inputs have 700") {
		t.Errorf("got %v", e)
	}
	w.call(3, 3)
	if got := w.text(t, 3); got != pid {
		t.Errorf("process %s died, and %s took its place", pid, got)
	}
}

// Results without frames count against the worker's memory, and every accepted result can be read.
func TestHeadersOfResultsAreBounded(t *testing.T) {
	w := echo(t, func(c *worker.Config) { c.MemoryLimitBytes, c.SpillLimitBytes = 8<<20, worker.NoSpill }, "texts")
	d := data(t, w.Registration.GetDataAddress())
	w.call(1, 1, 100)
	if r := w.Report(1); r.GetOutcome() != workerv1.TaskOutcome_TASK_OUTCOME_SUCCEEDED || r.GetOutputBytes() < 3_000_000 {
		t.Fatal(r)
	}
	if v, _, e := read(t, d, 1); e != nil || len(v.GetListValue().GetValues()) != 100 {
		t.Errorf("it cannot be read: %v", e)
	}
	w.call(2, 1, 100)
	w.Report(2)
	w.call(3, 1, 100)
	if e := w.Report(3).GetError(); e.GetReason() != "OUT_OF_MEMORY" {
		t.Errorf("9 MB of headers in 8 MiB: %v", e)
	}
	w.Send(&workerv1.SessionResponse{Releases: []*workerv1.Replica{{TaskId: 1, Generation: 1}, {TaskId: 2, Generation: 1}}})
	w.call(4, 1, 100)
	if r := w.Report(4); r.GetError() != nil {
		t.Error(r)
	}
	w.call(5, 1, 600)
	if e := w.Report(5).GetError(); e.GetReason() != "RESULT_TOO_LARGE" || !strings.Contains(e.GetMessage(), "180") {
		t.Errorf("18 MB: %v", e)
	}
}

// A run that its process had not begun when the process died is not blamed for the death,
// unless this happens again and again.
func TestProcessThatDiesBeforeItHasBegun(t *testing.T) {
	w := echo(t, nil, "early")
	w.call(1, 1, filepath.Join(t.TempDir(), "there"))
	if got := w.text(t, 1); got != "it has begun" {
		t.Errorf("got %q", got)
	}
	w.call(2, 1, "")
	if e := w.Report(2).GetError(); e.GetReason() != "EXECUTOR_DIED" || !strings.Contains(e.GetMessage(), "code 6") {
		t.Errorf("got %v", e)
	}
}

// The log tail of a process death is the output of the task in which the process died,
// not of the task before.
func TestLastWordsAreTheTasksOwn(t *testing.T) {
	w := echo(t, nil, "noise", "kill", "upper")
	words := hex.EncodeToString([]byte("words of the first task"))
	w.call(1, 1, words, 1, "fail")
	if e := w.Report(1).GetError(); !strings.Contains(e.GetLogTail(), "words of the first") {
		t.Errorf("got %v", e)
	}
	w.call(2, 2)
	if e := w.Report(2).GetError(); !strings.Contains(e.GetMessage(), "SIGKILL") || strings.Contains(e.GetMessage(), "first task") {
		t.Errorf("got %v", e)
	}
	w.call(3, 1, words, 1, "exit")
	if e := w.Report(3).GetError(); !strings.Contains(e.GetMessage(), "its last output: words of the first task") {
		t.Errorf("got %v", e)
	}
}

// The memory report names each process that keeps memory of its own, by kind and process number.
func TestMemoryOfExecutorsHasAName(t *testing.T) {
	w := echo(t, nil, "hoard", "pid", "release")
	d := data(t, w.Registration.GetDataAddress())
	w.call(1, 1)
	w.Report(1)
	w.call(2, 2)
	want := "executor echo, pid " + w.text(t, 2)
	kept := func() (pins []string) {
		m, err := d.DescribeMemory(t.Context(), &millracev1.DescribeMemoryRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for _, h := range m.GetPinned() {
			pins = append(pins, h.GetPins()...)
		}
		return pins
	}
	if got := kept(); !slices.Equal(got, []string{want}) {
		t.Errorf("memory is kept by %q, want %q", got, want)
	}
	w.call(3, 3)
	w.Report(3)
	if got := kept(); len(got) > 0 {
		t.Errorf("what was given back is kept by %q", got)
	}
}
