package sim

import (
	"time"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/worker/lifecycle"
)

// knownAfter is how long a maker keeps a reader of an attempt that the maker does not know.
const knownAfter = 2 * time.Second

// reader is a process that waits for a completion notification about an object of another process.
type reader struct {
	object  object
	process *process
}

// early lists the missing inputs of a pre-assigned attempt: those made here, and those made by
// peers.
func (p *process) early(a *assignment) (makers []lifecycle.Ref, awaited []lifecycle.Awaited) {
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

// await subscribes to a peer's completion notification about an object.
func (p *process) await(o object, id ids.WorkerID) {
	w := p.w
	w.counts.awaits++
	w.after(w.wordDelay(), func() {
		peer := p.reach(p.peers[id])
		if peer == nil || w.trouble(w.plan.drop) {
			p.never(o)
			return
		}
		peer.run(func() {
			if v, here := peer.find(o); here && peer.jobs[lifecycle.Ref{Task: o.Task, Attempt: o.Generation}] == nil {
				peer.word(p, o, v)
				return
			}
			peer.readers = append(peer.readers, reader{o, p})
			peer.after(knownAfter, func() {
				if peer.jobs[lifecycle.Ref{Task: o.Task, Attempt: o.Generation}] == nil && peer.unlist(o, p) {
					p.never(o)
				}
			})
		})
	})
}

// unlist removes a reader and reports whether it was waiting for the object.
func (p *process) unlist(o object, q *process) bool {
	for i, r := range p.readers {
		if r.object == o && r.process == q {
			p.readers = append(p.readers[:i:i], p.readers[i+1:]...)
			return true
		}
	}
	return false
}

// tell notifies the readers of a result.
func (p *process) tell(o object) {
	v, _ := p.find(o)
	var rest []reader
	for _, r := range p.readers {
		if r.object == o {
			p.word(r.process, o, v)
		} else {
			rest = append(rest, r)
		}
	}
	p.readers = rest
}

// word sends a completion notification about an object, unless the connection breaks.
func (p *process) word(to *process, o object, v uint64) {
	w := p.w
	if w.trouble(w.plan.drop) {
		to.never(o)
		return
	}
	w.counts.words++
	bytes := p.size(o)
	w.after(w.wordDelay(), func() {
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
			to.push(lifecycle.Made{Object: lifecycle.Object(o)})
			to.pump()
		})
	})
}

// never informs a process, after a delay, that no notification about an object will come.
func (p *process) never(o object) {
	w := p.w
	d := w.wordDelay()
	if w.chance(0.1) {
		d = w.between(0, 4*time.Second)
	}
	p.after(d, func() {
		p.push(lifecycle.NeverMade{Object: lifecycle.Object(o)})
		p.pump()
	})
}

// silenced informs the readers of a process that has ended: their connections break.
func (p *process) silenced() {
	for _, r := range p.readers {
		r.process.never(r.object)
	}
	p.readers = nil
}

func (w *world) wordDelay() time.Duration {
	if w.trouble(w.plan.slow) {
		return w.between(time.Millisecond, time.Second)
	}
	return w.between(10*time.Microsecond, 200*time.Microsecond)
}
