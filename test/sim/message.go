package sim

import (
	"fmt"

	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
)

// saidDown lists the content of a message to a worker.
func saidDown(m *workerv1.SessionResponse) string {
	b := []byte{}
	if r := m.GetRegistered(); r != nil {
		b = fmt.Appendf(b, "registered w%d ", r.GetWorkerId())
	}
	for _, hash := range m.GetDroppedFunctions() {
		b = fmt.Appendf(b, "drop %.4x ", hash)
	}
	for _, f := range m.GetFunctions() {
		b = fmt.Appendf(b, "function %.4x ", f.GetHash())
	}
	for _, a := range m.GetAssignments() {
		b = fmt.Appendf(b, "assign t%d/a%d ", a.GetTaskId(), a.GetAttempt())
	}
	refs := func(verb string, list []*workerv1.AttemptRef) {
		for _, r := range list {
			b = fmt.Appendf(b, "%s t%d/a%d ", verb, r.GetTaskId(), r.GetAttempt())
		}
	}
	refs("free", m.GetFreedSlots())
	refs("retract", m.GetRetractions())
	refs("cancel", m.GetCancellations())
	objects := func(verb string, list []*workerv1.Replica) {
		for _, r := range list {
			b = fmt.Appendf(b, "%s t%d/a%d ", verb, r.GetTaskId(), r.GetGeneration())
		}
	}
	objects("release", m.GetReleases())
	for _, r := range m.GetRescues() {
		objects(fmt.Sprintf("rescue of w%d", r.GetWorkerId()), r.GetObjects())
	}
	objects("accept", m.GetAcceptedWrites())
	objects("keep", m.GetKeeps())
	if m.GetDrained() {
		b = append(b, "drained "...)
	}
	if m.GetLeave() != nil {
		b = append(b, "leave "...)
	}
	if m.GetReregister() {
		b = append(b, "reregister "...)
	}
	return string(append(b, m.GetStopReason()...))
}

// saidUp lists the content of a message of a worker.
func saidUp(m *workerv1.SessionRequest) string {
	b := []byte{}
	for _, r := range m.GetTasks() {
		b = fmt.Appendf(b, "t%d/a%d outcome %d ", r.GetTaskId(), r.GetAttempt(), r.GetOutcome())
		for _, u := range r.GetUnreachable() {
			b = fmt.Appendf(b, "(no t%d/a%d: failed %v missing %v) ", u.GetTaskId(), u.GetGeneration(), u.GetFailedAt(), u.GetMissingAt())
		}
	}
	for _, o := range m.GetObjects() {
		b = fmt.Appendf(b, "object t%d/a%d event %d ", o.GetReplica().GetTaskId(), o.GetReplica().GetGeneration(), o.GetEvent())
	}
	for _, r := range m.GetRescues() {
		b = fmt.Appendf(b, "not rescued from w%d: ", r.GetWorkerId())
		for _, o := range r.GetFailed() {
			b = fmt.Appendf(b, "t%d/a%d ", o.GetTaskId(), o.GetGeneration())
		}
	}
	if m.GetDraining() {
		b = append(b, "draining "...)
	}
	if m.GetLeaving() {
		b = append(b, "leaving"...)
	}
	return string(b)
}
