package loop

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/memory/ledger"
	"github.com/millrace/millrace/worker/lifecycle"
	"github.com/millrace/millrace/worker/peers"
	"github.com/millrace/millrace/worker/session"
	"github.com/millrace/millrace/worker/store"
	"github.com/millrace/millrace/worker/tasklog"
)

// open begins a session: its registration contains everything that the worker has.
func (w *Worker) open() *workerv1.Registration {
	w.native.settle() // then the reports of all ended runs are in the outbox
	clear(w.ops)
	w.peers.RepeatRoutes()
	r := proto.Clone(w.config.Registration).(*workerv1.Registration)
	// Attempts whose reports are not sent yet count as running; otherwise the scheduler would place
	// them again.
	written := w.writes.Reports()
	for _, ref := range append(w.outbox.Reopen(written), w.machine.Attempts()...) {
		r.Running = append(r.Running, session.AttemptRef(ref))
	}
	for _, o := range written {
		r.Written = append(r.Written, o.GetReplica())
	}
	for _, o := range w.config.Store.Inventory() {
		r.Inventory = append(r.Inventory, &workerv1.Replica{TaskId: uint64(o.ID.Task), Generation: uint32(o.ID.Generation), Bytes: o.Bytes()})
	}
	r.Functions = w.functions.hashes()
	r.Life = w.life
	return r
}

// scheduler handles a message of the scheduler.
func (w *Worker) scheduler(r *workerv1.SessionResponse) {
	if x := r.GetRegistered(); x != nil {
		first := w.self.Load() == 0
		w.life = x.GetLife()
		w.self.Store(x.GetWorkerId())
		w.subscriptions.inlineBytes = x.GetInlineResultBytes()
		w.config.Native.Registered(x.GetInlineResultBytes())
		w.writes.Registered(x.GetLife(), x.GetInlineResultBytes())
		w.step(lifecycle.Registered{Self: ids.WorkerID(x.GetWorkerId())})
		if w.config.Executors != nil {
			w.config.Executors.Registered(ids.WorkerID(x.GetWorkerId()), uint64(x.GetInlineResultBytes()))
		}
		if first && w.config.Ready != nil {
			w.config.Ready(ids.WorkerID(x.GetWorkerId()))
		}
		w.log.Info("registered", "id", ids.WorkerID(x.GetWorkerId()), "cluster", x.GetClusterId())
		if w.drained = false; w.asked {
			w.outbox.Drain() // the scheduler does not know it in a new session
		}
	}
	for _, d := range r.GetOps() {
		w.ops[d.GetOpId()] = newOp(d.GetOp(), w.executors)
	}
	for _, p := range r.GetPeers() {
		w.peers.Set(p)
	}
	if dropped := r.GetDroppedFunctions(); len(dropped) > 0 {
		// A function that the message also contains is needed again.
		w.functions.drop(dropped)
	}
	if len(r.GetFunctions()) > 0 {
		w.step(w.functions.add(r.GetFunctions()))
	}
	for _, x := range r.GetAcceptedWrites() { // before the assignments that waited for them
		w.writes.Accept(session.ObjectOf(x))
	}
	for _, a := range r.GetAssignments() {
		w.assign(a)
		w.urgent()
	}
	for _, ref := range r.GetFreedSlots() {
		w.step(lifecycle.SlotFreed{Ref: session.RefOf(ref)})
	}
	for _, ref := range r.GetRetractions() {
		w.step(lifecycle.Retracted{Ref: session.RefOf(ref)})
	}
	for _, ref := range r.GetCancellations() {
		w.step(lifecycle.Cancelled{Ref: session.RefOf(ref)})
	}
	for _, o := range r.GetReleases() {
		w.writes.Released(session.ObjectOf(o))
		w.step(lifecycle.Released{Object: lifecycle.Object(session.ObjectOf(o))})
		w.urgent()
	}
	for _, order := range r.GetRescues() {
		for _, x := range w.peers.Rescue(order) {
			w.rescued(x)
		}
	}
	if n := len(r.GetNextUses()); n > 0 {
		uses := make([]store.Use, n)
		for i, u := range r.GetNextUses() {
			uses[i] = store.Use{ID: ledger.ObjectID{Task: ids.TaskID(u.GetTaskId()), Generation: ids.Attempt(u.GetGeneration())}, Rank: u.GetRank()}
		}
		w.config.Store.Expect(uses)
	}
	w.keep(r.GetKeeps())
	w.drained = w.drained || r.GetDrained()
	if r.GetStopReason() != "" && w.stopped == nil {
		w.stopped = &session.StoppedError{Reason: r.GetStopReason()}
	}
	if order := r.GetLeave(); order != nil && w.stopped == nil {
		// The other orders in this message are carried out by now, or not needed any more.
		w.drained = true
		w.leave(order.GetReason())
		if order.GetRestart() {
			w.stopped = &session.RestartError{Reason: order.GetReason()}
		}
	}
}

