package ledger

import "github.com/millrace/millrace/memory"

// Board is where readers find objects without asking for leases. Its methods are
// called in the middle of a step, and must not call the ledger.
type Board interface {
	// Hide ends that readers find an object.
	Hide(ObjectID)
	// Vacate is asked when a range of the slab is given up in which objects lay that
	// were shown, all of which are hidden by now: whether nobody can be reading it.
	// If somebody can, it is withheld until Recalled.
	Vacate(Ticket, memory.Frame) (unread bool)
}

// Shown says that readers find a sealed object on the board, and where it is in the
// slab, or one that is being built and that they follow. It is hidden when it is
// dropped, lost or not built after all, or leaves the slab; if that is so already, at
// once.
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

// Conceal hides an object that is being built: it may not become what was shown.
func (l *Ledger) Conceal(id ObjectID) {
	if o := l.objects[id]; o != nil && o.state == Building && o.shown {
		l.hide(o)
		l.log.add("concealed", id, 0, 0)
	}
	l.verify()
}

// hide ends that readers find an object. Its extents stay marked: who found it
// before may be reading.
func (l *Ledger) hide(o *object) {
	if o.shown {
		o.shown = false
		l.config.Board.Hide(o.id)
	}
}

// recall gives up the block of an extent that was shown. It returns false if nobody
// can be reading it.
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

// Recalled says that nobody reads any more what was vacated.
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
