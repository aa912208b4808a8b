package loop

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/worker/device"
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

// reading says how the operation reads inputs at peers, on a device that can read there or is nil.
func (o *op) reading(d device.InPlace) lifecycle.Reading {
	if d == nil || o.runner != nativeRunner {
		return lifecycle.ReadsAgain
	}
	return lifecycle.Reading(d.Reads(o.pb.GetName()))
}

// functions are the pickled functions that the scheduler has sent and not dropped.
type functions struct {
	known map[ids.FunctionHash]*millracev1.Function
	// executors may be nil.
	executors Executors
}

// of returns the function of an operation, nil if it is not here.
func (f *functions) of(o *op) *millracev1.Function { return f.known[hash32(o.pb.GetFunction())] }

// add stores functions. Attempts may wait for them.
func (f *functions) add(list []*millracev1.Function) lifecycle.FunctionsCame {
	e := lifecycle.FunctionsCame{Functions: make([]ids.FunctionHash, len(list))}
	for i, x := range list {
		e.Functions[i] = hash32(x.GetHash())
		f.known[e.Functions[i]] = x
	}
	return e
}

// drop forgets functions that no task refers to.
func (f *functions) drop(hashes [][]byte) {
	for _, hash := range hashes {
		delete(f.known, hash32(hash))
	}
	if f.executors != nil {
		f.executors.DropFunctions(hashes)
	}
}

// hashes names all functions, in ascending order.
func (f *functions) hashes() (list [][]byte) {
	for _, hash := range slices.SortedFunc(maps.Keys(f.known), func(a, b ids.FunctionHash) int { return bytes.Compare(a[:], b[:]) }) {
		list = append(list, hash[:])
	}
	return list
}

func hash32(b []byte) (h [32]byte) {
	copy(h[:], b)
	return h
}
