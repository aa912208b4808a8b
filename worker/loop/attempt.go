package loop

import (
	"errors"
	"fmt"
	"strings"
	"time"

	executorv1 "github.com/millrace/millrace/gen/go/millrace/executor/v1"
	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/ledger"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/worker/device"
	"github.com/millrace/millrace/worker/executor"
	"github.com/millrace/millrace/worker/lifecycle"
	"github.com/millrace/millrace/worker/store"
)

const nativeRunner = "native"

// op is an operation that the scheduler defined in this session, with its run times.
type op struct {
	pb     *millracev1.Op
	runner string
	// wrong is the reason why it cannot run on this worker, nil if it can.
	wrong *millracev1.TaskError
	times lifecycle.RunTimes
}

func (w *Worker) newOp(pb *millracev1.Op) *op {
	o := &op{pb: pb}
	switch pb.GetKind() {
	case millracev1.OpKind_OP_KIND_NATIVE:
		o.runner = nativeRunner
		return o
	case millracev1.OpKind_OP_KIND_PYTHON_IMPORT, millracev1.OpKind_OP_KIND_PYTHON_PICKLE:
		o.runner = "python"
	case millracev1.OpKind_OP_KIND_EXEC:
		o.runner, _, _ = strings.Cut(pb.GetName(), "/")
	case millracev1.OpKind_OP_KIND_DATA, millracev1.OpKind_OP_KIND_UNSPECIFIED:
		o.wrong = &millracev1.TaskError{Reason: "INVALID_ARGUMENT", Message: fmt.Sprintf("%s is of kind %s, which nobody runs", pb.GetName(), pb.GetKind())}
		return o
	}
	if !w.executors[o.runner] {
		o.wrong = &millracev1.TaskError{Reason: "FUNCTION_NOT_FOUND", Message: fmt.Sprintf(
			"%s needs an executor named %q, which this worker does not have; register it when the worker is started", pb.GetName(), o.runner)}
	}
	return o
}

// attempt is the owner's record of one attempt of a task, from its assignment until its final
// report.
type attempt struct {
	ref lifecycle.Ref
	// assigned and admitted are the events that the machine gets.
	assigned lifecycle.Assigned
	admitted lifecycle.Admitted
	carried
	op     *op
	inputs []device.Input
	// whole says of inputs that are items whether the whole list is here: then the attempt has
	// pinned the list, and not a copy of the item. By input index; nil if there are none.
	whole []bool
	// fetched is the number of bytes that were fetched from peers for it.
	fetched uint64
	slot    int
	// fetching, loading and waiting are the times that it waited for inputs of other workers, for
	// inputs of lower tiers, and for memory.
	fetching, loading, waiting time.Duration
	// native is its run in a native slot, nil while there is none.
	native *nativeRun
	// known is the time when all its inputs were made and known to be.
	known time.Time
	// report is the report that its run produced.
	report *workerv1.TaskReport
	// loans are the leases of its borrowed inputs, by input index. An entry without End is no
	// lease.
	loans []transfer.Loan
	// readAt are the peers at which inputs are read in place, by input index; an entry without an
	// address means that the input is not.
	readAt []transfer.Peer
}

func (w *Worker) assign(pb *workerv1.Assignment) {
	a := attemptOf(pb, w.ops[pb.GetOpId()])
	if w.attempts[a.ref] != nil {
		return
	}
	switch {
	case a.op == nil:
		w.fail(a, "PROTOCOL_VIOLATION", fmt.Sprintf("assignment %s names op %d, which this session has not defined", a.ref, pb.GetOpId()))
		return
	case a.op.wrong != nil:
		w.fail(a, a.op.wrong.GetReason(), a.op.wrong.GetMessage())
		return
	case a.op.pb.GetKind() == millracev1.OpKind_OP_KIND_PYTHON_PICKLE && w.functions[hash32(a.op.pb.GetFunction())] == nil:
		a.assigned.Function = lifecycle.Function{Name: a.op.pb.GetName(), Hash: hash32(a.op.pb.GetFunction())}
	}
	w.early(a, pb)
	a.known = time.Now()
	a.assigned.Reads, a.assigned.Replicates = w.nearby.reads(a.op), a.op.pb.GetName() == replicateOp
	w.attempts[a.ref] = a
	w.step(&a.assigned)
}

