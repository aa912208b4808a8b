package loop

import (
	"bytes"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/ledger"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/worker/device"
	"github.com/millrace/millrace/worker/lifecycle"
	"github.com/millrace/millrace/worker/peers"
	"github.com/millrace/millrace/worker/session"
	"github.com/millrace/millrace/worker/store"
	"github.com/millrace/millrace/worker/value"
)

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

// carried is what the run of an attempt needs and the machine does not look at.
type carried struct {
	arguments      []byte
	key, namespace string
	timeout        time.Duration
	priority       int32
}

// newAttempt returns the record of an assignment, whose operation may be nil. It leaves out the
// makers of the inputs; see subscriptions.makers.
func newAttempt(pb *workerv1.Assignment, o *op) *attempt {
	a := &attempt{
		assigned: session.AssignedOf(pb), op: o, inputs: make([]device.Input, len(pb.GetInputs())),
		carried: carried{
			arguments: pb.GetArguments(), key: pb.GetKey(), namespace: pb.GetNamespace(), timeout: time.Duration(pb.GetTimeoutMillis()) * time.Millisecond,
			priority: pb.GetPriority(),
		},
	}
	a.ref = a.assigned.Ref
	if o != nil {
		a.assigned.Runner, a.assigned.Prepares, a.assigned.Estimate = o.runner, o.runner != nativeRunner, o.times.Estimate()
		if o.pb.GetKind() == millracev1.OpKind_OP_KIND_NATIVE {
			// A native operation computes the exact size of its result from its arguments and
			// reserves that (see package native). An average over other calls would often be too
			// small.
			a.assigned.OutputBytes = 0
		}
	}
	for i, in := range pb.GetInputs() {
		if header := in.GetInlineResult(); len(header) > 0 {
			a.inputs[i] = value.ItemOf(device.Input{Header: header}, a.in(i).Object.Item)
		}
	}
	return a
}

// inProcess says whether the attempt runs in an executor process.
func (a *attempt) inProcess() bool { return a.op.runner != nativeRunner }

// in returns an input as it was assigned.
func (a *attempt) in(i int) *lifecycle.Input { return &a.assigned.Inputs[i] }

// call returns the device call of a native operation. REQUIRES: its inputs are known.
func (a *attempt) call() device.Call {
	return device.Call{Op: a.op.pb.GetName(), Arguments: a.arguments, Inputs: a.inputs, Attempt: int(a.ref.Attempt)}
}

// An input may be one item of a list. If the list is here, the attempt pins it and reads the item
// in place. Otherwise the item alone is fetched or borrowed, as an object of its own: the peer
// sends its header and its frames. A fetched copy of an item serves the attempts that wait for it;
// it is not reported to the scheduler and is dropped with the last of them. In both cases the
// operation sees the item as an ordinary input.

// inputID names the object of the store that is, or will be, pinned for an input.
func (a *attempt) inputID(i int) ledger.ObjectID {
	id := ledger.ObjectID(a.in(i).Object)
	if a.inWhole(i) {
		return id.Whole()
	}
	return id
}

// inWhole says whether an input is an item of a list that is here.
func (a *attempt) inWhole(i int) bool { return a.whole != nil && a.whole[i] }

// enter enters an object of the store as an input: the input itself or, for an item, maybe the
// whole list.
func (a *attempt) enter(i int, o store.Object) {
	item := a.in(i).Object.Item
	a.inputs[i] = device.Input{Header: o.Header, Frames: o.Frames}
	if o.ID.Item == item {
		return
	}
	if a.whole == nil {
		a.whole = make([]bool, len(a.inputs))
	}
	a.whole[i] = true
	a.inputs[i] = value.ItemOf(a.inputs[i], item)
}

