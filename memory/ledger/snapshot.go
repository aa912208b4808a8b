package ledger

import (
	"maps"
	"slices"
	"time"
)

// TierState describes a tier at one moment. Sizes are in bytes of whole blocks, unless said
// otherwise.
type TierState struct {
	Name      string
	SizeBytes uint64
	// UsedBytes are the bytes in use for any purpose. HeldBytes of them belong to objects; of
	// these, CleanBytes have a copy in a tier below, and LeavingBytes are being written there.
	// ComingBytes are being filled.
	UsedBytes, HeldBytes, CleanBytes, LeavingBytes, ComingBytes uint64
	// LargestFreeBytes is the size of the largest free block.
	LargestFreeBytes uint64
	// EvictableBytes are the bytes that may leave the tier, before rounding to blocks. CheapBytes
	// of them leave at once, without a write. The others leave after a write to a tier below, if
	// one has room.
	EvictableBytes, CheapBytes uint64
	// InBytes is the total read from this tier into the slab, OutBytes the total written to this
	// tier, both before rounding.
	InBytes, OutBytes uint64
	// Failed is the last write error, nil if the tier works. While it is set, the tier gets no
	// writes before Retry, unless room is freed in it, and then one write at a time.
	Failed error
	Retry  time.Time
}

// ReservationState describes a reservation.
type ReservationState struct {
	ID     ReservationID
	Holder Holder
	// Bytes is the size of the blocks that it asks for. LoadBytes are the bytes of its inputs that
	// are not in the slab yet, before rounding.
	Bytes, LoadBytes uint64
	Granted, Urgent  bool
	// Since is the time of the request, Deadline the end of its wait in the queue.
	Since, Deadline time.Time
}

// Snapshot describes the state of the ledger for people.
type Snapshot struct {
	Tiers   []TierState
	Largest []Holding
	// Pinned are the largest objects whose bytes must stay in their place: objects that are being
	// built, pinned in place, leased, or held by a granted reservation.
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
			LargestFreeBytes: t.space.Stats().LargestFree,
			LeavingBytes:     t.leavingBytes, ComingBytes: coming[i], InBytes: t.inBytes, OutBytes: t.outBytes, Failed: t.failed, Retry: t.retry,
		}
		states[i].EvictableBytes, states[i].CheapBytes = t.cheap.bytes+t.costly.bytes, t.cheap.bytes
	}
	return states
}

// Available returns the bytes of the slab that are free, plus the bytes that may leave it (see
// TierState.EvictableBytes).
func (l *Ledger) Available() uint64 {
	t := l.tiers[0]
	return l.space.Size() - l.space.Used() + t.cheap.bytes + t.costly.bytes
}

// Spare returns the bytes of the slab that are free or leave without a write.
func (l *Ledger) Spare() uint64 { return l.space.Size() - l.space.Used() + l.tiers[0].cheap.bytes }

// Snapshot describes the whole ledger. Largest and Pinned have at most n entries each.
// REQUIRES: n is not negative.
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
	for _, id := range slices.Sorted(maps.Keys(l.reservations)) {
		if r := l.reservations[id]; r.granted {
			add(r)
		}
	}
	s.Reservations = slices.Clip(s.Reservations)
	return s
}
