package lifecycle

import (
	"fmt"
	"slices"
)

// Check returns an error that names the first broken invariant, nil if all hold.
//
// The invariants: an attempt is in a ready queue exactly while Queued, and in a slot exactly while
// Running. It waits for memory exactly while its reservation is not granted. It has missing inputs
// only while Waiting or Fetching, and each of them lists it. It waits for a function, makers and
// awaited objects exactly while PreAssigned, and each of them lists it. It has nothing else then
// and while Admitting. At least one attempt waits for every awaited object. Every wanted object has
// waiting attempts or is on its way, is in exactly one place, and is not both released and rescued.
// Slots and resources add up. The limits on fetches hold.
func (m *Machine) Check() error {
	queued, running := 0, 0
	// order-free: any one broken attempt is as good as another.
	for ref, a := range m.attempts {
		if a.ref != ref {
			return fmt.Errorf("lifecycle: attempt %s is filed as %s", a.ref, ref)
		}
		if (a.state == Running) != (a.slot != nil) {
			return fmt.Errorf("lifecycle: attempt %s is %s, in a slot: %v", ref, a.state, a.slot != nil)
		}
		switch a.state {
		case Waiting:
			if a.reservation == nil || a.reservation.granted {
				return fmt.Errorf("lifecycle: attempt %s waits for memory and has none asked for", ref)
			}
		case Fetching:
			if len(a.missing) == 0 && (a.reservation == nil || !a.reservation.loading) {
				return fmt.Errorf("lifecycle: attempt %s is fetching nothing", ref)
			}
		case Queued:
			queued++
		case PreAssigned, Admitting:
			if err := m.checkPreAssigned(a); err != nil {
				return err
			}
		case Leasing, Pausing:
		case Running:
			running++
			if !slices.Contains(a.slot.running, a) {
				return fmt.Errorf("lifecycle: attempt %s is not in its slot", ref)
			}
		default:
			return fmt.Errorf("lifecycle: attempt %s has no state", ref)
		}
		if (a.state == Queued || a.state == Running) && len(a.missing) > 0 {
			return fmt.Errorf("lifecycle: attempt %s is %s with %d inputs missing", ref, a.state, len(a.missing))
		}
		if (a.state == Queued || a.state == Running) && (a.loose || a.reservation != nil && a.reservation.loading) {
			return fmt.Errorf("lifecycle: attempt %s is %s and its inputs are not in place", ref, a.state)
		}
		if a.state != Waiting && a.reservation != nil && !a.reservation.granted {
			return fmt.Errorf("lifecycle: attempt %s is %s without its memory", ref, a.state)
		}
		if a.early() != (a.state == PreAssigned) {
			return fmt.Errorf("lifecycle: attempt %s is %s and waits for %d makers and %d objects", ref, a.state, len(a.makers), len(a.awaited))
		}
		if err := m.checkLarge(a); err != nil {
			return err
		}
		for _, f := range a.followers {
			if m.attempts[f.ref] != f || f.state != PreAssigned || !slices.Contains(f.makers, a) {
				return fmt.Errorf("lifecycle: attempt %s has a follower %s that does not know of it", ref, f.ref)
			}
		}
		for _, w := range a.missing {
			if m.wanted[w.object] != w || !slices.Contains(w.waiting, a) {
				return fmt.Errorf("lifecycle: attempt %s is not among those who wait for %s", ref, w.object)
			}
		}
	}
	if err := m.checkSlots(queued, running); err != nil {
		return err
	}
	if err := m.checkFunctions(); err != nil {
		return err
	}
	if err := m.checkAwaited(); err != nil {
		return err
	}
	return m.checkFetches()
}