// assign gives the machine an attempt.
func (w *Worker) assign(pb *workerv1.Assignment) {
	a := newAttempt(pb, w.ops[pb.GetOpId()])
	if w.attempts[a.ref] != nil {
		return
	}
	switch {
	case a.op == nil:
		w.outbox.Task(w.reports.failed(a, "PROTOCOL_VIOLATION", fmt.Sprintf("assignment %s names op %d, which this session has not defined", a.ref, pb.GetOpId())))
		return
	case a.op.wrong != nil:
		w.outbox.Task(w.reports.failed(a, a.op.wrong.GetReason(), a.op.wrong.GetMessage()))
		return
	case a.op.pb.GetKind() == millracev1.OpKind_OP_KIND_PYTHON_PICKLE && w.functions.of(a.op) == nil:
		a.assigned.Function = lifecycle.Function{Name: a.op.pb.GetName(), Hash: hash32(a.op.pb.GetFunction())}
	}
	w.subscriptions.makers(a, pb, w.Self(), w.attempts)
	a.known = time.Now()
	a.assigned.Reads, a.assigned.Replicates = a.op.reading(w.inPlace), a.op.pb.GetName() == replicateOp
	w.attempts[a.ref] = a
	w.step(&a.assigned)
}

// rescued passes a rescued object to the machine, which reports it. It may be gone by now: it came
// by a fetch for which nobody waited any more. The scheduler is told that.
func (w *Worker) rescued(x peers.Gained) {
	if o, here := w.config.Store.Keep(x.Object); here {
		w.step(lifecycle.Rescued{Object: lifecycle.Object(x.Object), Bytes: o.Bytes()})
		if w.asked && w.drained {
			w.drained = false // the scheduler has agreed before it knew of this object
			w.outbox.Drain()
		}
		return
	}
	w.outbox.Rescue(&workerv1.RescueReport{
		WorkerId: uint32(x.Dead), Reason: fmt.Sprintf("object %s was dropped again before its rescue was reported", x.Object),
		Failed: []*workerv1.Replica{{TaskId: uint64(x.Object.Task), Generation: uint32(x.Object.Generation)}},
	})
}

// keep makes objects stay that were copied from other workers, and tells the scheduler which of
// them are here.
func (w *Worker) keep(keeps []*workerv1.Replica) {
	for _, pb := range keeps {
		o, here := w.config.Store.Keep(session.ObjectOf(pb))
		if here {
			w.outbox.Object(session.ObjectReport(session.ObjectOf(pb), o.Bytes(), workerv1.ObjectEvent_OBJECT_EVENT_KEPT))
			continue
		}
		w.outbox.Object(&workerv1.ObjectReport{Replica: pb, Event: workerv1.ObjectEvent_OBJECT_EVENT_LOST})
	}
}

// askToLeave asks the scheduler for permission to leave. The scheduler then places nothing new
// here, and has other workers copy the objects that only this worker holds.
func (w *Worker) askToLeave() {
	w.log.Info("asked to leave: ending what runs, and handing over what no other worker has",
		"running", w.machine.Len(), "objects", len(w.config.Store.Inventory()), "grace", w.config.DrainGrace)
	w.asked = true
	w.outbox.Drain()
}

