package loop

import (
	"log/slog"
	"time"

	"github.com/millrace/millrace/memory/ledger"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/worker/device"
	"github.com/millrace/millrace/worker/lifecycle"
	"github.com/millrace/millrace/worker/peers"
	"github.com/millrace/millrace/worker/store"
	"github.com/millrace/millrace/worker/value"
)

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
