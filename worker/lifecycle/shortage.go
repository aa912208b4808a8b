package lifecycle

import "slices"

// onShort makes the attempts that have not begun give up the memory that is kept for them: their
// inputs may leave the slab, and they ask for their memory anew, behind the attempt that runs and
// waits for memory. Otherwise that attempt could wait for them, and they for its slot. All of them
// do so, since the machine does not know which memory is in the way. Attempts that were handed to a
// slot in advance come back first, and give it up at the next Short.
func (m *Machine) onShort() {
	queued := slices.Clone(m.special)
	for _, r := range m.runners {
		queued = append(queued, r.ready...)
		for _, s := range r.slots {
			for i, a := range s.running {
				if i > 0 && a.keeps() && !a.returning && !a.cancelled {
					a.returning = true
					m.do(TakeBack{Ref: a.ref})
				}
			}
		}
	}
	slices.SortFunc(queued, compareRank)
	for _, a := range queued {
		if a.keeps() {
			m.log.add(a.ref, "gives up its memory: an attempt that runs waits for some")
			m.dequeue(a)
			m.loosen(a)
			m.bringIn(a)
		}
	}
}

// keeps says whether memory of the slab is kept for an attempt.
func (a *attempt) keeps() bool { return a.reservation != nil || len(a.pinned) > 0 }
