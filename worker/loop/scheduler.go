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