// pending says what is under way besides the attempts.
func (w *Worker) pending() lifecycle.Pending {
	return lifecycle.Pending{Leases: w.leases.pending > 0, Rescues: w.peers.Rescuing()}
}

func (w *Worker) leave(why string) {
	if running, objects := w.machine.Len(), len(w.config.Store.Inventory()); !w.asked || w.drained || running+objects == 0 {
		w.log.Info("leaving", "reason", why)
	} else {
		// The scheduler recomputes the lost objects that it can.
		w.log.Warn("leaving before all was handed over", "reason", why, "running", running, "objects", objects)
	}
	w.sessions.Leave()
	w.native.settle()
	w.outbox.Leave()
	w.leaving = true
	w.stopped = errLeft
}

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

// reports makes the reports on attempts.
type reports struct {
	// worker is the name of this worker.
	worker string
	logs   *tasklog.Logs
}

// failed makes the report on an attempt that the machine never received.
func (p *reports) failed(a *attempt, reason, message string) *workerv1.TaskReport {
	r := session.ReportOn(a.ref, lifecycle.Failed)
	r.Error = p.complete(&millracev1.TaskError{Reason: reason, Message: message}, a)
	return r
}

// complete fills in the fields that every error has, unless they are set.
func (p *reports) complete(e *millracev1.TaskError, a *attempt) *millracev1.TaskError {
	if e.Worker == "" {
		e.Worker = p.worker
	}
	e.Attempt = uint32(a.ref.Attempt)
	if e.OriginKey == "" {
		e.OriginKey = a.key
	}
	if e.LogTail == "" {
		e.LogTail = p.logs.Tail(a.ref.Task, a.ref.Attempt)
	}
	return e
}

// ran makes the report on a run.
func (p *reports) ran(a *attempt, outcome lifecycle.Outcome, bytes uint64, inline []byte, took time.Duration, fault *millracev1.TaskError) {
	r := session.ReportOn(a.ref, outcome)
	r.OutputBytes, r.InlineResult, r.RunNanos, r.FetchedBytes, r.Slot = bytes, inline, uint64(took), a.fetched, uint32(a.slot)+1
	r.FetchNanos, r.LoadNanos, r.WaitNanos = uint64(a.fetching), uint64(a.loading), uint64(a.waiting)
	if fault != nil {
		r.Error = p.complete(fault, a)
	}
	a.report = r
}

// cannotRun makes the report on an attempt that has an error before it runs, because of an input,
// counted from 1.
func (p *reports) cannotRun(a *attempt, input uint32, fault *millracev1.TaskError) lifecycle.Event {
	a.report = session.ReportOn(a.ref, lifecycle.Failed)
	a.report.Error, a.report.InputAtFault = p.complete(fault, a), input
	return lifecycle.RunEnded{Ref: a.ref, Outcome: lifecycle.Failed}
}

// report makes the report that the machine orders on an attempt, nil if it is unknown. It says
// whether that is the final one.
func (p *reports) report(e *lifecycle.Report, a *attempt) (r *workerv1.TaskReport, final bool) {
	r = session.ReportOn(e.Ref, e.Outcome)
	switch e.Outcome {
	case lifecycle.Started, lifecycle.RetractRefused, lifecycle.WaitsForTasks, lifecycle.GoesOn:
		return r, false
	case lifecycle.Failed, lifecycle.ExecutorDied, lifecycle.Dropped:
		if a != nil && a.report != nil {
			a.report.Outcome = r.Outcome
			r = a.report
		}
		if e.Reason != "" {
			r.Error = p.complete(&millracev1.TaskError{Reason: e.Reason, Message: e.Message}, a)
		}
		r.InlineResult, r.OutputBytes = nil, 0
	case lifecycle.InputUnreachable:
		if a != nil && a.report != nil {
			r.Unreachable = a.report.GetUnreachable()
		}
		for i := range e.Unreachable {
			r.Unreachable = append(r.Unreachable, session.UnreachableOf(&e.Unreachable[i]))
		}
	case lifecycle.Succeeded, lifecycle.GivenBack:
	}
	return r, true
}