// enterValue enters the value of an object for which the attempt has waited as its inputs.
func (a *attempt) enterValue(e lifecycle.EnterInput) {
	a.known = time.Now()
	for i := range a.inputs {
		if x := a.in(i).Object; ledger.ObjectID(x).Whole() == ledger.ObjectID(e.Object) {
			a.inputs[i] = value.ItemOf(device.Input{Header: e.Inline}, x.Item)
		}
	}
}

// absent returns the reason why the attempt cannot run, and the input, counted from 1: it is to be
// an item that its list does not have. REQUIRES: the headers of all inputs are known.
func (a *attempt) absent() (input uint32, fault *millracev1.TaskError) {
	for i := range a.inputs {
		item := a.in(i).Object.Item
		if item == 0 {
			continue
		}
		if why, absent := value.Absent(a.inputs[i].Header); absent {
			return uint32(i) + 1, &millracev1.TaskError{Reason: "INVALID_ARGUMENT", Message: fmt.Sprintf(
				"the result %s, so that there is no item %d (counted from 0): make that task return a list with this item, or ask for another item", why, item-1)}
		}
	}
	return 0, nil
}

// readsAt says whether an input is to be read in place.
func (a *attempt) readsAt(i int) bool { return i < len(a.readAt) && a.readAt[i].Address != "" }

// isLent says whether the attempt has a lease of an input.
func (a *attempt) isLent(i int) bool { return i < len(a.loans) && a.loans[i].End != nil }

// lentInput returns an input that the attempt has a lease of; ok is false if it has none.
func (a *attempt) lentInput(i int) (in device.Input, ok bool) {
	if !a.isLent(i) {
		return device.Input{}, false
	}
	l := &a.loans[i]
	in.Header = l.Head.Header
	for _, r := range l.Regions {
		in.Space = r.Space
		in.Frames = append(in.Frames, r.Frame)
	}
	if in.Frames == nil {
		in.Frames = []memory.Frame{}
	}
	return in, true
}

// lentBytes is the size of the inputs that the attempt has leases of.
func (a *attempt) lentBytes() (sum uint64) {
	for i := range a.inputs {
		if a.isLent(i) {
			sum += a.in(i).Bytes
		}
	}
	return sum
}

// endLoans ends all leases of an attempt. It returns the inputs whose bytes were not protected
// during the whole lease: results computed from these must be discarded.
func (a *attempt) endLoans() (broken []int) {
	for i := range a.loans {
		if end := a.loans[i].End; end != nil && !end() {
			broken = append(broken, i)
		}
	}
	a.loans = nil
	return broken
}

// notBegun ends the leases of in-place inputs when the slot returns an attempt that it has not
// begun: the attempt waits again, and gets new leases when it is handed to a slot again. Leases
// that were borrowed before admission stay.
func (a *attempt) notBegun() {
	if a.readAt != nil {
		a.endLoans()
	}
}

// nativeRunner is the kind of the runner of native operations. Each other kind is one of executors.
const nativeRunner = "native"

// replicateOp is the operation that only makes copies of its inputs, so it never borrows.
const replicateOp = "core.replicate"

// op is an operation that the scheduler defined in this session, with its run times.
type op struct {
	pb     *millracev1.Op
	runner string
	// wrong is the reason why it cannot run on this worker, nil if it can.
	wrong *millracev1.TaskError
	times lifecycle.RunTimes
}

// newOp returns an operation on a worker that has the given kinds of executors.
func newOp(pb *millracev1.Op, executors map[string]bool) *op {
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
	if !executors[o.runner] {
		o.wrong = &millracev1.TaskError{Reason: "FUNCTION_NOT_FOUND", Message: fmt.Sprintf(
			"%s needs an executor named %q, which this worker does not have; register it when the worker is started", pb.GetName(), o.runner)}
	}
	return o
}

// reading says how the operation reads inputs at peers, on a device that can read there or is nil.
func (o *op) reading(d device.InPlace) lifecycle.Reading {
	if d == nil || o.runner != nativeRunner {
		return lifecycle.ReadsAgain
	}
	return lifecycle.Reading(d.Reads(o.pb.GetName()))
}

