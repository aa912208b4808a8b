package ledger

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/millrace/millrace/memory/alloc"
)

// historyLen is the number of transitions in the history, over all objects.
const historyLen = 1024

// history is a ring buffer of the last transitions of all objects and reservations.
type history struct {
	ring []transition
	next uint64
}

type transition struct {
	seq         uint64
	verb        string
	object      ObjectID
	reservation ReservationID
	// n is the number that belongs to the verb: bytes, or the id of a lease or a holder.
	n uint64
	// took is the time that it took to compute the object, for the verb "took".
	took time.Duration
	// by selects the part of pin to print after the verb. The text is made only when History is
	// called.
	by  party
	pin Pin
}

// party selects the part of a transition's pin that History prints.
type party uint8

const (
	noParty    party = iota
	pinParty         // the pin
	leaseParty       // the pin's holder
)

func (h *history) pin(verb string, p Pin, o ObjectID) {
	h.put(transition{verb: verb, by: pinParty, pin: p, object: o})
}

func (h *history) add(verb string, o ObjectID, r ReservationID, n uint64) {
	h.put(transition{verb: verb, object: o, reservation: r, n: n})
}

func (h *history) took(o ObjectID, took time.Duration) {
	h.put(transition{verb: "took", object: o, took: took})
}

func (h *history) put(t transition) {
	t.seq = h.next
	if len(h.ring) < historyLen {
		h.ring = append(h.ring, t)
	} else {
		h.ring[h.next%historyLen] = t
	}
	h.next++
}

// History returns the history of one object, oldest transition first. Each line begins with the
// number of the transition in the order of all transitions.
func (l *Ledger) History(id ObjectID) []string {
	var lines []string
	for i := range l.log.ring {
		t := l.log.ring[(l.log.next+uint64(i))%uint64(len(l.log.ring))]
		if t.object != id {
			continue
		}
		line := fmt.Sprintf("#%d %s", t.seq, t.verb)
		switch t.by {
		case pinParty:
			line += " " + t.pin.String()
		case leaseParty:
			line += " " + t.pin.Holder.String()
		case noParty:
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

// Holding is one entry in the list of the holders of the slab: an object, or the unused rest of a
// granted reservation.
type Holding struct {
	// Object is zero for a reservation. Reservation is zero for an object.
	Object      ObjectID
	Reservation ReservationID
	// Holder is set only for reservations.
	Holder Holder
	State  State
	// Bytes are its blocks in the slab. SharedBytes of them also belong to other objects and would
	// not be freed with it.
	Bytes, SharedBytes uint64
	// TierBytes are its blocks in each tier, the slab included. BelowBytes are the blocks that the
	// object would need in the slab for its bytes that are not there.
	TierBytes  [MaxTiers]uint64
	BelowBytes uint64
	// NextUse is the lowest rank at which it is needed, or NeverUsed or UnknownUse.
	NextUse uint64
	// Copied: it is a copy of a peer's object.
	Copied bool
	Pins   []Pin
	Leases int
}

// String describes the holding briefly, for an error message.
func (h Holding) String() string {
	if h.Object == (ObjectID{}) {
		return fmt.Sprintf("reservation %d of %s %s", h.Reservation, h.Holder.Describe(), size(h.Bytes))
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
		notes = append(notes, "pinned as "+p.Describe())
	}
	if h.Leases > 0 {
		notes = append(notes, fmt.Sprintf("%d read leases", h.Leases))
	}
	return fmt.Sprintf("%s %s (%s)", h.Object, size(h.Bytes), strings.Join(notes, ", "))
}

// Largest returns the n largest holders of the slab, the largest first; among equals, the holder
// with the most bytes below the slab first. With n < 0 it returns all.
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
	for _, id := range slices.Sorted(maps.Keys(l.reservations)) {
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

// describeTiers describes how full the tiers below are, for the parentheses of an error message.
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

// size formats bytes with a binary unit.
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
