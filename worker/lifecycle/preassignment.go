package lifecycle

import (
	"fmt"
	"slices"

	"github.com/millrace/millrace/internal/ids"
)

// preAssign makes an attempt wait for its function and the results that are still to be made. It
// returns false if one of its makers is not here.
func (m *Machine) preAssign(a *attempt, e *Assigned) bool {
	for _, ref := range e.Makers {
		maker := m.attempts[ref]
		if maker == nil {
			// It has ended without success, or the scheduler's message about it was lost.
			m.log.add(e.Ref, "dropped: "+ref.String()+" is not here")
			m.do(Report{Ref: e.Ref, Outcome: Dropped})
			return false
		}
		if !slices.Contains(a.makers, maker) {
			a.makers = append(a.makers, maker)
		}
	}
	for _, maker := range a.makers {
		maker.followers = append(maker.followers, a)
	}
	a.awaited = make([]*awaited, 0, len(e.Awaited))
	for _, x := range e.Awaited {
		m.await(a, x)
	}
	if e.Function != (Function{}) {
		m.awaitFunction(a, e.Function)
	}
	return true
}

// awaited is an object that a peer will make and that pre-assigned attempts wait for. There is one
// subscription at the peer, however many attempts wait.
type awaited struct {
	Awaited
	// waiting are exactly the attempts that list it.
	waiting []*attempt
}

// early says whether an attempt's function has not arrived, or some of its inputs are not made yet.
func (a *attempt) early() bool { return len(a.makers)+len(a.awaited) > 0 || a.function != nil }

func (m *Machine) await(a *attempt, x Awaited) {
	w := m.awaited[x.Object]
	if w == nil {
		w = &awaited{Awaited: x}
		m.awaited[x.Object] = w
		m.do(Await{x})
	}
	if !slices.Contains(a.awaited, w) {
		a.awaited = append(a.awaited, w)
		w.waiting = append(w.waiting, a)
	}
}

func (m *Machine) onMade(e Made) {
	w := m.awaited[e.Object]
	if w == nil {
		return
	}
	delete(m.awaited, e.Object)
	for _, a := range w.waiting {
		for i := range a.inputs {
			if in := &a.inputs[i]; in.Object.Task == e.Object.Task && in.Object.Generation == e.Object.Generation {
				in.Bytes, in.Inline = e.Bytes, len(e.Inline) > 0
			}
		}
		if len(e.Inline) > 0 {
			m.do(EnterInput{Ref: a.ref, Object: e.Object, Inline: e.Inline})
		}
		a.awaited = slices.DeleteFunc(a.awaited, func(b *awaited) bool { return b == w })
		m.admitIfMade(a)
	}
}

// admitIfMade admits a pre-assigned attempt if its function is here and all its inputs are made.
func (m *Machine) admitIfMade(a *attempt) {
	if !a.early() {
		m.log.add(a.ref, "admitted")
		m.admit(a)
	}
}

// onNeverMade gives back the attempts that would wait in vain. The scheduler finds out whether
// their input will come.
func (m *Machine) onNeverMade(e NeverMade) {
	w := m.awaited[e.Object]
	if w == nil {
		return
	}
	delete(m.awaited, e.Object)
	waiting := w.waiting
	w.waiting = nil
	for _, a := range waiting {
		a.awaited = slices.DeleteFunc(a.awaited, func(b *awaited) bool { return b == w })
	}
	for _, a := range waiting {
		if m.attempts[a.ref] != a {
			continue // it depended on an attempt earlier in the list
		}
		m.log.add(a.ref, "cannot await "+e.Object.String())
		m.withdraw(a)
		m.do(Report{Ref: a.ref, Outcome: InputUnreachable, Unreachable: []Unreachable{{Object: e.Object, FailedAt: []ids.WorkerID{w.Peer}}}})
	}
}

// endAwaits removes an attempt from the lists of the objects that it waits for, and ends the
// subscriptions that are not needed any more.
func (m *Machine) endAwaits(a *attempt) {
	for _, w := range a.awaited {
		w.waiting = slices.DeleteFunc(w.waiting, func(b *attempt) bool { return b == a })
		if len(w.waiting) == 0 {
			delete(m.awaited, w.Object)
			m.do(Unawait{w.Awaited})
		}
	}
	a.awaited = nil
}

// endFollowers handles the end of an attempt for the attempts that wait for it: success admits
// them, any other outcome drops them, and in turn those that wait for them. It uses a list instead
// of recursion, since chains can be arbitrarily long.
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
				m.admitIfMade(a)
				continue
			}
			m.log.add(a.ref, "dropped: "+maker.ref.String()+" did not succeed")
			delete(m.attempts, a.ref)
			a.makers = slices.DeleteFunc(a.makers, func(b *attempt) bool { return b == maker })
			m.endEarly(a)
			m.do(Report{Ref: a.ref, Outcome: Dropped})
			list = append(list, a)
		}
	}
}

// endEarly ends an attempt's wait for its function and for results.
func (m *Machine) endEarly(a *attempt) {
	m.endMakers(a)
	m.endAwaits(a)
	m.endFunction(a)
}

// endMakers removes an attempt from the lists of the attempts that it waits for.
func (m *Machine) endMakers(a *attempt) {
	for _, maker := range a.makers {
		maker.followers = slices.DeleteFunc(maker.followers, func(b *attempt) bool { return b == a })
	}
	a.makers = nil
}

// checkPreAssigned checks an attempt that is PreAssigned or Admitting.
func (m *Machine) checkPreAssigned(a *attempt) error {
	if len(a.pinned)+len(a.missing) > 0 || a.reservation != nil {
		return fmt.Errorf("lifecycle: attempt %s waits for %d makers and has inputs or memory", a.ref, len(a.makers))
	}
	for _, maker := range a.makers {
		if m.attempts[maker.ref] != maker || !slices.Contains(maker.followers, a) {
			return fmt.Errorf("lifecycle: attempt %s waits for %s, which does not know of it", a.ref, maker.ref)
		}
	}
	for _, w := range a.awaited {
		if m.awaited[w.Object] != w || !slices.Contains(w.waiting, a) {
			return fmt.Errorf("lifecycle: attempt %s waits for %s, which does not know of it", a.ref, w.Object)
		}
	}
	if f := a.function; f != nil && (m.functions[f.Hash] != f || !slices.Contains(f.waiting, a)) {
		return fmt.Errorf("lifecycle: attempt %s waits for function %s, which does not know of it", a.ref, f.Name)
	}
	return nil
}

// checkAwaited checks that attempts wait for every awaited object.
func (m *Machine) checkAwaited() error {
	// order-free: any one broken object is as good as another.
	for o, w := range m.awaited {
		if w.Object != o || len(w.waiting) == 0 {
			return fmt.Errorf("lifecycle: %s is awaited as %s by %d attempts", w.Object, o, len(w.waiting))
		}
		for _, a := range w.waiting {
			if a.state != PreAssigned || m.attempts[a.ref] != a || !slices.Contains(a.awaited, w) {
				return fmt.Errorf("lifecycle: attempt %s is %s and listed as waiting for %s", a.ref, a.state, o)
			}
		}
	}
	return nil
}