// functions are the pickled functions that the scheduler has sent and not dropped.
type functions struct {
	known map[ids.FunctionHash]*millracev1.Function
	// executors may be nil.
	executors Executors
}

// of returns the function of an operation, nil if it is not here.
func (f *functions) of(o *op) *millracev1.Function { return f.known[hash32(o.pb.GetFunction())] }

// add stores functions. Attempts may wait for them.
func (f *functions) add(list []*millracev1.Function) lifecycle.FunctionsCame {
	e := lifecycle.FunctionsCame{Functions: make([]ids.FunctionHash, len(list))}
	for i, x := range list {
		e.Functions[i] = hash32(x.GetHash())
		f.known[e.Functions[i]] = x
	}
	return e
}

// drop forgets functions that no task refers to.
func (f *functions) drop(hashes [][]byte) {
	for _, hash := range hashes {
		delete(f.known, hash32(hash))
	}
	if f.executors != nil {
		f.executors.DropFunctions(hashes)
	}
}

// hashes names all functions, in ascending order.
func (f *functions) hashes() (list [][]byte) {
	for _, hash := range slices.SortedFunc(maps.Keys(f.known), func(a, b ids.FunctionHash) int { return bytes.Compare(a[:], b[:]) }) {
		list = append(list, hash[:])
	}
	return list
}

func hash32(b []byte) (h [32]byte) {
	copy(h[:], b)
	return h
}

// finder finds the inputs of attempts, and pins those that are in the store.
type finder struct {
	store        *store.Store
	peers        *peers.Peers
	leases       *leases
	native       Native
	reservations *reservations
	log          *slog.Logger
	// wanted are the objects that find looks for, and objects are those that it finds, for reuse.
	wanted  []ledger.ObjectID
	objects []store.Object
}

// find looks up the inputs of an attempt, and pins those that are here. Inputs that need no pin are
// inline values, small headers, and inputs that are borrowed or read in place.
func (f *finder) find(a *attempt, order *lifecycle.Admit) *lifecycle.Admitted {
	a.known, a.whole, a.readAt = time.Now(), nil, nil
	e := &a.admitted
	*e = lifecycle.Admitted{Ref: a.ref, Estimate: a.op.times.Estimate(), Found: make([]lifecycle.Found, len(a.inputs))}
	e.MapsNothing = order.Large && !f.leases.usable(a, true)
	f.wanted = f.wanted[:0]
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
			if peer, ok := f.peers.Reader(in); ok {
				if a.readAt == nil {
					a.readAt = make([]transfer.Peer, len(a.inputs))
				}
				a.readAt[i], e.Found[i].Place = peer, lifecycle.InPlace
				continue
			}
		}
		f.wanted = append(f.wanted, ledger.ObjectID(in.Object))
	}
	if len(f.wanted) > 0 {
		f.pinFound(a, order, e)
	}
	return e
}

// pinFound pins the wanted inputs that are here.
func (f *finder) pinFound(a *attempt, order *lifecycle.Admit, e *lifecycle.Admitted) {
	objects, loose := f.store.Admit(a.ref.Task, a.ref.Attempt, a.assigned.Rank, f.wanted, order.Waits, order.Copies, f.objects[:0])
	f.objects = objects
	for i := range e.Found {
		found := &e.Found[i]
		if found.Place != lifecycle.Elsewhere {
			continue
		}
		o := objects[0]
		objects = objects[1:]
		switch in := a.in(i); {
		case o.ID == (ledger.ObjectID{}):
			found.Below = in.Object.Item != 0 && f.store.Here(ledger.ObjectID(in.Object).Whole())
			if order.Large {
				found.Known = f.peers.Known(in.Holders)
			}
			continue
		case !o.HasPlace():
			found.Place = lifecycle.Kept
		case loose:
			found.Place = lifecycle.Away
		default:
			found.Place = lifecycle.Pinned
		}
		a.enter(i, o)
		found.Object = lifecycle.Object(o.ID)
	}
	clear(f.objects)
}

