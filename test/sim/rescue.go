package sim

import (
	"time"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/sched"
)

// rescue is an order to copy one object out of the memory of a dead worker.
type rescue struct {
	dead        ids.WorkerID
	incarnation string
	object      object
}

func (h *host) machine() int { return h.index / (workerCount / machines) }

// addMapping notes that this process now has the memory of a peer mapped.
func (p *process) addMapping(id ids.WorkerID, peer *process) {
	if p.w.plan.mapped && peer != nil && peer.host.machine() == p.host.machine() {
		p.mappings[id] = peer
	}
}

// unmapLater makes all processes unmap the memory of the dead process after some time, even without
// an order of the scheduler.
func (h *host) unmapLater() {
	dead := h.proc
	h.w.after(h.w.between(time.Second, 5*time.Second), func() {
		for _, o := range h.w.hosts {
			if o.proc != nil && o.proc.mappings[dead.self] == dead {
				delete(o.proc.mappings, dead.self)
			}
		}
	})
}

// rescue copies an object out of the memory of a dead process, which is unchanged since its death.
func (p *process) rescue(r rescue) {
	w := p.w
	p.after(w.between(20*time.Microsecond, 3*time.Millisecond)+time.Duration(p.size(r.object)), func() {
		o, dead := r.object, p.mappings[r.dead]
		gained := func() {
			p.outgoing.gained = append(p.outgoing.gained, sched.Stored{Replica: sched.Replica{Task: o.Task, Generation: o.Generation, Bytes: p.size(o)}})
		}
		if _, here := p.find(o); here {
			gained()
			return
		}
		failed := sched.RescueFailed{Dead: r.dead, Objects: []sched.Replica{{Task: o.Task, Generation: o.Generation}}}
		s := w.oracle.byTask[o.Task]
		switch {
		case dead == nil, !dead.dead, dead.incarnation != r.incarnation, w.fault(w.plan.rescueFails), dead.isSmall(o):
		case s == nil:
			w.fail([]ids.TaskID{o.Task}, "worker %s is to rescue %s, which nobody submitted", p.host.name, o)
		default:
			v, sealed := dead.find(o)
			if sealed && v != s.value {
				w.fail([]ids.TaskID{o.Task}, "worker %s rescued a wrong value of %s", p.host.name, o)
			}
			if sealed && p.store(o, s, 0) {
				w.counts.rescued++
				gained()
				p.stepAll()
				return
			}
		}
		p.outgoing.failed = append(p.outgoing.failed, failed)
	})
}
