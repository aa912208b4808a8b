package sim

import (
	"slices"
	"time"

	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/notify"
)

// notifier carries completion notifications between processes: the publisher keeps a connection for
// each subscriber.
type notifier struct {
	p *process
	// subscribers are the connections of others here.
	subscribers map[*process]*notify.Subscriber
	// open are the subscriptions of this process at others.
	open []subscribed
}

type subscribed struct {
	at  *process
	ref transfer.Ref
}

// Subscribe is part of loop.Notifier.
func (n *notifier) Subscribe(peer transfer.Peer, ref transfer.Ref) {
	p, w := n.p, n.p.w
	w.counts.subscriptions++
	w.after(w.notificationDelay(), func() {
		at := p.path.at(peer)
		if p.dead {
			return
		}
		if at == nil || w.fault(w.plan.drop) {
			n.unavailable(ref)
			return
		}
		n.open = append(n.open, subscribed{at, ref})
		at.run(func() {
			at.worker.Requested(at.notifier.subscriber(p), []notify.Request{{Ref: ref}})
			at.worker.Handle()
		})
	})
}

// subscriber returns the connection of a process that subscribes here.
func (n *notifier) subscriber(p *process) *notify.Subscriber {
	s := n.subscribers[p]
	if s == nil {
		s = new(notify.Subscriber)
		n.subscribers[p] = s
	}
	return s
}

// Unsubscribe is part of loop.Notifier.
func (n *notifier) Unsubscribe(peer transfer.Peer, ref transfer.Ref) {
	p, w := n.p, n.p.w
	at := p.path.at(peer)
	n.close(at, ref)
	w.after(w.notificationDelay(), func() {
		if at == nil || p.dead {
			return
		}
		at.run(func() {
			at.worker.Requested(at.notifier.subscriber(p), []notify.Request{{Ref: ref, Cancel: true}})
			at.worker.Handle()
		})
	})
}

// close ends a subscription of this process, and says whether there was one.
func (n *notifier) close(at *process, ref transfer.Ref) bool {
	before := len(n.open)
	n.open = slices.DeleteFunc(n.open, func(s subscribed) bool { return s == subscribed{at, ref} })
	return len(n.open) < before
}

// Publish is part of loop.Notifier. If the connection breaks, the subscriber notices that instead.
func (n *notifier) Publish(to *notify.Subscriber, c notify.Completion) {
	p, w := n.p, n.p.w
	var q *process
	// order-free: there is one.
	for other, s := range n.subscribers {
		if s == to {
			q = other
		}
	}
	if q == nil || q.dead {
		return
	}
	if w.fault(w.plan.drop) {
		if q.notifier.close(p, c.Ref) {
			q.notifier.unavailable(c.Ref)
		}
		return
	}
	w.counts.notifications++
	w.after(w.notificationDelay(), func() {
		q.run(func() {
			if q.notifier.close(p, c.Ref) {
				q.worker.Completed([]notify.Completion{c})
				q.worker.Handle()
			}
		})
	})
}

// unavailable makes the process notice, after a delay, that no notification about an object will
// come.
func (n *notifier) unavailable(ref transfer.Ref) {
	p, w := n.p, n.p.w
	d := w.notificationDelay()
	if w.chance(0.1) {
		d = w.between(0, 4*time.Second)
	}
	p.after(d, func() {
		p.worker.Completed([]notify.Completion{{Ref: ref, Unavailable: true}})
		p.worker.Handle()
	})
}

// end breaks the connections of a process that has ended.
func (n *notifier) end() {
	for _, h := range n.p.w.hosts {
		q := h.proc
		if q == nil || q.dead {
			continue
		}
		for _, s := range slices.Clone(q.notifier.open) {
			if s.at == n.p {
				q.notifier.close(s.at, s.ref)
				q.notifier.unavailable(s.ref)
			}
		}
		if s := q.notifier.subscribers[n.p]; s != nil {
			delete(q.notifier.subscribers, n.p)
			q.after(n.p.w.notificationDelay(), func() { q.worker.Left(s) })
		}
	}
}

// Flush is part of loop.Notifier.
func (*notifier) Flush() {}

// SetPolling is part of loop.Notifier.
func (*notifier) SetPolling(bool) {}

// Poll is part of loop.Notifier.
func (*notifier) Poll() bool { return false }

func (w *world) notificationDelay() time.Duration {
	if w.fault(w.plan.slow) {
		return w.between(time.Millisecond, time.Second)
	}
	return w.between(10*time.Microsecond, 200*time.Microsecond)
}
