package lifecycle

import (
	"fmt"
	"slices"
)

func (m *Machine) assignedAhead(e *AssignedAhead) {
	if m.attempts[e.Ref] != nil {
		m.log.add(e.Ref, "assigned again, ignored")
		return
	}
	a := &attempt{ref: e.Ref, heapIndex: -1}
	for _, ref := range e.Makers {
		maker := m.attempts[ref]
		if maker == nil {
			// It ended, and not well, or the scheduler's word of it was lost.
			m.log.add(e.Ref, "dropped: "+ref.String()+" is not here")
			m.do(Report{Ref: e.Ref, Outcome: Dropped})
			return
		}
		if !slices.Contains(a.makers, maker) {
			a.makers = append(a.makers, maker)
		}
	}
	for _, maker := range a.makers {
		maker.followers = append(maker.followers, a)
	}
	m.attempts[e.Ref] = a
	m.move(a, Ahead)
}

// endFollowers tells those that are ahead of an attempt that it has ended. Chains
// are as long as the scheduler likes: a list, not a recursion.
func (m *Machine) endFollowers(ended *attempt) {
	list := []*attempt{ended}
	for len(list) > 0 {
		maker := list[0]
		list = list[1:]
		followers := maker.followers
		maker.followers = nil
		for _, a := range followers {
			if maker.succeeded {
				a.makers = slices.DeleteFunc(a.makers, func(b *attempt) bool { return b == maker })
				if len(a.makers) == 0 {
					m.log.add(a.ref, "admitted")
					m.do(Admit{Ref: a.ref})
				}
				continue
			}
			m.log.add(a.ref, "dropped: "+maker.ref.String()+" did not succeed")
			delete(m.attempts, a.ref)
			a.makers = slices.DeleteFunc(a.makers, func(b *attempt) bool { return b == maker })
			m.endMakers(a)
			m.do(Report{Ref: a.ref, Outcome: Dropped})
			list = append(list, a)
		}
	}
}

// endMakers takes an attempt from the lists of those that it is ahead of.
func (m *Machine) endMakers(a *attempt) {
	for _, maker := range a.makers {
		maker.followers = slices.DeleteFunc(maker.followers, func(b *attempt) bool { return b == a })
	}
	a.makers = nil
}

// checkAhead: one that is ahead of nobody any more was admitted, and comes back
// in a moment.
func (m *Machine) checkAhead(a *attempt) error {
	if len(a.pinned)+len(a.missing) > 0 || a.reservation != nil {
		return fmt.Errorf("lifecycle: attempt %s is ahead of %d attempts and has inputs or memory", a.ref, len(a.makers))
	}
	for _, maker := range a.makers {
		if m.attempts[maker.ref] != maker || !slices.Contains(maker.followers, a) {
			return fmt.Errorf("lifecycle: attempt %s is ahead of %s, which does not know of it", a.ref, maker.ref)
		}
	}
	return nil
}