// admit looks up the inputs of an attempt, unless leases of some are requested first.
func (w *Worker) admit(e lifecycle.Admit) lifecycle.Event {
	a := w.attempts[e.Ref]
	if w.request(a, e.Ways, e.Large, e.Round) {
		return lifecycle.LeasesRequested{Ref: e.Ref}
	}
	return w.lookUp(a, e)
}

// lease requests leases that a large attempt had given up.
func (w *Worker) lease(e lifecycle.Lease) lifecycle.Event {
	a := w.attempts[e.Ref]
	if w.request(a, e.Ways, true, e.Round) {
		return nil
	}
	return &lifecycle.Leased{Ref: e.Ref, Answers: make([]lifecycle.LeaseAnswer, len(a.inputs))}
}

// lookUp looks up the inputs of an attempt, and pins those that are here. Inputs that need no pin
// are inline values, small headers, and inputs that are borrowed or read in place.
func (w *Worker) lookUp(a *attempt, order lifecycle.Admit) *lifecycle.Admitted {
	a.known, a.whole, a.readAt = time.Now(), nil, nil
	e := &a.admitted
	*e = lifecycle.Admitted{Ref: a.ref, Estimate: a.op.times.Estimate(), Found: make([]lifecycle.Found, len(a.inputs))}
	e.MapsNothing = order.Large && !w.borrows(a, true)
	w.wanted = w.wanted[:0]
	for i := range a.inputs {
		in := a.in(i)
		if in.Inline {
			e.Found[i].Place = lifecycle.Kept
			continue
		}
		a.inputs[i] = device.Input{}
		if lent, ok := a.lentInput(i); ok {
			a.inputs[i], e.Found[i].Place = lent, lifecycle.Kept
			continue
		}
		if order.Ways != nil && order.Ways[i].Read {
			if peer, ok := w.reader(in); ok {
				if a.readAt == nil {
					a.readAt = make([]transfer.Peer, len(a.inputs))
				}
				a.readAt[i], e.Found[i].Place = peer, lifecycle.InPlace
				continue
			}
		}
		w.wanted = append(w.wanted, ledger.ObjectID(in.Object))
	}
	if len(w.wanted) == 0 {
		return e
	}
	objects, loose := w.config.Store.Admit(a.ref.Task, a.ref.Attempt, a.assigned.Rank, w.wanted, order.Waits, order.Copies, w.objects[:0])
	w.objects = objects
	for i := range e.Found {
		f := &e.Found[i]
		if f.Place != lifecycle.Elsewhere {
			continue
		}
		o := objects[0]
		objects = objects[1:]
		switch in := a.in(i); {
		case o.ID == (ledger.ObjectID{}):
			f.Below = in.Object.Item != 0 && w.config.Store.Here(listOf(ledger.ObjectID(in.Object)))
			if order.Large {
				f.Known = w.peers.Known(in.Holders)
			}
			continue
		case !o.HasPlace():
			f.Place = lifecycle.Kept
		case loose:
			f.Place = lifecycle.Away
		default:
			f.Place = lifecycle.Pinned
		}
		a.enter(i, o)
		f.Object = lifecycle.Object(o.ID)
	}
	clear(w.objects)
	return e
}

// in returns an input as it was assigned.
func (a *attempt) in(i int) *lifecycle.Input { return &a.assigned.Inputs[i] }

// call returns the device call of a native operation. REQUIRES: its inputs are known.
func (a *attempt) call() device.Call {
	return device.Call{Op: a.op.pb.GetName(), Arguments: a.arguments, Inputs: a.inputs, Attempt: int(a.ref.Attempt)}
}

// fail reports the failure of an attempt that the machine never received.
func (w *Worker) fail(a *attempt, reason, message string) {
	r := reportOn(a.ref, lifecycle.Failed)
	r.Error = w.complete(&millracev1.TaskError{Reason: reason, Message: message}, a)
	w.outbox.Task(r)
}

