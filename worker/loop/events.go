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
		if w.asked && x.Since >= lifecycle.AloneGrace && w.machine.Len() == 0 && !w.peers.Rescuing() && w.stopped == nil {
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
