package loop

import (
	"time"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/memory/ledger"
	"github.com/millrace/millrace/worker/device"
	"github.com/millrace/millrace/worker/lifecycle"
)

// This file turns messages of the scheduler into the machine's words.

// attemptOf converts an assignment. It leaves out who makes the inputs; see
// subscriptions.makers.
func attemptOf(pb *workerv1.Assignment, o *op) *attempt {
	ref := lifecycle.Ref{Task: ids.TaskID(pb.GetTaskId()), Attempt: ids.Attempt(pb.GetAttempt())}
	a := &attempt{
		ref: ref, op: o, inputs: make([]device.Input, len(pb.GetInputs())),
		assigned: lifecycle.Assigned{
			Ref: ref, Rank: pb.GetRank(), Slots: pb.GetSlots(), Resources: pb.GetResources(), Inputs: make([]lifecycle.Input, len(pb.GetInputs())),
		},
		carried: carried{
			arguments: pb.GetArguments(), key: pb.GetKey(), namespace: pb.GetNamespace(), timeout: time.Duration(pb.GetTimeoutMillis()) * time.Millisecond,
			priority: pb.GetPriority(),
		},
	}
	if o != nil {
		a.assigned.Runner, a.assigned.Prepares, a.assigned.Estimate = o.runner, o.runner != nativeRunner, o.times.Estimate()
		if o.pb.GetKind() != millracev1.OpKind_OP_KIND_NATIVE {
			// A native operation computes the exact size of its result from its arguments and
			// reserves that (see package native). An average over other calls would often be too
			// small.
			a.assigned.OutputBytes = pb.GetExpectedOutputBytes()
		}
	}
	count := 0
	for _, in := range pb.GetInputs() {
		count += len(in.GetHolders())
	}
	holders := make([]ids.WorkerID, 0, count)
	for i, in := range pb.GetInputs() {
		x := &a.assigned.Inputs[i]
		*x = lifecycle.Input{
			Object: lifecycle.Object{Task: ids.TaskID(in.GetTaskId()), Generation: ids.Attempt(in.GetGeneration()), Item: ids.Item(in.GetItem())},
			Bytes:  in.GetBytes(), Items: in.GetItemCount(), Inline: len(in.GetInlineResult()) > 0,
			Upstream: ids.WorkerID(in.GetUpstreamWorkerId()), Downstream: in.GetHasDownstream(),
		}
		first := len(holders)
		for _, h := range in.GetHolders() {
			holders = append(holders, ids.WorkerID(h))
		}
		x.Holders = holders[first:len(holders):len(holders)]
		if x.Inline {
			a.inputs[i] = narrowed(device.Input{Header: in.GetInlineResult()}, x.Object.Item)
		}
	}
	return a
}

func objectOf(r *workerv1.Replica) ledger.ObjectID {
	return ledger.ObjectID{Task: ids.TaskID(r.GetTaskId()), Generation: ids.Attempt(r.GetGeneration())}
}

func reportOf(id ledger.ObjectID, bytes uint64, event workerv1.ObjectEvent) *workerv1.ObjectReport {
	return &workerv1.ObjectReport{Replica: &workerv1.Replica{TaskId: uint64(id.Task), Generation: uint32(id.Generation), Bytes: bytes}, Event: event}
}

func reportOn(ref lifecycle.Ref, outcome lifecycle.Outcome) *workerv1.TaskReport {
	return &workerv1.TaskReport{TaskId: uint64(ref.Task), Attempt: uint32(ref.Attempt), Outcome: workerv1.TaskOutcome(outcome)}
}

func taskRef(r lifecycle.Ref) *workerv1.AttemptRef {
	return &workerv1.AttemptRef{TaskId: uint64(r.Task), Attempt: uint32(r.Attempt)}
}

func refOf(r *workerv1.AttemptRef) lifecycle.Ref {
	return lifecycle.Ref{Task: ids.TaskID(r.GetTaskId()), Attempt: ids.Attempt(r.GetAttempt())}
}

func unreachableOf(u *lifecycle.Unreachable) *workerv1.Unreachable {
	x := &workerv1.Unreachable{TaskId: uint64(u.Object.Task), Generation: uint32(u.Object.Generation)}
	for _, id := range u.FailedAt {
		x.FailedAt = append(x.FailedAt, uint32(id))
	}
	for _, id := range u.MissingAt {
		x.MissingAt = append(x.MissingAt, uint32(id))
	}
	return x
}
