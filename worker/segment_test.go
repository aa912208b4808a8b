package worker_test

import (
	"fmt"
	"hash/crc32"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/internal/invariant"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/borrow"
	"github.com/millrace/millrace/worker"
	"github.com/millrace/millrace/worker/workertest"
)

// The ops of the borrowing worker in these tests.
const (
	opUpper uint32 = iota + 1
	opSum
	opAlias
	opWait
	opPid
	opHolds
	opExit
	opFull
)

// lenderAndBorrower starts a worker with memory to lend (a), and a worker with an executor that is
// ready (b). segments says whether that executor understands segments. Op 1 of the lender makes
// arrays. The changes are to the lender.
func lenderAndBorrower(t *testing.T, lenderBytes uint64, segments string, changes ...func(*worker.Config)) (a, b *running) {
	t.Helper()
	a, b = lenderAndColdBorrower(t, lenderBytes, segments, changes...)
	b.call(1_000_000, opUpper, "ready")
	if strings.HasPrefix(segments, "/") {
		tell(t, segments, "yes")
	}
	b.text(t, 1_000_000)
	return a, b
}

// lenderAndColdBorrower is lenderAndBorrower without a process of the executor.
func lenderAndColdBorrower(t *testing.T, lenderBytes uint64, segments string, changes ...func(*worker.Config)) (a, b *running) {
	t.Helper()
	s := workertest.NewScheduler(t)
	a = start(t, s, func(c *worker.Config) {
		c.MemoryLimitBytes = lenderBytes
		for _, change := range changes {
			change(c)
		}
	})
	binary, err := buildEcho()
	if err != nil {
		t.Fatal(err)
	}
	b = start(t, s, func(c *worker.Config) {
		c.Name, c.Exec, c.Slots = "host-1", map[string][]string{"echo": {binary}}, 1
		c.ExecutorEnv = []string{"ECHO_SEGMENTS=" + segments}
	})
	b.Send(&workerv1.SessionResponse{Peers: []*workerv1.Peer{{WorkerId: a.ID, Name: "host-0", DataAddress: a.Registration.GetDataAddress()}}})
	a.Op(1, native, "array.full")
	for i, name := range []string{"upper", "sum", "alias", "wait", "pid", "holds", "exit"} {
		b.Op(uint32(i+1), exec, "echo/"+name)
	}
	b.Op(opFull, native, "array.full")
	return a, b
}

// tell writes to a pipe as soon as a reader has opened it.
func tell(t *testing.T, pipe, what string) {
	t.Helper()
	if err := os.WriteFile(pipe, []byte(what), 0); err != nil {
		t.Fatal(err)
	}
}

