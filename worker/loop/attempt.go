package loop

import (
	"fmt"
	"time"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/ledger"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/worker/device"
	"github.com/millrace/millrace/worker/lifecycle"
	"github.com/millrace/millrace/worker/native"
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

// nativeRun is an attempt's run in a native slot. The fields besides Run are for the work that is
// deferred until the peers are notified; see nativeRuns.settle.
type nativeRun struct {
	native.Run
	attempt *attempt
	loans   []transfer.Loan
	// pinned are the inputs that were pinned for the attempt.
	pinned []ledger.ObjectID
	// report is nil if there is nothing to report; told is the time when the result was published.
	report *workerv1.TaskReport
	told   time.Time
}

// eachReadInPlace calls of for each input that the run has read in place, with the loan, the peer
// and the number of bytes.
func (r *nativeRun) eachReadInPlace(of func(loan *transfer.Loan, at transfer.Peer, bytes uint64)) {
	a := r.attempt
	for i := range a.readAt {
		if i >= len(r.loans) || r.loans[i].End == nil {
			continue
		}
		bytes := r.loans[i].Head.Bytes()
		if a.assigned.Reads == lifecycle.Moves {
			bytes = min(bytes, r.Made())
		}
		of(&r.loans[i], a.readAt[i], bytes)
	}
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