// complete fills in the fields that every error has, unless they are set.
func (w *Worker) complete(e *millracev1.TaskError, a *attempt) *millracev1.TaskError {
	if e.Worker == "" {
		e.Worker = w.config.Registration.GetName()
	}
	e.Attempt = uint32(a.ref.Attempt)
	if e.OriginKey == "" {
		e.OriginKey = a.key
	}
	if e.LogTail == "" {
		e.LogTail = w.config.Logs.Tail(a.ref.Task, a.ref.Attempt)
	}
	return e
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
		return w.startRun(e)
	case lifecycle.Publish:
		a := w.take(e.Ref)
		w.publish(a.report, e.To)
		if r := w.ending; r != nil {
			r.report, r.told = a.report, time.Now()
			return nil
		}
		w.outbox.Task(a.report)
	case lifecycle.Discard:
		w.config.Store.Drop(ledger.ObjectID{Task: e.Ref.Task, Generation: e.Ref.Attempt})
	case lifecycle.Report:
		w.report(e)
	case lifecycle.Unpin:
		if r := w.ending; r != nil && r.Ref == e.Ref {
			r.pinned = append(r.pinned, ledger.ObjectID(e.Object))
			return nil
		}
		w.config.Store.Unpin(ledger.ObjectID(e.Object), e.Ref.Task, e.Ref.Attempt)
	case lifecycle.PinInput:
		w.pinInput(e)
	case lifecycle.Loosen:
		w.config.Store.Loosen(ledger.ObjectID(e.Object), e.Ref.Task, e.Ref.Attempt, w.attempts[e.Ref].assigned.Rank)
	case lifecycle.Drop:
		w.config.Store.Drop(ledger.ObjectID(e.Object))
	case lifecycle.Gained:
		w.outbox.Object(reportOf(ledger.ObjectID(e.Object), e.Bytes, workerv1.ObjectEvent_OBJECT_EVENT_GAINED))
	case lifecycle.Admit:
		return w.admit(e)
	case lifecycle.Lease:
		return w.lease(e)
	case lifecycle.EndLeases:
		if a := w.attempts[e.Ref]; a != nil {
			a.endLoans()
		}
	case lifecycle.NeedFunction:
		w.outbox.Missing(e.Function[:])
	case lifecycle.Await:
		return w.subscribe(e.Awaited)
	case lifecycle.EnterInput:
		w.attempts[e.Ref].enterInput(e)
	case lifecycle.Notify:
		w.notify(e)
	case lifecycle.Unawait:
		w.unsubscribe(e.Awaited)
	case lifecycle.Reserve:
		return w.reserve(e)
	case lifecycle.Unreserve:
		w.config.Store.Release(w.reservations[e.Reservation])
		delete(w.reservations, e.Reservation)
	case lifecycle.StartFetch:
		w.fetch(e)
	case lifecycle.Resume:
		w.withRun(e.Ref, func(*attempt) {}, func(a *attempt) { w.config.Executors.Resume(a.op.runner, a.slot, a.ref) })
	case lifecycle.StopRun:
		if e.Reason != "" {
			w.withRun(e.Ref, func(*attempt) {}, func(a *attempt) { w.config.Executors.Refuse(a.op.runner, a.slot, a.ref, e.Reason) })
			return nil
		}
		w.withRun(e.Ref, func(a *attempt) { w.config.Native.Stop(a.slot, &a.native.Run) },
			func(a *attempt) { w.config.Executors.Stop(a.op.runner, a.slot, a.ref) })
	case lifecycle.TakeBack:
		w.withRun(e.Ref, func(a *attempt) { w.config.Native.TakeBack(a.slot, &a.native.Run) },
			func(a *attempt) { w.config.Executors.TakeBack(a.op.runner, a.slot, a.ref) })
	}
	return nil
}

func (w *Worker) fetch(e lifecycle.StartFetch) {
	reservations := make([]ledger.ReservationID, len(e.Objects))
	for i, o := range e.Objects {
		reservations[i] = w.reservations[o.Reservation]
	}
	w.config.Native.GiveWay()
	if f := w.peers.Fetch(e, reservations, e.Peer == w.Self(), w.takesFetch && w.takenFetch == nil); f != nil {
		w.takenFetch = f
	}
}

