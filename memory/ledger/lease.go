package ledger

import (
	"container/heap"
	"fmt"
	"time"
)

// LeaseID identifies a read lease. The ledger counts them up from 1 and never uses one again.
type LeaseID uint64

// ReadLease protects an object's bytes for a reader outside of the worker: a peer or a client. From
// the start of the lease until it ends, or until Deadline on the ledger's clock, the bytes do not
// change and do not move, in any tier. The reader may use its copy only if EndLease says that the
// lease held.
type ReadLease struct {
	ID       LeaseID
	Object   ObjectID
	Holder   Holder
	Deadline time.Time
}

type lease struct {
	ReadLease
	index int // in Ledger.deadlines
}

// Lease gives a read lease on a sealed object until the deadline, which must be after now.
func (l *Ledger) Lease(now time.Time, id ObjectID, h Holder, deadline time.Time) (LeaseID, error) {
	o, err := l.sealed(id)
	if err != nil {
		return 0, fmt.Errorf("ledger: read lease for %s: %w", h, err)
	}
	if !now.Before(deadline) {
		return 0, fmt.Errorf("ledger: read lease for %s on object %s: its deadline has passed: %w; ask for a later one", h, id, ErrState)
	}
	l.lastLease++
	e := &lease{ReadLease: ReadLease{ID: l.lastLease, Object: id, Holder: h, Deadline: deadline}}
	l.leases[e.ID] = e
	heap.Push(&l.deadlines, e)
	o.leases++
	l.countLease(o, 1)
	l.hold(o)
	l.log.put(transition{verb: "leased to", by: leaseParty, pin: Pin{Holder: h}, object: id, n: uint64(e.ID)})
	l.verify()
	return e.ID, nil
}

// Renew moves the deadline of a valid lease, never to an earlier time. It returns false if the
// lease is no longer valid: then the reader must treat its bytes as lost.
func (l *Ledger) Renew(now time.Time, id LeaseID, deadline time.Time) bool {
	e := l.leases[id]
	if e == nil || !now.Before(e.Deadline) {
		return false
	}
	if e.Deadline.Before(deadline) {
		e.Deadline = deadline
		heap.Fix(&l.deadlines, e.index)
	}
	l.verify()
	return true
}

// EndLease ends a lease. held says whether the lease protected the bytes from its start until now;
// if not, the reader must discard its copy. held is false for an unknown lease, and for a lease
// past its deadline, even if Expire has not ended it yet.
func (l *Ledger) EndLease(now time.Time, id LeaseID) (held bool, effects []Effect) {
	e := l.leases[id]
	if e == nil {
		return false, nil
	}
	held = now.Before(e.Deadline)
	effects = l.serve(l.endLease(e, "lease ended", nil))
	l.verify()
	return held, effects
}

func (l *Ledger) endLease(e *lease, verb string, out []Effect) []Effect {
	delete(l.leases, e.ID)
	heap.Remove(&l.deadlines, e.index)
	o := l.objects[e.Object]
	o.leases--
	l.countLease(o, -1)
	l.unhold(o)
	l.log.add(verb, e.Object, 0, uint64(e.ID))
	return l.settle(o, out)
}

// countLease adds n to the lease count of each extent of an object, once per frame.
func (l *Ledger) countLease(o *object, n int) {
	for _, e := range o.extents {
		if e != nil {
			if e.leases += n; e.leases == 0 || e.leases == n {
				l.index(e)
			}
		}
	}
}

// leaseHeap is a heap with the lease that expires first at index 0. Of two leases with the same
// deadline, the older one comes first.
type leaseHeap []*lease

// Len is part of heap.Interface.
func (h leaseHeap) Len() int { return len(h) }

// Less is part of heap.Interface.
func (h leaseHeap) Less(i, j int) bool {
	if c := h[i].Deadline.Compare(h[j].Deadline); c != 0 {
		return c < 0
	}
	return h[i].ID < h[j].ID
}

// Swap is part of heap.Interface.
func (h leaseHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

// Push is part of heap.Interface.
func (h *leaseHeap) Push(x any) {
	e := x.(*lease)
	e.index = len(*h)
	*h = append(*h, e)
}

// Pop is part of heap.Interface.
func (h *leaseHeap) Pop() any {
	old := *h
	e := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return e
}
