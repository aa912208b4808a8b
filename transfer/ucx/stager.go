package ucx

import (
	"slices"
	"time"

	"github.com/millrace/millrace/memory"
)

const (
	// maxStagings is how many requests for slots of the source's ring a reader may have: those that
	// wait, and those that have a slot.
	maxStagings = 8
	// maxParts is the number of ranges that one request may name.
	maxParts = 4096
	// partAlignment is the alignment of the ranges in a slot. The kernel that copies many small
	// ranges moves words of this size.
	partAlignment = 16
)

// aligned returns the offset in a slot of the first range that begins at or after at.
func aligned(at uint64) uint64 { return (at + partAlignment - 1) &^ (partAlignment - 1) }

// staging is a request of a reader for a slot of the source's ring with bytes of the slab. Its
// ranges lie in the slot in their order, each aligned.
type staging struct {
	conn    *conn
	request uint64
	pieces  []memory.Piece
	slot    int
	// since is when the reader was told the slot. Zero: it was not told yet.
	since time.Time
}

// stager decides which reader gets a slot of the source's ring, first come, first served. It is
// owned by the progress thread.
type stager struct {
	free    []int
	waiting []*staging
	// lent are the requests that have a slot.
	lent []*staging
}

// ask adds a request. It returns false if the reader has too many.
func (s *stager) ask(x *staging) bool {
	if x.conn.stagings == maxStagings {
		return false
	}
	x.conn.stagings++
	s.waiting = append(s.waiting, x)
	return true
}

// next gives a free slot to the first request, and returns it. It returns nil if no slot is free or
// no request waits.
func (s *stager) next() *staging {
	if len(s.waiting) == 0 || len(s.free) == 0 {
		return nil
	}
	x := s.waiting[0]
	s.waiting[0] = nil
	s.waiting = s.waiting[1:]
	last := len(s.free) - 1
	x.slot, s.free = s.free[last], s.free[:last]
	s.lent = append(s.lent, x)
	return x
}

// told records that the reader was told the slot.
func (s *stager) told(x *staging, now time.Time) { x.since = now }

// returned records that a reader has given a slot back.
func (s *stager) returned(x *staging, now time.Time) {
	x.conn.returned = now
	s.back(x)
}

// back takes back the slot of a request.
func (s *stager) back(x *staging) {
	s.lent = slices.DeleteFunc(s.lent, func(y *staging) bool { return y == x })
	s.free = append(s.free, x.slot)
	x.conn.stagings--
}

// find returns the request of a reader that was told a slot; nil if there is none.
func (s *stager) find(n *conn, slot uint32) *staging {
	for _, x := range s.lent {
		if x.conn == n && uint64(x.slot) == uint64(slot) && !x.since.IsZero() {
			return x
		}
	}
	return nil
}

// forget drops the requests of a reader that has gone, and takes back its slots. A slot to which
// bytes are still being copied is not taken back; its copier calls back.
func (s *stager) forget(n *conn) {
	mine := func(x *staging) bool { return x.conn == n }
	kept := len(s.waiting)
	s.waiting = slices.DeleteFunc(s.waiting, mine)
	n.stagings -= kept - len(s.waiting)
	for _, x := range slices.Clone(s.lent) {
		if mine(x) && !x.since.IsZero() {
			s.back(x)
		}
	}
}

// overdue returns the readers that have kept a slot for longer than limit, and have given none back
// meanwhile: on a slow network, several slots are read one after the other.
func (s *stager) overdue(now time.Time, limit time.Duration) (late []*conn) {
	for _, x := range s.lent {
		if !x.since.IsZero() && now.Sub(x.since) > limit && now.Sub(x.conn.returned) > limit {
			late = append(late, x.conn)
		}
	}
	return late
}
