package sim

import (
	"time"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/memory/ledger"
	"github.com/millrace/millrace/worker/lifecycle"
)

// atAddress returns the process that answers at an address; nil if there is none. The address is
// that of the given process. With fixed ports, a later process of the same host answers there.
func (p *process) atAddress(at *process) *process {
	if at == nil {
		return nil
	}
	if p.w.plan.fixedPorts {
		at = at.host.proc
	}
	if at == nil || at.dead {
		return nil
	}
	return at
}

// fetchedObject is one object of a fetch.
type fetchedObject struct {
	want  lifecycle.FetchObject
	value uint64
	bytes uint64
	lease ledger.LeaseID
	// missing means that the peer does not have the object, leaseEnded that the lease ended before
	// the object was read.
	missing, leaseEnded bool
}

// fetch reads objects from a peer, which takes leases on them for that time. It takes a random
// time, and may break off in the middle.
func (p *process) fetch(e lifecycle.StartFetch) {
	w := p.w
	over := false
	end := func(message string) {
		if over {
			return
		}
		over = true
		p.push(lifecycle.FetchEnded{Fetch: e.Fetch, Message: message})
		p.stepAll()
	}
	delay := func() time.Duration {
		if w.fault(w.plan.slow) {
			return w.between(time.Millisecond, time.Second)
		}
		return w.between(100*time.Microsecond, time.Millisecond)
	}
	lost := w.fault(w.plan.drop)
	p.after(3*time.Second, func() { end("no answer for 3 s") })
	w.after(delay(), func() {
		peer := p.atAddress(p.peers[e.Peer])
		if peer == nil {
			p.after(delay(), func() { end("connection refused") })
			return
		}
		answer := func() {
			parts := peer.takeLeases(p.self, e.Objects)
			var bytes uint64
			for i := range parts {
				bytes += parts[i].bytes
			}
			peer.after(delay()+time.Duration(bytes), func() {
				peer.endLeases(parts)
				if lost {
					parts = parts[:w.rng.IntN(len(parts))]
				}
				p.after(delay(), func() {
					if over {
						return
					}
					p.addMapping(e.Peer, peer)
					for i := range parts {
						p.arrived(e.Fetch, &parts[i])
						switch {
						case e.Pipelined && parts[i].missing:
							w.counts.notArrived++
						case e.Pipelined:
							w.counts.pipelined++
						}
					}
					if lost {
						end("stream broken")
					}
					end("")
				})
			})
		}
		peer.run(func() {
			if e.Pipelined && !peer.hasAll(e.Objects) {
				peer.after(upstreamWait, answer) // the reader fetches later ones elsewhere
				return
			}
			answer()
		})
	})
}

// upstreamWait is how long a worker waits for an object that is arriving at its upstream.
const upstreamWait = 2 * time.Millisecond

func (p *process) hasAll(wants []lifecycle.FetchObject) bool {
	for _, want := range wants {
		if _, ok := p.find(object(want.Object)); !ok {
			return false
		}
	}
	return true
}

// takeLeases takes leases on objects for a reader. An object that is not here is missing in its
// result.
func (p *process) takeLeases(reader ids.WorkerID, wants []lifecycle.FetchObject) []fetchedObject {
	parts := make([]fetchedObject, len(wants))
	for i, want := range wants {
		o := listOf(object(want.Object))
		parts[i] = fetchedObject{want: want, bytes: share(object(want.Object), p.size(o))}
		v, ok := p.find(o)
		switch {
		case !ok:
			parts[i].missing, parts[i].bytes = true, 0
		case p.isSmall(o):
			parts[i].value = v
		default:
			lease, err := p.ledger.Lease(p.w.now, o, ledger.Holder{Kind: ledger.HolderWorker, ID: uint64(reader)}, p.w.now.Add(2*time.Second))
			if err != nil {
				p.w.fail([]ids.TaskID{o.Task}, "worker %s: %v", p.host.name, err)
			}
			parts[i].lease = lease
		}
	}
	return parts
}

// endLeases ends the leases. This is the time at which the bytes are read.
func (p *process) endLeases(parts []fetchedObject) {
	for i := range parts {
		x := &parts[i]
		if x.lease == 0 {
			continue
		}
		v, there := p.values[listOf(object(x.want.Object))]
		held, effects := p.ledger.EndLease(p.w.now, x.lease)
		if held && !there {
			p.w.fail([]ids.TaskID{x.want.Object.Task}, "worker %s: the bytes of %s were freed under a lease", p.host.name, x.want.Object)
		}
		x.value, x.leaseEnded = v, !held
		p.carryOutLedger(effects)
	}
	p.stepAll()
}

// arrived stores one fetched object, or reports its failure.
func (p *process) arrived(fetch lifecycle.FetchID, x *fetchedObject) {
	w, o := p.w, object(x.want.Object)
	failed := lifecycle.FetchFailed{Fetch: fetch, Object: x.want.Object, Missing: x.missing}
	s := w.oracle.byTask[o.Task]
	switch {
	case x.missing:
		failed.Message = "not here"
	case x.leaseEnded:
		failed.Message = "the lease did not hold"
	case s == nil || x.value != s.value:
		w.fail([]ids.TaskID{o.Task}, "worker %s fetched a wrong value of %s", p.host.name, o)
	default:
		if _, here := p.find(o); here {
			p.push(lifecycle.InputFetched{Fetch: fetch, Object: x.want.Object, Bytes: x.bytes})
			p.stepAll()
			return
		}
		id, ok := p.reservations[x.want.Reservation]
		if !ok {
			w.fail([]ids.TaskID{o.Task}, "worker %s: %s arrives and its reservation %d is gone", p.host.name, o, x.want.Reservation)
		}
		if p.store(o, s, id) {
			if o.Item != 0 {
				w.counts.items++
			}
			p.push(lifecycle.InputFetched{Fetch: fetch, Object: x.want.Object, Bytes: x.bytes})
			p.stepAll()
			return
		}
		if before, there := p.ledger.Lookup(o); there && before.State == ledger.Dropped {
			// The scheduler released the object here, but a cancelled run still uses it.
			failed.Message = "it was dropped while it arrived"
		} else {
			failed.NoRoom, failed.Message = true, "no room for a fetched object"
		}
	}
	p.push(failed)
	p.stepAll()
}
