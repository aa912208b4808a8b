package members

import (
	"fmt"
	"slices"

	"github.com/millrace/millrace/internal/ids"
)

// registered opens the session of an incarnation, which is new or comes back.
func (m *Machine) registered(event Registered) (Welcome, *Error) {
	name, incarnation := event.Worker.Name, event.Worker.Incarnation
	w := m.byName[name]
	known := w != nil && w.seen.Worker.Incarnation == incarnation
	for _, death := range m.deaths.byName[name] {
		known = known || death.Incarnation == incarnation
		if death.Incarnation == incarnation && death.Reaped {
			return Welcome{}, &Error{Kind: ErrDead, Object: name, Message: fmt.Sprintf(
				"worker %s: incarnation %s was declared dead (%s): stop, and start a new one", name, incarnation, death.Cause)}
		}
	}
	if w != nil && w.seen.Worker.Incarnation != incarnation {
		if w.session != 0 {
			return Welcome{}, nameTaken(w, &event)
		}
		m.lose(w, loss{cause: "a new incarnation registered under its name", stop: fmt.Sprintf("another incarnation (%s) registered as %s", incarnation, name)})
		w = nil
	}
	welcome := Welcome{Back: w != nil, Foreign: m.foreign(&event, known)}
	if w == nil {
		w = m.add(name)
	}
	welcome.Worker = w.id
	m.open(w, event.Session)
	if welcome.Foreign {
		m.emit(Effect{Kind: EffectDrop, Session: w.session, Objects: event.Worker.Inventory, Attempts: event.Worker.Running})
		event.Worker.Inventory, event.Worker.Written, event.Worker.Running = nil, nil, nil
	}
	m.admit(w, event)
	return welcome, nil
}

// add makes a member with the next number.
func (m *Machine) add(name string) *worker {
	m.last++
	w := &worker{id: m.last}
	m.all = append(m.all, w)
	m.byName[name] = w
	return w
}

// admit records a registration and tells everybody of it.
func (m *Machine) admit(w *worker, event Registered) {
	event.Worker.Worker = w.id
	moved := w.seen.DataAddress != event.DataAddress && w.seen.DataAddress != ""
	w.seen = event
	w.seen.Worker.Inventory, w.seen.Worker.Written, w.seen.Worker.Running = nil, nil, nil // They are long, and the scheduling machine gets them.
	if moved {
		m.tellOf(w, w.peer(), nil)
	}
	m.schedule(event.Worker)
	m.introduceHost(w)
	m.watch(w)
	m.changed(w)
}

// foreign reports whether a worker's objects and running tasks are from another life of the
// scheduler. That is so if the worker names another life. A worker program that does not know lives
// names none; then it is so if it holds something and this scheduler has not seen its incarnation
// (known is false).
func (m *Machine) foreign(event *Registered, known bool) bool {
	if event.Life != 0 {
		return event.Life != m.config.Life
	}
	return !known && len(event.Worker.Inventory)+len(event.Worker.Running) > 0
}

// nameTaken is the error of a registration under the name of a worker that seems alive: its session
// is open and its lease has not ended. If that worker is dead, the scheduler learns it soon: its
// stream breaks, its supervisor reports the death, or its lease ends.
func nameTaken(holder *worker, event *Registered) *Error {
	h := &holder.seen
	return &Error{Kind: ErrNameTaken, Object: h.Worker.Name, Message: fmt.Sprintf(
		"worker %s: the name is taken by a worker that lives, on host %s with pid %d (incarnation %s): give this one, on host %s with pid %d, another name (--name), or stop that one first",
		h.Worker.Name, h.Worker.Host, h.PID, h.Worker.Incarnation, event.Worker.Host, event.PID),
		Metadata: map[string]string{"host": h.Worker.Host, "pid": fmt.Sprint(h.PID), "incarnation": h.Worker.Incarnation}}
}

func (w *worker) peer() Peer {
	return Peer{Worker: w.id, Address: w.seen.DataAddress, Name: w.seen.Worker.Name, Device: w.seen.Device}
}

// peerOf is peer, with SameHost as seen from another worker.
func (w *worker) peerOf(other *worker) Peer {
	p := w.peer()
	p.SameHost = w.sharesHost(other)
	return p
}

// sharesHost reports whether two different workers, both with GPUs and data addresses, are on the
// same host.
func (w *worker) sharesHost(other *worker) bool {
	a, b := &w.seen, &other.seen
	return w != other && a.Worker.PipelinedReads && b.Worker.PipelinedReads && a.Worker.Host == b.Worker.Host && a.DataAddress != "" && b.DataAddress != ""
}

// Introduce returns the address of a worker if it must be sent in a session because it was not sent
// there before.
func (m *Machine) Introduce(session Session, to ids.WorkerID) (Peer, bool) {
	w := m.bySession[session]
	if w == nil || w.knows.Has(uint64(to)) {
		return Peer{}, false
	}
	w.knows.Add(uint64(to))
	if peer := m.get(to); peer != nil {
		return peer.peerOf(w), true
	}
	return Peer{}, false
}

// introduceHost sends a newly registered worker the addresses of the workers that share its host,
// and its own address to them.
func (m *Machine) introduceHost(w *worker) {
	for _, other := range m.all {
		if other.session == 0 || !other.sharesHost(w) {
			continue
		}
		m.introduce(other, w)
		m.introduce(w, other)
	}
}

func (m *Machine) introduce(to, peer *worker) {
	if p, isNew := m.Introduce(to.session, peer.id); isNew {
		m.emit(Effect{Kind: EffectPeer, Session: to.session, Peer: p})
	}
}

// tellOf sends a worker's current address in every session that knows the worker, except to those
// workers in except.
func (m *Machine) tellOf(w *worker, peer Peer, except []ids.WorkerID) {
	for _, other := range m.all {
		if other.session != 0 && other.knows.Has(uint64(w.id)) && !slices.Contains(except, other.id) {
			m.emit(Effect{Kind: EffectPeer, Session: other.session, Peer: peer})
		}
	}
}

// Set is a set of small integers.
type Set struct{ words []uint64 }

// Has reports whether n is in the set.
func (s *Set) Has(n uint64) bool {
	return n/64 < uint64(len(s.words)) && s.words[n/64]&(1<<(n%64)) != 0
}

// Add puts n into the set.
func (s *Set) Add(n uint64) {
	for uint64(len(s.words)) <= n/64 {
		s.words = append(s.words, 0)
	}
	s.words[n/64] |= 1 << (n % 64)
}
