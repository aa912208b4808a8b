package ledger

import "github.com/millrace/millrace/memory"

// Board is the shared object index, in which readers find objects without asking for leases. The
// ledger calls its methods in the middle of a step. They must not call the ledger.
type Board interface {
	// Hide removes an object from the index: no reader finds it from now on.
	Hide(ObjectID)
	// Vacate is called when the ledger gives up a range of the slab with objects that were shown.
	// All of them are hidden by now. Vacate returns true if no reader can be reading the range. If
	// it returns false, the range is withheld until Recalled with this ticket.
	Vacate(Ticket, memory.Frame) (unread bool)
}

// Shown reports that the caller put an object on the board, with its place in the slab: a sealed
// object, or one that is being built and that readers follow. The ledger hides the object when it
// is dropped or lost, when it is not built after all, or when it leaves the slab. If that has
// already happened, Shown hides it at once.
func (l *Ledger) Shown(id ObjectID) {
	o := l.objects[id]
	switch {
	case o == nil || o.state == Dropped || !o.inSlab():
		l.config.Board.Hide(id)
	case !o.shown:
		o.shown = true
		for _, e := range o.extents {
			if e != nil {
				e.shown = true
			}
		}
		l.log.add("shown", id, 0, 0)
	}
	l.verify()
}

// IsShown says whether an object is on the board.
func (l *Ledger) IsShown(id ObjectID) bool {
	o := l.objects[id]
	return o != nil && o.shown
}

// Conceal hides an object that is being built, because its result may differ from the entry that
// was shown.
func (l *Ledger) Conceal(id ObjectID) {
	if o := l.objects[id]; o != nil && o.state == Building && o.shown {
		l.hide(o)
		l.log.add("concealed", id, 0, 0)
	}
	l.verify()
}

// hide removes an object from the board. Its extents stay marked as shown, because readers that
// found the object earlier may still read it.
func (l *Ledger) hide(o *object) {
	if o.shown {
		o.shown = false
		l.config.Board.Hide(o.id)
	}
}

// recall gives up the block of an extent that was shown. It returns false if the caller can use the
// block again at once. It returns true if readers may still use it; then Recalled frees it.
func (l *Ledger) recall(e *extent, block memory.Frame) bool {
	if !e.shown {
		return false
	}
	e.shown = false
	for _, o := range e.owners {
		l.hide(o)
	}
	l.tickets++
	if l.config.Board.Vacate(l.tickets, block) {
		return false
	}
	l.recalls[l.tickets] = block
	l.tiers[0].discardBytes += block.Bytes
	return true
}

// Recalled reports that no reader uses the given-up ranges any more.
func (l *Ledger) Recalled(tickets ...Ticket) []Effect {
	for _, ticket := range tickets {
		if block, ok := l.recalls[ticket]; ok {
			delete(l.recalls, ticket)
			l.tiers[0].discardBytes -= block.Bytes
			l.space.Free(block.Offset)
		}
	}
	out := l.serve(nil)
	l.verify()
	return out
}
