package loop

import (
	"time"

	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/memory/ledger"
	"github.com/millrace/millrace/worker/lifecycle"
	"github.com/millrace/millrace/worker/session"
)

// step steps the machine and carries out the effects.
func (w *Worker) step(e lifecycle.Event) {
	// Effects may cause further events. These are stepped only after all effects of this step: the
	// machine must not see the answer to one effect before the effects behind it are carried out.
	var then []lifecycle.Event
	for _, effect := range w.machine.Step(time.Now(), e) {
		if next := w.carryOut(effect); next != nil {
			then = append(then, next)
		}
	}
	for _, next := range then {
		w.step(next)
	}
}

func (w *Worker) carryOut(e lifecycle.Effect) (next lifecycle.Event) {
	switch e := e.(type) {
	case lifecycle.StartRun:
		return w.startRun(&e)
	case lifecycle.Publish:
		a := w.take(e.Ref)
		w.subscriptions.publish(a.report, e.To)
		if !w.native.deferReport(a.report) {
			w.outbox.Task(a.report)
		}
	case lifecycle.Discard:
		w.config.Store.Drop(ledger.ObjectID{Task: e.Ref.Task, Generation: e.Ref.Attempt})
	case lifecycle.Report:
		r, final := w.reports.report(&e, w.attempts[e.Ref])
		if final {
			w.take(e.Ref)
		}
		w.outbox.Task(r)
	case lifecycle.Unpin:
		if !w.native.deferUnpin(&e) {
			w.config.Store.Unpin(ledger.ObjectID(e.Object), e.Ref.Task, e.Ref.Attempt)
		}
	case lifecycle.PinInput:
		w.finder.pin(e, w.attempts[e.Ref])
	case lifecycle.Loosen:
		w.config.Store.Loosen(ledger.ObjectID(e.Object), e.Ref.Task, e.Ref.Attempt, w.attempts[e.Ref].assigned.Rank)
	case lifecycle.Drop:
		w.config.Store.Drop(ledger.ObjectID(e.Object))
	case lifecycle.Gained:
		w.outbox.Object(session.ObjectReport(ledger.ObjectID(e.Object), e.Bytes, workerv1.ObjectEvent_OBJECT_EVENT_GAINED))
	case lifecycle.Admit:
		return w.admit(&e)
	case lifecycle.Lease:
		return w.lease(&e)
	case lifecycle.EndLeases:
		if a := w.attempts[e.Ref]; a != nil {
			a.endLoans()
		}
	case lifecycle.NeedFunction:
		w.outbox.Missing(e.Function[:])
	case lifecycle.Await:
		return w.subscriptions.subscribe(e.Awaited)
	case lifecycle.EnterInput:
		w.attempts[e.Ref].enterValue(e)
	case lifecycle.Notify:
		w.subscriptions.notify(e)
	case lifecycle.Unawait:
		w.subscriptions.unsubscribe(e.Awaited)
	case lifecycle.Reserve:
		a := w.attempts[e.Ref]
		return w.reservations.reserve(e, a != nil && a.inProcess())
	case lifecycle.Unreserve:
		w.reservations.release(e.Reservation)
	case lifecycle.StartFetch:
		w.fetch(e)
	case lifecycle.Resume:
		if a := w.attempts[e.Ref]; a != nil {
			w.runners.resume(a)
		}
	case lifecycle.StopRun:
		if a := w.attempts[e.Ref]; a != nil {
			w.runners.stop(a, e.Reason)
		}
	case lifecycle.TakeBack:
		if a := w.attempts[e.Ref]; a != nil {
			w.runners.takeBack(a)
		}
	}
	return nil
}

// admit looks up the inputs of an attempt, unless leases of some are requested first.
func (w *Worker) admit(e *lifecycle.Admit) lifecycle.Event {
	a := w.attempts[e.Ref]
	if w.leases.request(a, e.Ways, e.Large, e.Round) {
		return lifecycle.LeasesRequested{Ref: e.Ref}
	}
	return w.finder.find(a, e)
}

// lease requests leases that a large attempt had given up.
func (w *Worker) lease(e *lifecycle.Lease) lifecycle.Event {
	a := w.attempts[e.Ref]
	if w.leases.request(a, e.Ways, true, e.Round) {
		return nil
	}
	return &lifecycle.Leased{Ref: e.Ref, Answers: make([]lifecycle.LeaseAnswer, len(a.inputs))}
}

// startRun hands an attempt to its slot. If it cannot begin, startRun returns the event that says
// why.
func (w *Worker) startRun(e *lifecycle.StartRun) lifecycle.Event {
	a := w.attempts[e.Ref]
	if why := w.finder.locate(a, e); why != nil {
		return why
	}
	if input, fault := a.absent(); fault != nil {
		return w.reports.cannotRun(a, input, fault)
	}
	w.runners.start(a, e)
	return nil
}

func (w *Worker) fetch(e lifecycle.StartFetch) {
	reservations := make([]ledger.ReservationID, len(e.Objects))
	for i, o := range e.Objects {
		reservations[i] = w.reservations.ids[o.Reservation]
	}
	w.config.Native.GiveWay()
	if f := w.peers.Fetch(e, reservations, e.Peer == w.Self(), w.takesFetch && w.takenFetch == nil); f != nil {
		w.takenFetch = f
	}
}

func (w *Worker) take(ref lifecycle.Ref) *attempt {
	a := w.attempts[ref]
	delete(w.attempts, ref)
	if a != nil {
		a.endLoans()
	}
	return a
}