func pipe(t *testing.T) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "pipe")
	if err := unix.Mkfifo(name, 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// full makes an array of n float64s with the value 2, and returns it as an input.
func (r *running) full(t *testing.T, task uint64, n int) *workerv1.Input {
	t.Helper()
	r.call(task, 1, []any{n}, 2.0)
	report := r.Report(task)
	if report.GetOutcome() != workerv1.TaskOutcome_TASK_OUTCOME_SUCCEEDED || report.GetError() != nil {
		t.Fatalf("array %d: %v", task, report)
	}
	return &workerv1.Input{TaskId: task, Generation: 1, Bytes: report.GetOutputBytes(), Holders: []uint32{r.ID}}
}

// sumOfFull returns the answer of the op sum for such an array.
func sumOfFull(n int) string {
	two := make([]byte, 8<<10)
	for i := 0; i < len(two); i += 8 {
		for j, bits := 0, math.Float64bits(2); j < 8; j, bits = j+1, bits>>8 {
			two[i+j] = byte(bits)
		}
	}
	var sum uint32
	for left := 8 * n; left > 0; left -= len(two) {
		sum = crc32.Update(sum, crc32.IEEETable, two[:min(left, len(two))])
	}
	return fmt.Sprint(sum)
}

// on runs an op of the executor on an input.
func (r *running) on(task uint64, op uint32, in *workerv1.Input, more ...any) {
	r.Assign(&workerv1.Assignment{
		TaskId: task, Attempt: 1, OpId: op, Rank: task, Inputs: []*workerv1.Input{in},
		Arguments: workertest.Arguments(append([]any{workertest.Input(0)}, more...)...),
	})
}

// summed waits for a checksum, and returns the report.
func (r *running) summed(t *testing.T, task uint64, want string) *workerv1.TaskReport {
	t.Helper()
	report := r.Report(task)
	if report.GetOutcome() != workerv1.TaskOutcome_TASK_OUTCOME_SUCCEEDED {
		t.Fatalf("task %d: %v", task, report)
	}
	if got := workertest.Decode(t, report.GetInlineResult()).GetStringValue(); got != want {
		t.Fatalf("task %d: checksum %s, want %s", task, got, want)
	}
	return report
}

func TestExecutorUsesTheMemoryOfAPeerInPlace(t *testing.T) {
	const n = 32 << 20 // 256 MiB, four times the borrower's memory
	a, b := lenderAndBorrower(t, 320<<20, "yes")
	in := a.full(t, 1, n)
	want := sumOfFull(n)
	begin := time.Now()
	b.on(2, opSum, in)
	report := b.summed(t, 2, want)
	t.Logf("%d MiB read in place in %v, the function took %v", in.GetBytes()>>20, time.Since(begin), time.Duration(report.GetRunNanos()))
	if report.GetFetchedBytes() != 0 {
		t.Errorf("%d bytes were fetched", report.GetFetchedBytes())
	}
	// Borrowed memory cannot become a part of a result.
	b.on(3, opAlias, in)
	if e := b.Report(3).GetError(); e.GetReason() != "EXECUTOR_ERROR" || !strings.Contains(e.GetMessage(), "only leased") {
		t.Errorf("got %v", e)
	}
	b.Until("no copy", func() bool { return len(b.Objects) == 0 })
	// A loan is returned after it has not been used for a while.
	deadline := time.Now().Add(workertest.EventTimeout)
	for task := uint64(10); ; task++ {
		b.call(task, opHolds)
		if strings.HasSuffix(b.text(t, task), " 0 segments") {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("a segment that nobody uses stays attached")
		}
	}
}

// lentInPlace runs the sum of an array that is larger than the borrower's memory, and checks that
// nothing was copied.
func (r *running) lentInPlace(t *testing.T, task uint64, in *workerv1.Input, want string) {
	t.Helper()
	r.on(task, opSum, in)
	if report := r.summed(t, task, want); report.GetFetchedBytes() != 0 {
		t.Errorf("task %d: %d bytes were fetched", task, report.GetFetchedBytes())
	}
}

// largeElements are the float64s of an array of 80 MiB, which does not fit into the memory of the
// borrower: 64 MiB.
const largeElements = 10 << 20

// A lender with little free memory lends what does not fit into the borrower's memory, and what is
// borrowed often is not copied then.
func TestAFullLenderLendsWhatCannotBeCopied(t *testing.T) {
	a, b := lenderAndBorrower(t, 96<<20, "yes")
	in := a.full(t, 1, largeElements)
	// While this loan lasts, the array cannot leave the slab of the lender.
	own := borrow.New(borrow.Config{Worker: func() ids.WorkerID { return 9 }})
	t.Cleanup(func() { _ = own.Close() })
	peer := transfer.Peer{Worker: 1, Name: "host-0", Address: a.Registration.GetDataAddress()}
	loans, err := own.Borrow(t.Context(), peer, []transfer.Ref{{Task: 1, Generation: 1}}, true)
	if err != nil || loans[0].Err != nil {
		t.Fatal(err, loans)
	}
	defer loans[0].End()
	if again, err := own.Borrow(t.Context(), peer, []transfer.Ref{{Task: 1, Generation: 1}}, false); err != nil || again[0].Err == nil {
		t.Fatalf("the lender has room to lend: %v", err)
	}
	want := sumOfFull(largeElements)
	for task := uint64(10); task < 16; task++ {
		b.lentInPlace(t, task, in, want)
	}
}

// The first task of an executor borrows what cannot be copied, although no process has said yet
// whether it can read that. If it cannot, the task fails for lack of memory when it runs again.
func TestTheFirstTaskBorrowsWhatCannotBeCopied(t *testing.T) {
	a, b := lenderAndColdBorrower(t, 192<<20, "yes")
	b.lentInPlace(t, 10, a.full(t, 1, largeElements), sumOfFull(largeElements))

	a, b = lenderAndColdBorrower(t, 192<<20, "no")
	in := a.full(t, 1, largeElements)
	b.on(10, opSum, in)
	b.Report(10, workerv1.TaskOutcome_TASK_OUTCOME_INPUT_UNREACHABLE)
	b.on(11, opSum, in)
	if e := b.Report(11).GetError(); e.GetReason() != "OUT_OF_MEMORY" {
		t.Errorf("got %v", e)
	}
}

// A lender brings an object back into its slab for a borrower that cannot copy it.
func TestALenderBringsBackWhatCannotBeCopied(t *testing.T) {
	a, b := lenderAndBorrower(t, 96<<20, "yes")
	in := a.full(t, 1, largeElements)
	a.full(t, 2, largeElements) // it pushes the first one out
	b.lentInPlace(t, 10, in, sumOfFull(largeElements))
}

// An attempt that waits for memory for its result gives its loans back meanwhile. It borrows again
// when it has the memory, since copies do not fit.
func TestAnAttemptBorrowsAgainAfterItsWaitForMemory(t *testing.T) {
	a, b := lenderAndBorrower(t, 192<<20, "yes")
	in := a.full(t, 1, largeElements)
	b.call(20, opFull, []any{5 << 20}, 2.0)
	report := b.Report(20)
	if report.GetOutcome() != workerv1.TaskOutcome_TASK_OUTCOME_SUCCEEDED || report.GetError() != nil {
		t.Fatal(report)
	}
	waits := pipe(t)
	b.on(21, opWait, &workerv1.Input{TaskId: 20, Generation: 1, Bytes: report.GetOutputBytes(), Holders: []uint32{b.ID}}, waits)
	end, err := os.OpenFile(waits, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	// 40 MiB of 64 are in use while task 21 runs.
	b.Assign(&workerv1.Assignment{
		TaskId: 22, Attempt: 1, OpId: opSum, Rank: 22, Inputs: []*workerv1.Input{in}, ExpectedOutputBytes: 40 << 20,
		Arguments: workertest.Arguments(workertest.Input(0)),
	})
	memory := data(t, b.Registration.GetDataAddress())
	for deadline := time.Now().Add(workertest.EventTimeout); ; {
		m, err := memory.DescribeMemory(t.Context(), &millracev1.DescribeMemoryRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if slices.ContainsFunc(m.GetReservations(), func(r *millracev1.MemoryReservation) bool { return !r.GetGranted() && r.GetRequestedBytes() == 40<<20 }) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("task 22 does not wait for memory: %v", m)
		}
	}
	if err := end.Close(); err != nil {
		t.Fatal(err)
	}
	if r := b.summed(t, 22, sumOfFull(largeElements)); r.GetFetchedBytes() != 0 {
		t.Errorf("%d bytes were fetched", r.GetFetchedBytes())
	}
}

func TestExecutorWithoutSegmentsGetsCopies(t *testing.T) {
	const n = 1 << 20
	a, b := lenderAndBorrower(t, 64<<20, "no")
	in := a.full(t, 1, n)
	b.on(2, opSum, in)
	if r := b.summed(t, 2, sumOfFull(n)); r.GetFetchedBytes() < 8*n {
		t.Errorf("got %v", r)
	}
	b.Until("the copy", func() bool { return len(b.Objects) == 1 })
}

// TestLoanThatTheNextProcessCannotRead: the process dies while loans are acquired for it,
// and its successor does not understand segments.
func TestLoanThatTheNextProcessCannotRead(t *testing.T) {
	const n = 1 << 20
	understands := pipe(t)
	a, b := lenderAndBorrower(t, 64<<20, understands)
	in := a.full(t, 1, n)
	b.call(2, opExit)
	b.Report(2)
	b.on(3, opSum, in)
	// The answer to a later message shows that the loan of task 3 has been requested.
	b.Send(&workerv1.SessionResponse{Retractions: []*workerv1.AttemptRef{{TaskId: 4, Attempt: 1}}})
	b.Report(4, workerv1.TaskOutcome_TASK_OUTCOME_RETRACT_REFUSED)
	tell(t, understands, "no")
	if r := b.Report(3); r.GetOutcome() != workerv1.TaskOutcome_TASK_OUTCOME_INPUT_UNREACHABLE || r.GetUnreachable()[0].GetTaskId() != 1 {
		t.Fatalf("got %v", r)
	}
	b.on(5, opSum, in)
	if r := b.summed(t, 5, sumOfFull(n)); r.GetFetchedBytes() < 8*n {
		t.Errorf("got %v", r)
	}
}

func TestExecutorKilledWhileItBorrowsGivesTheLoanBack(t *testing.T) {
	const n = 5 << 20 // 40 MiB of 64
	a, b := lenderAndBorrower(t, 64<<20, "yes", func(c *worker.Config) { c.MemoryWait = shortWait })
	in := a.full(t, 1, n)
	b.call(2, opPid)
	pid, err := strconv.Atoi(b.text(t, 2))
	if err != nil {
		t.Fatal(err)
	}
	waits := pipe(t)
	b.on(3, opWait, in, waits)
	// The run has started when it opens the pipe.
	end, err := os.OpenFile(waits, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer end.Close()
	a.Send(&workerv1.SessionResponse{Releases: []*workerv1.Replica{{TaskId: 1, Generation: 1}}})
	a.call(4, 1, []any{n}, 2.0)
	if r := a.Report(4); r.GetError().GetReason() != "OUT_OF_MEMORY" {
		t.Fatalf("memory that is lent was used again: %v", r)
	}
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if r := b.Report(3); r.GetOutcome() != workerv1.TaskOutcome_TASK_OUTCOME_EXECUTOR_DIED {
		t.Fatalf("got %v", r)
	}
	// This succeeds well before the lease would expire.
	deadline := time.Now().Add(workertest.EventTimeout)
	for task := uint64(5); ; task++ {
		a.call(task, 1, []any{n}, 2.0)
		if a.Report(task).GetError() == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the loan was not given back")
		}
	}
}

// TestResultOfALoanThatDidNotHoldIsThrownAway: the lender leaves while the executor reads,
// and thereby revokes its leases.
func TestResultOfALoanThatDidNotHoldIsThrownAway(t *testing.T) {
	a, b := lenderAndBorrower(t, 64<<20, "yes")
	in := a.full(t, 1, 1<<20)
	waits := pipe(t)
	b.on(2, opWait, in, waits)
	end, err := os.OpenFile(waits, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	a.stop()
	if err := <-a.ended; err != nil {
		t.Errorf("the lender ended with %v", err)
	}
	if err := end.Close(); err != nil {
		t.Fatal(err)
	}
	r := b.Report(2)
	if r.GetOutcome() != workerv1.TaskOutcome_TASK_OUTCOME_INPUT_UNREACHABLE || len(r.GetUnreachable()) != 1 || r.GetUnreachable()[0].GetTaskId() != 1 {
		t.Errorf("got %v", r)
	}
	// The process survives.
	b.call(3, opUpper, "alive")
	if got := b.text(t, 3); got != "ALIVE" {
		t.Errorf("got %q", got)
	}
}

func TestAThousandBorrowedRunsLeaveNoDescriptors(t *testing.T) {
	const n = 16 << 10 // 128 KiB each
	runs := 1000
	if invariant.Enabled {
		runs = 200 // with invariants enabled, each step checks all objects
	}
	a, b := lenderAndBorrower(t, 256<<20, "yes")
	want := sumOfFull(n)
	var inputs []*workerv1.Input
	for i := range uint64(runs) {
		inputs = append(inputs, a.full(t, 1+i, n))
	}
	b.on(5000, opSum, inputs[0])
	b.text(t, 5000)
	b.call(5001, opHolds)
	before := b.text(t, 5001)
	for i, in := range inputs {
		b.on(10_000+uint64(i), opSum, in)
	}
	borrowed := 0
	for i := range inputs {
		if b.summed(t, 10_000+uint64(i), want).GetFetchedBytes() == 0 {
			borrowed++
		}
	}
	// An input is copied instead if its lender answers slowly, as under the race detector.
	if borrowed < runs/10 {
		t.Errorf("%d of %d runs borrowed their input", borrowed, runs)
	}
	b.call(5002, opHolds)
	if after := b.text(t, 5002); after[:strings.IndexByte(after, ',')] != before[:strings.IndexByte(before, ',')] {
		t.Errorf("before %s, after %s", before, after)
	}
}
