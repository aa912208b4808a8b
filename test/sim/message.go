package sim

import (
	"fmt"
	"slices"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/sched"
)

// schedulerMessage is one message to a worker. The worker handles stop and reregister first, then
// the registration, peers and accepted objects, then the other orders in the order of the fields.
type schedulerMessage struct {
	registered    ids.WorkerID
	peers         []peer
	functions     []ids.FunctionHash
	dropped       []ids.FunctionHash // come before functions
	assignments   []assignment
	freed         []sched.TaskRef
	retractions   []sched.TaskRef
	cancellations []sched.TaskRef
	releases      []sched.Replica
	rescues       []rescue
	accepted      []sched.Replica
	keeps         []sched.Replica
	drained       bool
	leave         bool // an operator retires or restarts the worker
	reregister    bool
	stop          string
}

// peer gives the address of a worker; at is nil if the worker is gone.
type peer struct {
	worker ids.WorkerID
	at     *process
}

type assignment struct {
	sched.Assignment
	op sched.OpSpec
}

// workerMessage is one message from a worker.
type workerMessage struct {
	reports []sched.Report
	gained  []sched.Stored
	lost    []sched.Replica
	failed  []sched.RescueFailed
	// draining asks to leave; leaving announces the end.
	draining, leaving bool
}

func (m *workerMessage) empty() bool {
	return len(m.reports)+len(m.gained)+len(m.lost)+len(m.failed) == 0 && !m.draining && !m.leaving
}

// clone copies the message, because the machine may keep its slices.
func (m workerMessage) clone() workerMessage {
	return workerMessage{slices.Clone(m.reports), slices.Clone(m.gained), slices.Clone(m.lost), slices.Clone(m.failed), m.draining, m.leaving}
}

// String lists the content of a message.
func (o *schedulerMessage) String() string {
	b := []byte{}
	if o.registered != 0 {
		b = fmt.Appendf(b, "registered %s ", o.registered)
	}
	for _, hash := range o.dropped {
		b = fmt.Appendf(b, "drop %.4x ", hash[:])
	}
	for _, hash := range o.functions {
		b = fmt.Appendf(b, "function %.4x ", hash[:])
	}
	for i := range o.assignments {
		b = fmt.Appendf(b, "assign %s/%s ", o.assignments[i].Task, o.assignments[i].Attempt)
	}
	for _, r := range o.freed {
		b = fmt.Appendf(b, "free %s/%s ", r.Task, r.Attempt)
	}
	for _, r := range o.retractions {
		b = fmt.Appendf(b, "retract %s/%s ", r.Task, r.Attempt)
	}
	for _, r := range o.cancellations {
		b = fmt.Appendf(b, "cancel %s/%s ", r.Task, r.Attempt)
	}
	for _, r := range o.releases {
		b = fmt.Appendf(b, "release %s/%s ", r.Task, r.Generation)
	}
	for _, r := range o.rescues {
		b = fmt.Appendf(b, "rescue %s of %s ", r.object, r.dead)
	}
	for _, r := range o.accepted {
		b = fmt.Appendf(b, "accept %s/%s ", r.Task, r.Generation)
	}
	for _, r := range o.keeps {
		b = fmt.Appendf(b, "keep %s/%s ", r.Task, r.Generation)
	}
	if o.drained {
		b = append(b, "drained "...)
	}
	if o.leave {
		b = append(b, "leave "...)
	}
	if o.reregister {
		b = append(b, "reregister "...)
	}
	return string(append(b, o.stop...))
}

// String lists the content of a message.
func (m *workerMessage) String() string {
	b := []byte{}
	for i := range m.reports {
		r := &m.reports[i]
		b = fmt.Appendf(b, "%s/%s outcome %d ", r.Task, r.Attempt, r.Outcome)
		for _, u := range r.Unreachable {
			b = fmt.Appendf(b, "(no %s/%s: failed %v missing %v) ", u.Task, u.Generation, u.FailedAt, u.MissingAt)
		}
	}
	for _, g := range m.gained {
		b = fmt.Appendf(b, "gained %s/%s ", g.Task, g.Generation)
	}
	for _, g := range m.lost {
		b = fmt.Appendf(b, "lost %s/%s ", g.Task, g.Generation)
	}
	for _, f := range m.failed {
		b = fmt.Appendf(b, "not rescued %v of %s ", f.Objects, f.Dead)
	}
	if m.draining {
		b = append(b, "draining "...)
	}
	if m.leaving {
		b = append(b, "leaving"...)
	}
	return string(b)
}
