package loop

import (
	executorv1 "github.com/millrace/millrace/gen/go/millrace/executor/v1"
	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/ledger"
	"github.com/millrace/millrace/worker/executor"
	"github.com/millrace/millrace/worker/lifecycle"
)

// runners hands attempts to slots: those of native operations, and those of executors.
type runners struct {
	native *nativeRuns
	// executors may be nil.
	executors    Executors
	functions    *functions
	reservations *reservations
}

// start hands an attempt to its slot. REQUIRES: its inputs are located.
func (r *runners) start(a *attempt, e *lifecycle.StartRun) {
	a.slot, a.fetching, a.loading, a.waiting = e.Slot, e.Fetching, e.Loading, e.Waiting
	reservation := r.reservations.ids[e.Reservation]
	if a.inProcess() {
		r.executors.Start(a.op.runner, e.Slot, r.runOf(a, reservation))
		return
	}
	r.native.start(a, e, reservation)
}

// runOf describes an attempt to an executor.
func (r *runners) runOf(a *attempt, reservation ledger.ReservationID) *executor.Run {
	run := &executor.Run{
		Ref: a.ref, Op: a.op.pb, Arguments: a.arguments, Key: a.key, Namespace: a.namespace, Timeout: a.timeout, Priority: a.priority, Reservation: reservation,
	}
	if a.op.pb.GetKind() == millracev1.OpKind_OP_KIND_PYTHON_PICKLE {
		run.Function = r.functions.of(a.op)
	}
	for i, in := range a.inputs {
		id := a.in(i).Object
		x := &executorv1.ExecutorInput{Header: in.Header, TaskId: uint64(id.Task), Generation: uint32(id.Generation), Item: uint32(id.Item)}
		for _, f := range in.Frames {
			x.Frames = append(x.Frames, &executorv1.FrameLocation{Offset: f.Offset, SizeBytes: f.Bytes})
		}
		run.Inputs = append(run.Inputs, x)
		if a.isLent(i) {
			if run.Spaces == nil && in.Space != nil {
				run.Spaces = make([]memory.Space, len(a.inputs))
			}
			if in.Space != nil { // an object without a Space has a header only
				run.Spaces[i] = in.Space
			}
			continue
		}
		run.InputObjects = append(run.InputObjects, a.inputID(i))
	}
	return run
}

// stop ends a run, begun or not: because it was cancelled, or for a reason for which it fails.
func (r *runners) stop(a *attempt, reason string) {
	switch {
	case a.native != nil && reason != "":
	case a.native != nil:
		r.native.slots.Stop(a.slot, &a.native.Run)
	case reason != "":
		r.executors.Refuse(a.op.runner, a.slot, a.ref, reason)
	default:
		r.executors.Stop(a.op.runner, a.slot, a.ref)
	}
}

// resume lets a run go on that waited for other tasks. Native operations never do.
func (r *runners) resume(a *attempt) {
	if a.native == nil {
		r.executors.Resume(a.op.runner, a.slot, a.ref)
	}
}

// takeBack makes the slot return an attempt that it has not begun.
func (r *runners) takeBack(a *attempt) {
	if a.native != nil {
		r.native.slots.TakeBack(a.slot, &a.native.Run)
	} else {
		r.executors.TakeBack(a.op.runner, a.slot, a.ref)
	}
}