func (m *Machine) checkSlots(queued, running int) error {
	ready, busy, slots := len(m.special), 0, m.freeSlots
	free := make(map[string]float64)
	for _, r := range m.runners {
		ready += len(r.ready)
		for _, a := range r.ready {
			if m.attempts[a.ref] != a || a.state != Queued {
				return fmt.Errorf("lifecycle: attempt %s is ready and %s", a.ref, a.state)
			}
		}
		for _, s := range r.slots {
			busy += len(s.running)
			slots += s.width
			if (s.width == 0) != (len(s.running) == 0 || s.running[0].withoutSlots()) {
				return fmt.Errorf("lifecycle: slot %s/%d has width %d for %d attempts", r.name, s.index, s.width, len(s.running))
			}
			for _, a := range s.running {
				if m.attempts[a.ref] != a || a.slot != s {
					return fmt.Errorf("lifecycle: attempt %s is in slot %s/%d and does not know", a.ref, r.name, s.index)
				}
				// order-free: sums.
				for name, amount := range a.resources {
					free[name] += amount
				}
			}
		}
	}
	if ready != queued || busy != running {
		return fmt.Errorf("lifecycle: %d attempts queued and %d running, %d and %d in queues and slots", queued, running, ready, busy)
	}
	if err := m.checkBlocked(); err != nil {
		return err
	}
	if slots != m.config.Slots {
		return fmt.Errorf("lifecycle: %d slots of %d are accounted for", slots, m.config.Slots)
	}
	// order-free: any one is as good as another.
	for name, amount := range m.config.Resources {
		if d := m.free[name] + free[name] - amount; d > 1e-6*amount || d < -1e-6*amount {
			return fmt.Errorf("lifecycle: %g of %g %s are accounted for", m.free[name]+free[name], amount, name)
		}
	}
	return nil
}

// checkBlocked checks the counts of attempts that wait for other tasks.
func (m *Machine) checkBlocked() error {
	without, inPlace, again := 0, 0, 0
	// order-free: sums, and any one broken attempt is as good as another.
	for ref, a := range m.attempts {
		if a.waits != notWaiting && (a.state != Running || a.slot.running[0] != a) {
			return fmt.Errorf("lifecycle: attempt %s waits for tasks and is not the first of a slot", ref)
		}
		switch a.waits {
		case notWaiting, yielding:
		case blocked:
			without++
		case resuming:
			without, again = without+1, again+1
		case blockedInPlace:
			inPlace += a.slot.width
		}
		if a.waits == resuming && !slices.Contains(m.resuming, a) {
			return fmt.Errorf("lifecycle: attempt %s wants to go on and is in no queue", ref)
		}
	}
	if without != m.blocked || inPlace != m.inPlace || again != len(m.resuming) {
		return fmt.Errorf("lifecycle: %d attempts without slots, %d slots kept, %d that want to go on; counted %d, %d, %d",
			without, inPlace, again, m.blocked, m.inPlace, len(m.resuming))
	}
	if m.inPlace > 0 && m.inPlace >= m.config.Slots || m.blocked > max(m.config.MaxBlocked, 0) {
		return fmt.Errorf("lifecycle: %d attempts wait without slots and %d slots are kept by others, of %d", m.blocked, m.inPlace, m.config.Slots)
	}
	return nil
}

func (m *Machine) checkFetches() error {
	if len(m.fetches) > m.config.Fetches {
		return fmt.Errorf("lifecycle: %d fetches, %d allowed", len(m.fetches), m.config.Fetches)
	}
	for _, p := range m.peers {
		if p.fetches > m.config.FetchesPerPeer {
			return fmt.Errorf("lifecycle: %d fetches from %s, %d allowed", p.fetches, p.id, m.config.FetchesPerPeer)
		}
	}
	// order-free: any one is as good as another.
	for o, w := range m.wanted {
		places := 0
		if w.peer != nil && slices.Contains(w.peer.queue, w) {
			places++
		}
		if w.fetch != nil && slices.Contains(w.fetch.objects, w) && m.fetches[w.fetch.id] == w.fetch {
			places++
		}
		if w.reservation != nil && !w.reservation.granted {
			places++
		}
		if places != 1 || w.object != o {
			return fmt.Errorf("lifecycle: object %s is in %d places", o, places)
		}
		if w.released && w.rescued {
			return fmt.Errorf("lifecycle: object %s is released and rescued", o)
		}
		if len(w.waiting) == 0 && w.fetch == nil {
			return fmt.Errorf("lifecycle: object %s is wanted by nobody", o)
		}
		if w.reservation == nil || m.reserved[w.reservation.id] != w.reservation || !slices.Contains(w.reservation.objects, w) {
			return fmt.Errorf("lifecycle: object %s has no memory asked for", o)
		}
	}
	// order-free: any one is as good as another.
	for id, r := range m.reserved {
		if r.id != id || r.attempt == nil && len(r.objects) == 0 {
			return fmt.Errorf("lifecycle: reservation %d is of no use", id)
		}
	}
	return nil
}
