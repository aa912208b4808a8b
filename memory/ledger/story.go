package ledger

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/millrace/millrace/memory/alloc"
)

// storyLen is how many transitions are remembered, over all objects.
const storyLen = 1024

// story is a ring of the last transitions.
type story struct {
	ring []transition
	next uint64
}

type transition struct {
	seq         uint64
	verb        string
	object      ObjectID
	reservation ReservationID
	// n is the number that belongs to the verb: bytes, or the id of a lease or
	// a holder.
	n uint64
	// took is how long the object took to make, in that transition.
	took time.Duration
	// by says what of pin belongs to the verb: its text is made for who asks only.
	by  party
	pin Pin
}

// party is who did it.
type party uint8

const (
	nobody party = iota
	pinner       // pin
	leaser       // the holder of pin
)

func (s *story) pin(verb string, p Pin, o ObjectID) {
	s.put(transition{verb: verb, by: pinner, pin: p, object: o})
}

func (s *story) add(verb string, o ObjectID, r ReservationID, n uint64) {
	s.put(transition{verb: verb, object: o, reservation: r, n: n})
}

func (s *story) took(o ObjectID, took time.Duration) {
	s.put(transition{verb: "took", object: o, took: took})
}

func (s *story) put(t transition) {
	t.seq = s.next
	if len(s.ring) < storyLen {
		s.ring = append(s.ring, t)
	} else {
		s.ring[s.next%storyLen] = t
	}
	s.next++
}

// Story returns the remembered transitions of one object, oldest first, each
// with its place in the order of all.
func (l *Ledger) Story(id ObjectID) []string {
	var lines []string
	for i := range l.log.ring {
		t := l.log.ring[(l.log.next+uint64(i))%uint64(len(l.log.ring))]
		if t.object != id {
			continue
		}
		line := fmt.Sprintf("#%d %s", t.seq, t.verb)
		switch t.by {
		case pinner:
			line += " " + t.pin.String()
		case leaser:
			line += " " + t.pin.Holder.String()
		case nobody:
		}
		if t.n != 0 {
			line += fmt.Sprintf(" %d", t.n)
		}
		if t.took > 0 {
			line += fmt.Sprintf(" %v to make", t.took)
		}
		if t.reservation != 0 {
			line += fmt.Sprintf(" in reservation %d", t.reservation)
		}
		lines = append(lines, line)
	}
	return lines
}

// Holding is one entry in the list of who holds the slab: an object, or the
// rest of a granted reservation.
type Holding struct {
	// Object is zero for a reservation, Reservation for an object.
	Object      ObjectID
	Reservation ReservationID
	// Holder is set for reservations.
	Holder Holder
	State  State
	// Bytes are the blocks it keeps in the slab; SharedBytes of them are kept by
	// other objects too and would not be freed with it.
	Bytes, SharedBytes uint64
	// TierBytes are the blocks in each tier, the slab among them; BelowBytes of the
	// object are not in the slab.
	TierBytes  [MaxTiers]uint64
	BelowBytes uint64
	// NextUse is the rank at which it is needed first, or NeverUsed or UnknownUse.
	NextUse uint64
	// Copied: it is a copy of a peer's object.
	Copied bool
	Pins   []Pin
	Leases int
}

// String describes the holding in a few words for an error message.
func (h Holding) String() string {
	if h.Object == (ObjectID{}) {
		return fmt.Sprintf("reservation %d of %s %s", h.Reservation, h.Holder, size(h.Bytes))
	}
	notes := []string{h.State.String()}
	if h.SharedBytes > 0 {
		notes = append(notes, size(h.SharedBytes)+" shared")
	}
	for i, p := range h.Pins {
		if i == 3 {
			notes = append(notes, fmt.Sprintf("%d more pins", len(h.Pins)-i))
			break
		}
		notes = append(notes, "pinned as "+p.String())
	}
	if h.Leases > 0 {
		notes = append(notes, fmt.Sprintf("%d read leases", h.Leases))
	}
	return fmt.Sprintf("%s %s (%s)", h.Object, size(h.Bytes), strings.Join(notes, ", "))
}

// Largest returns the n largest holders of the slab, the largest first, and among
// equals those with the most below; all when n < 0.
func (l *Ledger) Largest(n int) []Holding {
	var all []Holding
	for _, o := range l.sorted() {
		h := Holding{Object: o.id, State: o.state, Pins: slices.Clone(o.pins), Leases: o.leases, NextUse: o.use(), Copied: o.copied}
		own := make(map[*extent]int, len(o.extents))
		for _, e := range o.extents {
			if e == nil {
				continue
			}
			if own[e]++; own[e] > 1 {
				continue
			}
			for i, t := range l.tiers {
				if e.places[i].presence != Absent {
					h.TierBytes[i] += t.block(e.bytes)
				}
			}
			if e.places[0].presence == Absent {
				h.BelowBytes += alloc.Rounded(e.bytes)
			}
		}
		// order-free: a sum.
		for e, refs := range own {
			if refs < e.refs && e.places[0].presence != Absent {
				h.SharedBytes += alloc.Rounded(e.bytes)
			}
		}
		h.Bytes = h.TierBytes[0]
		all = append(all, h)
	}
	for _, id := range sortedKeys(l.reservations) {
		r := l.reservations[id]
		h := Holding{Reservation: id, Holder: r.holder}
		for _, b := range r.blocks {
			h.Bytes += b.Bytes
		}
		if h.Bytes > 0 {
			all = append(all, h)
		}
	}
	slices.SortStableFunc(all, func(a, b Holding) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(b.BelowBytes, a.BelowBytes))
	})
	if n >= 0 && n < len(all) {
		all = all[:n]
	}
	return all
}

func (l *Ledger) describeLargest() string {
	var parts []string
	for _, h := range l.Largest(5) {
		if h.Bytes > 0 {
			parts = append(parts, h.String())
		}
	}
	if len(parts) == 0 {
		return "none"
	}
	return strings.Join(parts, "; ")
}

// describeTiers says what the tiers below could take, in parentheses of an error.
func (l *Ledger) describeTiers() string {
	var b strings.Builder
	for _, t := range l.tiers[1:] {
		fmt.Fprintf(&b, "; %s holds %s of %s", t.Name, size(t.heldBytes), size(t.SizeBytes))
		if t.failed != nil {
			fmt.Fprintf(&b, " and is closed for now: %v", t.failed)
		}
	}
	return b.String()
}

// size writes bytes with a binary unit.
func size(n uint64) string {
	const units = "KMGTPE"
	if n < 1024 {
		return fmt.Sprintf("%d B", n)
	}
	v, u := float64(n)/1024, 0
	for v >= 1024 && u < len(units)-1 {
		v /= 1024
		u++
	}
	return fmt.Sprintf("%.4g %ciB", v, units[u])
}
