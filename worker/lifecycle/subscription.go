package lifecycle

import (
	"slices"
	"time"
)

// Subscriber is a peer that subscribes to results of this worker. The machine only compares it.
type Subscriber any

// subscription is one subscription to an object that is made here, or that the peer believes to be
// made here: the assignment may still be on its way.
type subscription struct {
	by    Subscriber
	since time.Time
}

// makerOf is the attempt that makes an object.
func makerOf(o Object) Ref { return Ref{Task: o.Task, Attempt: o.Generation} }

func (m *Machine) onAsked(e Asked) {
	if e.Here && m.attempts[makerOf(e.Object)] == nil {
		m.do(Notify{Object: e.Object, To: e.By})
		return
	}
	m.subscribed[e.Object] = append(m.subscribed[e.Object], subscription{e.By, m.now})
}

// takeSubscribers ends the subscriptions to the result of an attempt, and returns the subscribers.
func (m *Machine) takeSubscribers(a *attempt) []Subscriber {
	o := Object{Task: a.ref.Task, Generation: a.ref.Attempt}
	subscriptions := m.subscribed[o]
	if len(subscriptions) == 0 {
		return nil
	}
	delete(m.subscribed, o)
	to := make([]Subscriber, len(subscriptions))
	for i := range to {
		to[i] = subscriptions[i].by
	}
	return to
}

func (m *Machine) onUnasked(e Unasked) {
	by := func(s subscription) bool { return s.by == e.By }
	if !e.All {
		m.endSubscriptions(e.Object, false, by)
		return
	}
	for _, o := range m.subscribedObjects(func(Object) bool { return true }) {
		m.endSubscriptions(o, false, by)
	}
}

// onBeaten ends the subscriptions to objects whose makers have been unknown here for too long.
func (m *Machine) onBeaten() {
	for _, o := range m.subscribedObjects(func(o Object) bool { return m.attempts[makerOf(o)] == nil }) {
		m.endSubscriptions(o, true, func(s subscription) bool { return m.now.Sub(s.since) > m.config.SubscriptionWait })
	}
}

// onRenewed forgets what it knows of objects: their names mean other objects from now on.
func (m *Machine) onRenewed() {
	m.usage = usage{}
	for _, o := range m.subscribedObjects(func(Object) bool { return true }) {
		m.endSubscriptions(o, true, func(subscription) bool { return true })
	}
}

// subscribedObjects returns the wanted ones of the objects with subscriptions, in order.
func (m *Machine) subscribedObjects(wanted func(Object) bool) (found []Object) {
	// sorted: below
	for o := range m.subscribed {
		if wanted(o) {
			found = append(found, o)
		}
	}
	slices.SortFunc(found, func(a, b Object) int { return makerOf(a).compare(makerOf(b)) })
	return found
}

// endSubscriptions ends those subscriptions to an object for which ends returns true. With tell,
// the subscribers hear that the object will not be made here.
func (m *Machine) endSubscriptions(o Object, tell bool, ends func(s subscription) bool) {
	rest := slices.DeleteFunc(m.subscribed[o], func(s subscription) bool {
		if ends(s) && tell {
			m.do(Notify{Object: o, To: s.by, Unavailable: true})
		}
		return ends(s)
	})
	if m.subscribed[o] = rest; len(rest) == 0 {
		delete(m.subscribed, o)
	}
}
