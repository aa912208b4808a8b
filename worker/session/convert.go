package session

import (
	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/memory/ledger"
	"github.com/millrace/millrace/worker/lifecycle"
)

// This file turns messages of the scheduler into the machine's words, and the other way round.

// AssignedOf converts an assignment. It leaves out the makers of the inputs, and all that depends
// on the operation.
func AssignedOf(pb *workerv1.Assignment) lifecycle.Assigned {
	assigned := lifecycle.Assigned{
		Ref:  lifecycle.Ref{Task: ids.TaskID(pb.GetTaskId()), Attempt: ids.Attempt(pb.GetAttempt())},
		Rank: pb.GetRank(), Slots: pb.GetSlots(), Resources: pb.GetResources(), Inputs: make([]lifecycle.Input, len(pb.GetInputs())), OutputBytes: pb.GetExpectedOutputBytes(),
	}
	count := 0
	for _, in := range pb.GetInputs() {
		count += len(in.GetHolders())
	}
	holders := make([]ids.WorkerID, 0, count)
	for i, in := range pb.GetInputs() {
		x := &assigned.Inputs[i]
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
	}
	return assigned
}

// ObjectOf returns the object of a replica.
func ObjectOf(r *workerv1.Replica) ledger.ObjectID {
	return ledger.ObjectID{Task: ids.TaskID(r.GetTaskId()), Generation: ids.Attempt(r.GetGeneration())}
}

// ObjectReport returns a report on an object.
func ObjectReport(id ledger.ObjectID, bytes uint64, event workerv1.ObjectEvent) *workerv1.ObjectReport {
	return &workerv1.ObjectReport{Replica: &workerv1.Replica{TaskId: uint64(id.Task), Generation: uint32(id.Generation), Bytes: bytes}, Event: event}
}

// ReportOn returns a report on an attempt.
func ReportOn(ref lifecycle.Ref, outcome lifecycle.Outcome) *workerv1.TaskReport {
	return &workerv1.TaskReport{TaskId: uint64(ref.Task), Attempt: uint32(ref.Attempt), Outcome: workerv1.TaskOutcome(outcome)}
}

// AttemptRef names an attempt in a message.
func AttemptRef(r lifecycle.Ref) *workerv1.AttemptRef {
	return &workerv1.AttemptRef{TaskId: uint64(r.Task), Attempt: uint32(r.Attempt)}
}

// RefOf returns the attempt of a message.
func RefOf(r *workerv1.AttemptRef) lifecycle.Ref {
	return lifecycle.Ref{Task: ids.TaskID(r.GetTaskId()), Attempt: ids.Attempt(r.GetAttempt())}
}

// UnreachableOf returns an input that did not arrive, as a report names it.
func UnreachableOf(u *lifecycle.Unreachable) *workerv1.Unreachable {
	x := &workerv1.Unreachable{TaskId: uint64(u.Object.Task), Generation: uint32(u.Object.Generation)}
	for _, id := range u.FailedAt {
		x.FailedAt = append(x.FailedAt, uint32(id))
	}
	for _, id := range u.MissingAt {
		x.MissingAt = append(x.MissingAt, uint32(id))
	}
	return x
}