func (w *Worker) withRun(ref lifecycle.Ref, native, other func(*attempt)) {
	a := w.attempts[ref]
	if a == nil {
		return
	}
	if a.native != nil {
		native(a)
	} else {
		other(a)
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

func (w *Worker) report(e lifecycle.Report) {
	a := w.attempts[e.Ref]
	r := reportOn(e.Ref, e.Outcome)
	switch e.Outcome {
	case lifecycle.Started, lifecycle.RetractRefused, lifecycle.WaitsForTasks, lifecycle.GoesOn:
		w.outbox.Task(r)
		return
	case lifecycle.Failed, lifecycle.ExecutorDied, lifecycle.Dropped:
		if a != nil && a.report != nil {
			a.report.Outcome = r.Outcome
			r = a.report
		}
		if e.Reason != "" {
			r.Error = w.complete(&millracev1.TaskError{Reason: e.Reason, Message: e.Message}, a)
		}
		r.InlineResult, r.OutputBytes = nil, 0
	case lifecycle.InputUnreachable:
		if a != nil && a.report != nil {
			r.Unreachable = a.report.GetUnreachable()
		}
		for i := range e.Unreachable {
			r.Unreachable = append(r.Unreachable, unreachableOf(&e.Unreachable[i]))
		}
	case lifecycle.Succeeded, lifecycle.GivenBack:
	}
	w.take(e.Ref)
	w.outbox.Task(r)
}

// pinInput pins a fetched object for an attempt. If the object was dropped or moved in the
// meantime, startRun notices.
func (w *Worker) pinInput(e lifecycle.PinInput) {
	a := w.attempts[e.Ref]
	id := ledger.ObjectID(e.Object)
	o, ok := w.config.Store.Queue(id, e.Ref.Task, e.Ref.Attempt, a.assigned.Rank)
	if !ok {
		return
	}
	if e.Reservation != 0 {
		w.config.Store.Hold(w.reservations[e.Reservation], id)
	}
	if id.Item == 0 || !w.config.Store.Here(ledger.ObjectID{Task: id.Task, Generation: id.Generation}) {
		a.fetched += o.Bytes()
	}
	if o.HasPlace() {
		return // startRun looks it up, since the place may change until then
	}
	for i := range a.inputs {
		if a.inputID(i) == id {
			a.inputs[i] = device.Input{Header: o.Header, Frames: o.Frames}
		}
	}
}

// reserve asks the store for memory and for inputs to be brought into the slab. It returns the
// answer if the store decides at once, and otherwise nil: then reservationTold handles the answer.
func (w *Worker) reserve(e lifecycle.Reserve) lifecycle.Event {
	a := w.attempts[e.Ref]
	q := store.Request{Holder: store.TaskHolder(e.Ref.Task), Bytes: e.Bytes, Deadline: time.Now().Add(w.config.MemoryWait)}
	// A native operation that finds no room for its result gives up the rest meanwhile.
	q.Partial = !e.WithResult && a != nil && a.op.runner != nativeRunner
	for _, o := range e.Inputs {
		q.Inputs = append(q.Inputs, ledger.ObjectID(o))
	}
	id, progress, err := w.config.Store.Acquire(q, func(t store.ReservationResult) { w.post(reservationResult{e.Ref, e.Reservation, t}) })
	if err == nil {
		w.reservations[e.Reservation] = id
	}
	switch {
	case errors.Is(err, ledger.ErrTooLarge):
		return lifecycle.ReserveFailed{Reservation: e.Reservation, TooLarge: true, Message: err.Error()}
	case err != nil:
		return lifecycle.ReserveFailed{Reservation: e.Reservation, Message: err.Error()}
	case progress == ledger.Waiting:
		return lifecycle.ReserveWaits{Reservation: e.Reservation}
	}
	return lifecycle.Reserved{Reservation: e.Reservation, Loading: progress == ledger.Loading}
}

// reservationTold passes the store's decision about a reservation to the machine.
func (w *Worker) reservationTold(x reservationResult) {
	switch {
	case x.Granted && x.Err != nil:
		w.step(lifecycle.InputLost{Ref: x.ref, Object: lifecycle.Object(x.Lost), Reservation: x.reservation})
	case x.Err != nil:
		w.step(lifecycle.ReserveFailed{Reservation: x.reservation, Message: x.Err.Error()})
	case x.Ready:
		// Reserved is ignored if the reservation was granted before.
		w.step(lifecycle.Reserved{Reservation: x.reservation})
		w.step(lifecycle.Loaded{Reservation: x.reservation})
	default:
		w.step(lifecycle.Reserved{Reservation: x.reservation, Loading: true})
	}
}

// startRun hands an attempt to its slot. If it cannot begin, startRun returns the event that says
// why.
func (w *Worker) startRun(e lifecycle.StartRun) lifecycle.Event {
	a := w.attempts[e.Ref]
	for i := range a.inputs {
		if has := &a.inputs[i]; a.isLent(i) || a.readsAt(i) || len(has.Frames) == 0 && has.Header != nil || e.Placed && len(has.Frames) > 0 {
			// An input without frames is complete with its header. A placed input has not moved
			// since it was pinned.
			continue
		}
		// The input may have been moved or dropped since it was pinned.
		id := a.inputID(i)
		o, ok := w.config.Store.Held(id)
		switch {
		case !ok:
			return lifecycle.InputLost{Ref: e.Ref, Object: lifecycle.Object(id)}
		case !o.InSlab:
			return lifecycle.InputAway{Ref: e.Ref}
		}
		header, err := w.config.Store.ReadHeader(o)
		if err != nil {
			w.log.Error("an input cannot be read", "task", a.ref.String(), "object", o.ID.String(), "error", err)
			return lifecycle.InputLost{Ref: e.Ref, Object: lifecycle.Object(o.ID)}
		}
		a.inputs[i] = device.Input{Header: header, Frames: o.Frames}
		if a.inWhole(i) {
			a.inputs[i] = narrowed(a.inputs[i], a.in(i).Object.Item)
		}
	}
	if !w.lendInputs(a, e.MoveLimit) {
		return lifecycle.InPlaceFailed{Ref: e.Ref}
	}
	if input, fault := a.absentItem(); fault != nil {
		a.report = reportOn(a.ref, lifecycle.Failed)
		a.report.Error, a.report.InputAtFault = w.complete(fault, a), input
		return lifecycle.RunEnded{Ref: e.Ref, Outcome: lifecycle.Failed}
	}
	a.slot, a.fetching, a.loading, a.waiting = e.Slot, e.Fetching, e.Loading, e.Waiting
	if a.op.runner == nativeRunner {
		w.startNative(a, e)
		return nil
	}
	r := &executor.Run{
		Ref: a.ref, Op: a.op.pb, Arguments: a.arguments, Key: a.key, Namespace: a.namespace, Timeout: a.timeout, Priority: a.priority,
		Reservation: w.reservations[e.Reservation],
	}
	if a.op.pb.GetKind() == millracev1.OpKind_OP_KIND_PYTHON_PICKLE {
		r.Function = w.functions[hash32(a.op.pb.GetFunction())]
	}
	for i, in := range a.inputs {
		id := a.in(i).Object
		x := &executorv1.ExecutorInput{Header: in.Header, TaskId: uint64(id.Task), Generation: uint32(id.Generation), Item: uint32(id.Item)}
		for _, f := range in.Frames {
			x.Frames = append(x.Frames, &executorv1.FrameLocation{Offset: f.Offset, SizeBytes: f.Bytes})
		}
		r.Inputs = append(r.Inputs, x)
		if a.isLent(i) {
			if r.Spaces == nil && in.Space != nil {
				r.Spaces = make([]memory.Space, len(a.inputs))
			}
			if in.Space != nil { // an object without a Space has a header only
				r.Spaces[i] = in.Space
			}
			continue
		}
		r.InputObjects = append(r.InputObjects, a.inputID(i))
	}
	w.config.Executors.Start(a.op.runner, e.Slot, r)
	return nil
}

// ran makes the report on a run.
func (w *Worker) ran(a *attempt, outcome lifecycle.Outcome, bytes uint64, inline []byte, took time.Duration, fault *millracev1.TaskError) {
	r := reportOn(a.ref, outcome)
	r.OutputBytes, r.InlineResult, r.RunNanos, r.FetchedBytes, r.Slot = bytes, inline, uint64(took), a.fetched, uint32(a.slot)+1
	r.FetchNanos, r.LoadNanos, r.WaitNanos = uint64(a.fetching), uint64(a.loading), uint64(a.waiting)
	if fault != nil {
		r.Error = w.complete(fault, a)
	}
	a.report = r
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
		w.refuseLent(a)
		return
	}
	w.ran(a, r.Outcome, r.Bytes, r.Inline, r.RunTime, r.Error)
	a.report.LogTail = w.config.Logs.Tail(r.Ref.Task, r.Ref.Attempt)
	a.report.DeserializeNanos, a.report.PublishNanos = uint64(r.DeserializeTime), uint64(r.PublishTime)
	if r.Outcome != lifecycle.ExecutorDied {
		a.op.times.Observe(r.RunTime)
	}
	if broken := a.endLoans(); len(broken) > 0 {
		w.discardBorrowed(a, broken)
		return
	}
	w.step(lifecycle.RunEnded{Ref: r.Ref, Succeeded: r.Outcome == lifecycle.Succeeded, Outcome: r.Outcome})
}