// pin pins a fetched object for an attempt. If the object was dropped or moved in the meantime,
// locate notices.
func (f *finder) pin(e lifecycle.PinInput, a *attempt) {
	id := ledger.ObjectID(e.Object)
	o, ok := f.store.Queue(id, e.Ref.Task, e.Ref.Attempt, a.assigned.Rank)
	if !ok {
		return
	}
	if e.Reservation != 0 {
		f.store.Hold(f.reservations.ids[e.Reservation], id)
	}
	if id.Item == 0 || !f.store.Here(id.Whole()) {
		a.fetched += o.Bytes()
	}
	if o.HasPlace() {
		return // locate looks it up, since the place may change until then
	}
	for i := range a.inputs {
		if a.inputID(i) == id {
			a.inputs[i] = device.Input{Header: o.Header, Frames: o.Frames}
		}
	}
}

// locate enters where the inputs of an attempt are now that it is about to run: since they were
// pinned, they may have been moved or dropped. It returns the event that says why the attempt
// cannot run, nil if it can.
func (f *finder) locate(a *attempt, order *lifecycle.StartRun) lifecycle.Event {
	for i := range a.inputs {
		if has := &a.inputs[i]; a.isLent(i) || a.readsAt(i) || len(has.Frames) == 0 && has.Header != nil || order.Placed && len(has.Frames) > 0 {
			// An input without frames is complete with its header. A placed input has not moved
			// since it was pinned.
			continue
		}
		id := a.inputID(i)
		o, ok := f.store.Held(id)
		switch {
		case !ok:
			return lifecycle.InputLost{Ref: a.ref, Object: lifecycle.Object(id)}
		case !o.InSlab:
			return lifecycle.InputAway{Ref: a.ref}
		}
		header, err := f.store.ReadHeader(o)
		if err != nil {
			f.log.Error("an input cannot be read", "task", a.ref.String(), "object", o.ID.String(), "error", err)
			return lifecycle.InputLost{Ref: a.ref, Object: lifecycle.Object(o.ID)}
		}
		a.inputs[i] = device.Input{Header: header, Frames: o.Frames}
		if a.inWhole(i) {
			a.inputs[i] = value.ItemOf(a.inputs[i], a.in(i).Object.Item)
		}
	}
	if !f.lend(a, order) {
		return lifecycle.InPlaceFailed{Ref: a.ref}
	}
	return nil
}

// lend leases the inputs that an attempt reads in place; the attempt is about to be handed to a
// slot. The leases end with the run, after the kernel. If the memory was reused meanwhile, the
// result is discarded (leases.broken). lend gets all leases, or returns false: then it has got
// none, or the order to start the attempt says that it would move too much.
func (f *finder) lend(a *attempt, order *lifecycle.StartRun) bool {
	if a.readAt == nil {
		return true
	}
	a.loans = make([]transfer.Loan, len(a.readAt))
	for i := range a.inputs {
		if !a.readsAt(i) {
			continue
		}
		if !f.peers.LendInPlace(a.readAt[i], a.in(i).Object, &a.loans[i]) {
			a.endLoans()
			return false
		}
		a.inputs[i], _ = a.lentInput(i)
	}
	// The size of the result is only known now, when the shapes of the inputs are. If the call is
	// wrong, the slot gets the same error and reports it.
	if order.MovesTooMuch(a.lentBytes(), func() (sum uint64) {
		for _, n := range f.native.OutputBytes(a.call()) {
			sum += n
		}
		return sum
	}) {
		a.endLoans()
		return false
	}
	return true
}

