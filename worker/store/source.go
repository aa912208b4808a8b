package store

import (
	"fmt"
	"time"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/ledger"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/worker/value"
)

// Source returns the interface through which peers and clients read the store.
func (s *Store) Source() transfer.Source { return source{s} }

type source struct{ store *Store }

// Lease is part of transfer.Source.
func (s source) Lease(reader transfer.Reader, refs []transfer.Ref, ttl time.Duration) []transfer.Leased {
	return s.store.lease(reader, refs, ttl)
}

// Release is part of transfer.Source.
func (s source) Release(leases []transfer.LeaseID) []bool { return s.store.releaseLeases(leases) }

// Bring is part of transfer.Bringer.
func (s source) Bring(reader transfer.Reader, refs []transfer.Ref) {
	for _, r := range refs {
		s.store.bring(reader, r)
	}
}

// Renew is part of transfer.Source.
func (s source) Renew(leases []transfer.LeaseID, ttl time.Duration) []bool {
	held := make([]bool, len(leases))
	now := time.Now()
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	for i, id := range leases {
		held[i] = id == headerLease || s.store.ledger.Renew(now, ledger.LeaseID(id), now.Add(ttl))
	}
	return held
}

var _ transfer.Source = source{}

func (s *Store) lease(reader transfer.Reader, refs []transfer.Ref, ttl time.Duration) []transfer.Leased {
	holder := ledger.Holder{Kind: ledger.HolderWorker, ID: uint64(reader.Worker)}
	if reader.Worker == 0 {
		holder.Kind = ledger.HolderClient
	}
	if ttl == 0 {
		ttl = forever
	}
	now := time.Now()
	out := make([]transfer.Leased, len(refs))
	var large []int // indices of refs whose headers must be read
	defer func() {
		for _, i := range large {
			s.leaseHeader(&out[i])
		}
		for i, r := range refs {
			narrow(&out[i], r.Item)
		}
	}()
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, r := range refs {
		o, ok := s.lookup(ledger.ObjectID{Task: r.Task, Generation: r.Generation})
		if !ok {
			out[i].Err = fmt.Errorf("store: %s: %w; it was freed, or never here: ask the scheduler who holds it", r, transfer.ErrNotHere)
			continue
		}
		if reader.Keeps && !reader.Needs && o.HasPlace() && !s.ledger.Spacious() {
			out[i].Err = fmt.Errorf("store: %s is not lent: %w; fetch a copy", r, ledger.ErrNoRoom)
			continue
		}
		lease := headerLease
		regions := s.Regions(o.Frames)
		if o.HeaderAt.Bytes > 0 {
			regions = s.Regions([]memory.Frame{o.HeaderAt})
			large = append(large, i)
		}
		if o.HasPlace() {
			id, err := s.ledger.Lease(now, o.ID, holder, now.Add(ttl))
			if err != nil {
				out[i].Err = fmt.Errorf("store: %s: %w: %w", r, transfer.ErrNotHere, err)
				continue
			}
			lease = transfer.LeaseID(id)
			if o.InSlab {
				s.publish(o.ID) // it may have come back into the slab
			} else {
				regions = s.spilled(o.ID)
			}
		}
		out[i] = transfer.Leased{
			Lease:   lease,
			Head:    transfer.Head{Ref: transfer.Ref{Task: o.ID.Task, Generation: o.ID.Generation}, Header: o.Header},
			Regions: regions,
		}
		for _, f := range o.Frames {
			out[i].Head.FrameBytes = append(out[i].Head.FrameBytes, f.Bytes)
		}
	}
	return out
}

// leaseHeader replaces the lease of a large header by that of a small one: the header is copied
// into the heap and then needs no protection. REQUIRES: mu is free, since the header may have to be
// read from a tier below.
func (s *Store) leaseHeader(l *transfer.Leased) {
	if l.Err != nil {
		return
	}
	header, err := copyOf(l.Regions[0])
	held := s.releaseLeases([]transfer.LeaseID{l.Lease})[0]
	ref := l.Head.Ref
	switch {
	case err != nil:
		*l = transfer.Leased{Err: fmt.Errorf("store: %s: %w: %w", ref, transfer.ErrNotHere, err)}
	case !held:
		*l = transfer.Leased{Err: fmt.Errorf("store: %s: %w: its lease ran out while its header was read", ref, transfer.ErrNotHere)}
	default:
		*l = transfer.Leased{Lease: headerLease, Head: transfer.Head{Ref: ref, Header: header}}
	}
}

// narrow turns the lease of a list into that of one of its items: the whole object is leased, and
// the reader sees the header and the frames of the item.
func narrow(l *transfer.Leased, item ids.Item) {
	if item == 0 || l.Err != nil {
		return
	}
	header, frames := value.Item(l.Head.Header, len(l.Regions), item)
	regions, bytes := make([]transfer.Region, len(frames)), make([]uint64, len(frames))
	for i, f := range frames {
		regions[i], bytes[i] = l.Regions[f], l.Head.FrameBytes[f]
	}
	l.Head.Ref.Item, l.Head.Header, l.Head.FrameBytes, l.Regions = item, header, bytes, regions
}

func (s *Store) releaseLeases(leases []transfer.LeaseID) []bool {
	held := make([]bool, len(leases))
	now := time.Now()
	var calls []func()
	s.mu.Lock()
	for i, id := range leases {
		if id == headerLease {
			held[i] = true
			continue
		}
		var effects []ledger.Effect
		held[i], effects = s.ledger.EndLease(now, ledger.LeaseID(id))
		calls = append(calls, s.apply(effects)...)
	}
	s.mu.Unlock()
	run(calls)
	return held
}
