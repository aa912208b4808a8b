package loop

import (
	"fmt"
	"strings"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/worker/lifecycle"
)

// nativeRunner is the kind of the runner of native operations. Each other kind is one of executors.
const nativeRunner = "native"

// replicateOp is the operation that only makes copies of its inputs, so it never borrows.
const replicateOp = "core.replicate"

// op is an operation that the scheduler defined in this session, with its run times.
type op struct {
	pb     *millracev1.Op
	runner string
	// wrong is the reason why it cannot run on this worker, nil if it can.
	wrong *millracev1.TaskError
	times lifecycle.RunTimes
}

// newOp returns an operation on a worker that has the given kinds of executors.
func newOp(pb *millracev1.Op, executors map[string]bool) *op {
	o := &op{pb: pb}
	switch pb.GetKind() {
	case millracev1.OpKind_OP_KIND_NATIVE:
		o.runner = nativeRunner
		return o
	case millracev1.OpKind_OP_KIND_PYTHON_IMPORT, millracev1.OpKind_OP_KIND_PYTHON_PICKLE:
		o.runner = "python"
	case millracev1.OpKind_OP_KIND_EXEC:
		o.runner, _, _ = strings.Cut(pb.GetName(), "/")
	case millracev1.OpKind_OP_KIND_DATA, millracev1.OpKind_OP_KIND_UNSPECIFIED:
		o.wrong = &millracev1.TaskError{Reason: "INVALID_ARGUMENT", Message: fmt.Sprintf("%s is of kind %s, which nobody runs", pb.GetName(), pb.GetKind())}
		return o
	}
	if !executors[o.runner] {
		o.wrong = &millracev1.TaskError{Reason: "FUNCTION_NOT_FOUND", Message: fmt.Sprintf(
			"%s needs an executor named %q, which this worker does not have; register it when the worker is started", pb.GetName(), o.runner)}
	}
	return o
}