// leases requests leases of inputs that peers lend.
type leases struct {
	peers *peers.Peers
	// executors may be nil.
	executors Executors
	native    Native
	store     *store.Store
	// post gets a borrowed.
	post func(any)
	log  *slog.Logger
	// pending counts the goroutines that request leases.
	pending int
}

// borrowed is posted when all peers have answered. loans are the leases by input index; an entry
// without End is no lease.
type borrowed struct {
	attempt *attempt
	loans   []transfer.Loan
	answers []lifecycle.LeaseAnswer
}

// usable says whether an attempt can use leases. As long as no executor of its kind has said
// whether it can, only a large attempt, whose inputs do not fit as copies, tries to.
func (l *leases) usable(a *attempt, large bool) bool {
	if !a.inProcess() {
		return true
	}
	known, can := l.executors.Segments(a.op.runner)
	return can || large && !known
}

// request requests leases for an attempt; answered gets the answers. It returns false if no peer is
// to be asked.
func (l *leases) request(a *attempt, ways []lifecycle.Way, large bool, round int) bool {
	if !slices.ContainsFunc(ways, func(x lifecycle.Way) bool { return x.Lease }) || !l.usable(a, large) || !l.peers.Lease(peers.LeaseRequest{
		Inputs: a.assigned.Inputs, Ways: ways, Large: large, Round: round, Mapped: a.inProcess(),
		Answer: func(loans []transfer.Loan, answers []lifecycle.LeaseAnswer) { l.post(borrowed{a, loans, answers}) },
	}) {
		return false
	}
	l.pending++
	l.native.GiveWay()
	return true
}

// answered enters the leases of an attempt that waited for them. It returns nil if the attempt was
// retracted or cancelled in the meantime, and is not wanted any more.
func (l *leases) answered(x borrowed, wanted bool) lifecycle.Event {
	a := x.attempt
	a.loans = x.loans
	l.pending--
	if !wanted {
		a.endLoans()
		return nil
	}
	// If the attempt had leases before, the objects may lie elsewhere now.
	for i := range a.inputs {
		if in, lent := a.lentInput(i); lent {
			a.inputs[i] = in
		}
	}
	return &lifecycle.Leased{Ref: a.ref, Answers: x.answers}
}

// broken discards the result of a run whose inputs were not protected during the whole lease. The
// attempt is reported as INPUT_UNREACHABLE, so the scheduler runs the task again, and the failure
// does not count against the task.
func (l *leases) broken(a *attempt, inputs []int) lifecycle.Event {
	l.log.Warn("a result was thrown away: a borrowed input was not protected all the time", "task", a.ref.String(), "key", a.key)
	return l.unreachable(a, inputs)
}

// unmappable handles a run whose executor process cannot map the leased memory. The attempt is
// reported as INPUT_UNREACHABLE and the task runs again on copies: Executors.Segments is false by
// now.
func (l *leases) unmappable(a *attempt) lifecycle.Event {
	l.log.Warn("the executor reads nothing but the worker's memory; inputs are copied from now on", "task", a.ref.String(), "kind", a.op.runner)
	var lent []int
	for i := range a.loans {
		if a.isLent(i) {
			lent = append(lent, i)
		}
	}
	a.endLoans()
	return l.unreachable(a, lent)
}

// unreachable drops the result of an attempt and reports the attempt as INPUT_UNREACHABLE because
// of the given inputs.
func (l *leases) unreachable(a *attempt, inputs []int) lifecycle.Event {
	l.store.Drop(ledger.ObjectID{Task: a.ref.Task, Generation: a.ref.Attempt})
	a.report = session.ReportOn(a.ref, lifecycle.InputUnreachable)
	for _, i := range inputs {
		in := a.in(i)
		a.report.Unreachable = append(a.report.Unreachable, session.UnreachableOf(&lifecycle.Unreachable{Object: in.Object, FailedAt: in.Holders}))
	}
	return lifecycle.RunEnded{Ref: a.ref, Outcome: lifecycle.InputUnreachable}
}
