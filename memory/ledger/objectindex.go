package ledger

import "github.com/millrace/millrace/memory"

// ObjectIndex is the shared object index, in which readers find objects without asking for leases.
// The ledger calls its methods in the middle of a step. They must not call the ledger.
type ObjectIndex interface {
	// Unpublish removes an object from the index: no reader finds it from now on.
	Unpublish(ObjectID)
	// Vacate is called when the ledger gives up a range of the slab with published objects. None of
	// them is published any more. Vacate returns true if no reader can be reading the range. If it
	// returns false, the range is withheld until Recalled with this ticket.
	Vacate(Ticket, memory.Frame) (unread bool)
}

// Published reports that the caller put an object into the index, with its place in the slab: a
// sealed object, or one that is being built and that readers read while it arrives. The ledger
// unpublishes the object when it is dropped or lost, when it is not built after all, or when it
// leaves the slab. If that has already happened, Published unpublishes it at once.
func (l *Ledger) Published(id ObjectID) {
	o := l.objects[id]
	switch {
	case o == nil || o.state == Dropped || !o.inSlab():
		l.config.Index.Unpublish(id)
	case !o.published:
		o.published = true
		for _, e := range o.extents {
			if e != nil {
				e.published = true
			}
		}
		l.log.add("published", id, 0, 0)
	}
	l.verify()
}

// IsPublished says whether an object is in the shared object index.
func (l *Ledger) IsPublished(id ObjectID) bool {
	o := l.objects[id]
	return o != nil && o.published
}

// Unpublish removes an object that is being built from the index, because its result may differ
// from the entry that was published. It does nothing to other objects.
func (l *Ledger) Unpublish(id ObjectID) {
	if o := l.objects[id]; o != nil && o.state == Building && o.published {
		l.unpublish(o)
		l.log.add("unpublished", id, 0, 0)
	}
	l.verify()
}

// unpublish removes an object from the index. Its extents stay marked as published, because readers
// that found the object earlier may still read it.
func (l *Ledger) unpublish(o *object) {
	if o.published {
		o.published = false
		l.config.Index.Unpublish(o.id)
	}
}

// recall gives up the block of an extent that was published. It returns false if the caller can use
// the block again at once. It returns true if readers may still use it; then Recalled frees it.
func (l *Ledger) recall(e *extent, block memory.Frame) bool {
	if !e.published {
		return false
	}
	e.published = false
	for _, o := range e.owners {
		l.unpublish(o)
	}
	l.tickets++
	if l.config.Index.Vacate(l.tickets, block) {
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
