package loop

import (
	"fmt"

	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/worker/executor"
	"github.com/millrace/millrace/worker/lifecycle"
	"github.com/millrace/millrace/worker/native"
	"github.com/millrace/millrace/worker/peers"
	"github.com/millrace/millrace/worker/session"
	"github.com/millrace/millrace/worker/writes"
)

// drainInbox handles all events that wait.
func (w *Worker) drainInbox() {
	batch := w.inbox.Take()
	for _, x := range batch {
		w.handle(x)
	}
	w.inbox.Reuse(batch)
}

func (w *Worker) handle(x any) {
	switch x := x.(type) {
	case session.Message:
		if x.Session == w.session {
			w.scheduler(x.Response)
		}
	case session.Opening:
		w.session = x.Session
		x.Reply <- w.open()
	case session.Failed:
		if w.stopped == nil {
			w.stopped = x.Err
		}
	case session.Alone:
		w.step(lifecycle.Disconnected{})
		if w.asked && w.stopped == nil && w.machine.LeavesAlone(w.pending(), x.Since) {
			w.leave("the scheduler is away, and nothing runs")
		}
	case []*native.Run, completed:
		w.handleUrgent(x)
	case []executor.Result:
		for i := range x {
			w.executorEnded(&x[i])
		}
	case requested:
		for _, ask := range x.requests {
			w.step(w.subscriptions.ask(x.subscriber, ask))
		}
	case left:
		w.step(lifecycle.Unasked{By: x.subscriber, All: true})
	case borrowed:
		if e := w.leases.answered(x, w.attempts[x.attempt.ref] == x.attempt); e != nil {
			w.step(e)
		}
	case *writes.Write:
		if report := w.writes.Committed(x, w.renewing != nil, w.machine.Has(x.ID.Task)); report != nil {
			w.outbox.Object(report)
		}
	case *session.Renewal:
		w.renew(x)
	case reservationResult:
		for _, e := range x.events() {
			w.step(e)
		}
	case peers.Gained:
		w.rescued(x)
	case peers.Rescued:
		if report := w.peers.Ended(x); report != nil {
			w.outbox.Rescue(report)
		}
	case unmapped:
		w.outbox.Rescue(&workerv1.RescueReport{WorkerId: uint32(x.peer), Unmapped: true})
	case gone:
		if x.object.Item == 0 { // otherwise the scheduler does not know of it
			w.outbox.Object(session.ObjectReport(x.object, 0, workerv1.ObjectEvent_OBJECT_EVENT_LOST))
		}
	case peers.Outcomes:
		for _, e := range x.Events {
			w.step(e)
		}
		w.peers.Usable(x)
	case lifecycle.Event:
		w.step(x)
	default:
		panic(fmt.Sprintf("loop: posted %T", x))
	}
}

// nativeEnded handles a run that its native slot has finished or returned.
func (w *Worker) nativeEnded(ended *native.Run) {
	a := w.attempts[ended.Ref]
	if a == nil || a.native == nil || &a.native.Run != ended {
		return
	}
	r := a.native
	a.native = nil
	switch {
	case r.Returned:
		a.notBegun()
		w.step(lifecycle.RunReturned{Ref: r.Ref})
		return
	case r.NoRoom != nil:
		a.notBegun()
		w.step(lifecycle.NoRoom{Ref: r.Ref, Bytes: r.NoRoom})
		return
	}
	a.op.times.Observe(r.RunTime)
	r.attempt, r.loans = a, a.loans
	if broken := a.endLoans(); len(broken) > 0 {
		w.native.settleRun(r)
		w.step(w.leases.broken(a, broken))
		return
	}
	w.reports.ran(a, lifecycle.Succeeded, r.Bytes, r.Inline, r.RunTime, r.Failure)
	w.native.end(r, func() {
		w.step(lifecycle.RunEnded{Ref: r.Ref, Succeeded: r.Failure == nil, Outcome: lifecycle.Failed, Moved: r.Made()})
	})
}

// executorEnded handles a result of an executor.
func (w *Worker) executorEnded(r *executor.Result) {
	a := w.attempts[r.Ref]
	if a == nil || a.native != nil {
		return
	}
	switch {
	case r.Blocked:
		w.step(lifecycle.Blocked{Ref: r.Ref})
		return
	case r.Unblocked:
		w.step(lifecycle.Unblocked{Ref: r.Ref})
		return
	case r.Called:
		w.step(lifecycle.Called{Ref: r.Ref})
		return
	case r.Returned:
		w.step(lifecycle.RunReturned{Ref: r.Ref})
		return
	case r.NoSegments:
		w.step(w.leases.unmappable(a))
		return
	}
	w.reports.ran(a, r.Outcome, r.Bytes, r.Inline, r.RunTime, r.Error)
	a.report.LogTail = w.config.Logs.Tail(r.Ref.Task, r.Ref.Attempt)
	a.report.DeserializeNanos, a.report.PublishNanos = uint64(r.DeserializeTime), uint64(r.PublishTime)
	if r.Outcome != lifecycle.ExecutorDied {
		a.op.times.Observe(r.RunTime)
	}
	if broken := a.endLoans(); len(broken) > 0 {
		w.step(w.leases.broken(a, broken))
		return
	}
	w.step(lifecycle.RunEnded{Ref: r.Ref, Succeeded: r.Outcome == lifecycle.Succeeded, Outcome: r.Outcome})
}

// urgent handles ended runs and notifications from peers before their turn in the inbox: one
// message of the scheduler may carry a thousand assignments, and a peer may wait for the result of
// the first. These events do not depend on the events that were posted before them.
func (w *Worker) urgent() {
	first := w.inbox.TakeFirst(isUrgent)
	for _, x := range first {
		w.handleUrgent(x)
	}
	if len(first) > 0 {
		w.subscriptions.flush()
	}
}

// isUrgent says of an event whether it is an end of native runs or a notification from peers.
func isUrgent(x any) bool {
	switch x.(type) {
	case []*native.Run, completed:
		return true
	}
	return false
}

// handleUrgent handles such an event.
func (w *Worker) handleUrgent(x any) {
	switch x := x.(type) {
	case []*native.Run:
		for _, r := range x {
			w.nativeEnded(r)
		}
	case completed:
		for i := range x {
			w.step(made(&x[i]))
		}
	}
}
