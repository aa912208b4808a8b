package ledger

import (
	"slices"
	"time"
)

// TierState describes a tier at one moment. Sizes are in bytes of blocks.
type TierState struct {
	Name      string
	SizeBytes uint64
	// UsedBytes are the bytes in use for any purpose. HeldBytes of them belong to objects; of
	// these, CleanBytes have a copy in a tier below, and LeavingBytes are being written there.
	// ComingBytes are being filled.
	UsedBytes, HeldBytes, CleanBytes, LeavingBytes, ComingBytes uint64
	// EvictableBytes could leave at once if a tier below has room. They are counted before
	// rounding. CheapBytes of them leave without a write, whether a tier below has room or not.
	EvictableBytes, CheapBytes uint64
	// InBytes is the total read from this tier into the slab, OutBytes the total written to this
	// tier.
	InBytes, OutBytes uint64
	// Failed is the last write error, nil if the tier works. While it is set, nothing is written to
	// the tier until Retry.
	Failed error
	Retry  time.Time
}

// ReservationState describes a reservation.
type ReservationState struct {
	ID     ReservationID
	Holder Holder
	// Bytes are the blocks that it asks for. LoadBytes are the bytes of its inputs that are not in
	// the slab yet.
	Bytes, LoadBytes uint64
	Granted, Urgent  bool
	Since, Deadline  time.Time
}

// Snapshot describes the state of the ledger for people.
type Snapshot struct {
	Tiers   []TierState
	Largest []Holding
	// Pinned are the largest objects that cannot leave the slab.
	Pinned []Holding
	// Reservations are first the waiting ones, in the order in which they are served, then the
	// granted ones, by id.
	Reservations []ReservationState
}

// Tiers describes the tiers, the slab first.
func (l *Ledger) Tiers() []TierState {
	var coming [MaxTiers]uint64
	// order-free: sums.
	for _, x := range l.transfers {
		coming[x.to] += l.tiers[x.to].block(x.extent.bytes)
	}
	states := make([]TierState, len(l.tiers))
	for i, t := range l.tiers {
		states[i] = TierState{
			Name: t.Name, SizeBytes: t.SizeBytes, UsedBytes: t.space.Used(), HeldBytes: t.heldBytes, CleanBytes: t.cleanBytes,
			LeavingBytes: t.leavingBytes, ComingBytes: coming[i], InBytes: t.inBytes, OutBytes: t.outBytes, Failed: t.failed, Retry: t.retry,
		}
		states[i].EvictableBytes, states[i].CheapBytes = t.cheap.bytes+t.costly.bytes, t.cheap.bytes
	}
	return states
}

// Available returns the bytes of the slab that are free, or could leave at once if a tier below has
// room.
func (l *Ledger) Available() uint64 {
	t := l.tiers[0]
	return l.space.Size() - l.space.Used() + t.cheap.bytes + t.costly.bytes
}

// Snapshot describes the whole ledger, with the n largest of each kind.
func (l *Ledger) Snapshot(n int) Snapshot {
	all := l.Largest(-1)
	s := Snapshot{Tiers: l.Tiers(), Largest: all[:min(n, len(all))]}
	for _, h := range all {
		if o := l.objects[h.Object]; len(s.Pinned) < n && o != nil && o.held > 0 {
			s.Pinned = append(s.Pinned, h)
		}
	}
	add := func(r *reservation) {
		state := ReservationState{
			ID: r.id, Holder: r.holder, Bytes: r.bytes, Granted: r.granted, Urgent: r.urgent, Since: r.since, Deadline: r.deadline,
		}
		for _, e := range l.loads(r, true) {
			if e.places[0].presence != Resident {
				state.LoadBytes += e.bytes
			}
		}
		s.Reservations = append(s.Reservations, state)
	}
	for _, r := range l.waiting {
		add(r)
	}
	for _, id := range sortedKeys(l.reservations) {
		if r := l.reservations[id]; r.granted {
			add(r)
		}
	}
	s.Reservations = slices.Clip(s.Reservations)
	return s
}
