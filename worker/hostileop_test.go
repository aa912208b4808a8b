package worker_test

import (
	"math"
	"strings"
	"testing"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/worker"
	"github.com/millrace/millrace/worker/workertest"
)

// everywhere returns a tensor of one element with strides of zero, so that it can have any shape.
func everywhere(shape ...int64) *millracev1.Value {
	return &millracev1.Value{Kind: &millracev1.Value_TensorValue{TensorValue: &millracev1.Tensor{
		Dtype: millracev1.DType_DTYPE_FLOAT64, Shape: shape, Strides: make([]int64, len(shape)),
		Location: &millracev1.Tensor_InlineData{InlineData: make([]byte, 8)},
	}}}
}

// A hostile task fails alone: the worker continues in the same process.
func TestHostileNativeTasksFailAlone(t *testing.T) {
	w := start(t, workertest.NewScheduler(t), func(c *worker.Config) { c.SpillLimitBytes, c.MemoryWait = worker.NoSpill, shortWait })
	list := workertest.ValueOf([]any{1, 2, 3, 4, 5, 6, 7, 8, 9, 10})
	references := make([]any, 100)
	for i := range references {
		references[i] = workertest.Input(0)
	}
	task := uint64(100)
	for _, c := range []struct {
		op     string
		args   []any
		reason string
	}{
		{"array.full", []any{[]any{0, 2, -1}, 0}, "INVALID_ARGUMENT"},
		{"array.random", []any{[]any{0, 2, -1}, 1}, "INVALID_ARGUMENT"},
		{"bench.stamp", []any{1, 32, []any{5}, []any{1}}, "OP_FAILED"},
		{"array.matmul", []any{everywhere(1, 1<<50), everywhere(1<<50, 1)}, "OUT_OF_MEMORY"},
		{"array.matmul", []any{everywhere(1, 1<<24), everywhere(1<<24, 1)}, "OUT_OF_MEMORY"}, // needs 128 MiB of working memory, 64 are there
		{"array.svd", []any{everywhere(1<<12, 1<<10)}, "OUT_OF_MEMORY"},
		{"bench.fail", []any{strings.Repeat("x", 1<<20)}, "OP_FAILED"},
		{"array.map", []any{strings.Repeat("\x01", 1<<20)}, "INVALID_ARGUMENT"},
	} {
		task++
		w.Op(uint32(task), native, c.op)
		w.Assign(&workerv1.Assignment{TaskId: task, Attempt: 1, OpId: uint32(task), Arguments: workertest.Arguments(c.args...)})
		r := w.Report(task)
		if e := r.GetError(); e.GetReason() != c.reason || len(e.GetMessage()) > 8<<10 {
			t.Errorf("%s: %s, a message of %d bytes: %.300s", c.op, e.GetReason(), len(e.GetMessage()), e.GetMessage())
		}
	}
	// A list of a hundred lists of a hundred … must not exceed the largest header of a result.
	w.Op(1, native, "core.list")
	header, reason := workertest.ValueBytes(t, list), ""
	for range 5 {
		task++
		w.Assign(&workerv1.Assignment{
			TaskId: task, Attempt: 1, OpId: 1, Arguments: workertest.Arguments(references...),
			Inputs: []*workerv1.Input{{TaskId: 1, Generation: 1, Bytes: uint64(len(header)), InlineResult: header}},
		})
		r := w.Report(task)
		if reason = r.GetError().GetReason(); reason != "" {
			break
		}
		if header = r.GetInlineResult(); header == nil {
			v, _, failed := read(t, data(t, w.Registration.GetDataAddress()), task)
			if failed != nil {
				t.Fatal(failed)
			}
			header = workertest.ValueBytes(t, v)
		}
	}
	if reason != "RESULT_TOO_LARGE" && reason != "INVALID_ARGUMENT" {
		t.Errorf("lists of lists ended with %q", reason)
	}
	// Working memory is released: a result may use nearly all of the memory.
	w.Op(2, native, "array.svd")
	w.Assign(&workerv1.Assignment{TaskId: 2, Attempt: 1, OpId: 2, Arguments: workertest.Arguments(everywhere(512, 256))})
	if r := w.Report(2); r.GetOutcome() != workerv1.TaskOutcome_TASK_OUTCOME_SUCCEEDED {
		t.Errorf("svd: %v", r)
	}
	w.Send(&workerv1.SessionResponse{Releases: []*workerv1.Replica{{TaskId: 2, Generation: 1}}})
	w.Op(3, native, "array.full")
	w.Assign(&workerv1.Assignment{TaskId: 3, Attempt: 1, OpId: 3, Arguments: workertest.Arguments([]any{7 << 20}, math.Pi)})
	if r := w.Report(3); r.GetOutcome() != workerv1.TaskOutcome_TASK_OUTCOME_SUCCEEDED {
		t.Errorf("full: %v", r)
	}
}
