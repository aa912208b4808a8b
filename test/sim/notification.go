package sim

import (
	"time"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/worker/lifecycle"
)

// unknownAttemptWait is how long a worker keeps a subscription to an attempt that it does not know.
const unknownAttemptWait = 2 * time.Second

// subscriber is a process that waits for the completion notification about an object of another
// process.
type subscriber struct {
	object  object
	process *process
}

// missingInputs lists the missing inputs of a pre-assigned attempt: makers are the attempts of this
// worker that make some of them, awaited are the inputs that peers make.
func (p *process) missingInputs(a *assignment) (makers []lifecycle.Ref, awaited []lifecycle.Awaited) {
	for _, in := range a.Inputs {
		maker := lifecycle.Ref{Task: in.Task, Attempt: in.Generation}
		_, here := p.find(objectOf(maker))
		switch {
		case !in.Pending || here && p.jobs[maker] == nil:
		case len(in.Holders) == 0:
			makers = append(makers, maker)
		default:
			awaited = append(awaited, lifecycle.Awaited{Object: lifecycle.Object(objectOf(maker)), Peer: in.Holders[0]})
		}
	}
	return makers, awaited
}

// subscribe subscribes to a peer's completion notification about an object.
func (p *process) subscribe(o object, id ids.WorkerID) {
	w := p.w
	w.counts.subscriptions++
	w.after(w.notificationDelay(), func() {
		peer := p.atAddress(p.peers[id])
		if peer == nil || w.fault(w.plan.drop) {
			p.sendNeverMade(o)
			return
		}
		peer.run(func() {
			if v, here := peer.find(o); here && peer.jobs[lifecycle.Ref{Task: o.Task, Attempt: o.Generation}] == nil {
				peer.sendNotification(p, o, v)
				return
			}
			peer.subscribers = append(peer.subscribers, subscriber{o, p})
			peer.after(unknownAttemptWait, func() {
				if peer.jobs[lifecycle.Ref{Task: o.Task, Attempt: o.Generation}] == nil && peer.unsubscribe(o, p) {
					p.sendNeverMade(o)
				}
			})
		})
	})
}

// unsubscribe removes a subscription and reports whether there was one.
func (p *process) unsubscribe(o object, q *process) bool {
	for i, r := range p.subscribers {
		if r.object == o && r.process == q {
			p.subscribers = append(p.subscribers[:i:i], p.subscribers[i+1:]...)
			return true
		}
	}
	return false
}

// notify notifies the subscribers of a result, and ends their subscriptions.
func (p *process) notify(o object) {
	v, _ := p.find(o)
	var rest []subscriber
	for _, r := range p.subscribers {
		if r.object == o {
			p.sendNotification(r.process, o, v)
		} else {
			rest = append(rest, r)
		}
	}
	p.subscribers = rest
}

// sendNotification sends a completion notification about an object. If the connection breaks, the
// subscriber notices that instead.
func (p *process) sendNotification(to *process, o object, v uint64) {
	w := p.w
	if w.fault(w.plan.drop) {
		to.sendNeverMade(o)
		return
	}
	w.counts.notifications++
	bytes := p.size(o)
	w.after(w.notificationDelay(), func() {
		to.run(func() {
			// order-free: each job gets the same.
			for _, j := range to.jobs {
				for i := range j.assignment.Inputs {
					if in := &j.assignment.Inputs[i]; in.Task == o.Task && in.Generation == o.Generation {
						in.Bytes, in.Pending = bytes, false
						if bytes <= inlineBytes {
							in.Inline = encode(v)
						}
					}
				}
			}
			made := lifecycle.Made{Object: lifecycle.Object(o), Bytes: bytes}
			if bytes <= inlineBytes {
				made.Inline = encode(v)
			}
			to.push(made)
			to.stepAll()
		})
	})
}

// sendNeverMade makes a process notice, after a delay, that no notification about an object will
// come.
func (p *process) sendNeverMade(o object) {
	w := p.w
	d := w.notificationDelay()
	if w.chance(0.1) {
		d = w.between(0, 4*time.Second)
	}
	p.after(d, func() {
		p.push(lifecycle.NeverMade{Object: lifecycle.Object(o)})
		p.stepAll()
	})
}

// endSubscriptions makes the subscribers of a process that has ended notice this: their connections
// break.
func (p *process) endSubscriptions() {
	for _, r := range p.subscribers {
		r.process.sendNeverMade(r.object)
	}
	p.subscribers = nil
}

func (w *world) notificationDelay() time.Duration {
	if w.fault(w.plan.slow) {
		return w.between(time.Millisecond, time.Second)
	}
	return w.between(10*time.Microsecond, 200*time.Microsecond)
}
