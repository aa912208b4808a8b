// Package mirror is an Adapter: it presents objects that are on a device or on disk as host memory
// that other processes can map. It serves the clients and host-memory workers of the same host,
// which cannot map anything else. When an object is leased, the device copies it to a part of a
// pinned tier. When a written object is committed, it is copied from there to its destination.
//
// Parts of objects also pass through it on their way to another GPU of the host that cannot read
// this one's memory (Stage).
package mirror

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/alloc"
	"github.com/millrace/millrace/transfer"
)

// Mirror allocates from a part of a tier that it alone uses. It is safe for concurrent use.
type Mirror struct {
	tier memory.DirectTier
	host memory.Space
	// first is the offset of the part in the tier, base the offset of the tier in host.
	first, base uint64

	mu sync.Mutex
	// All fields below are guarded by mu. copies has the allocated offsets of each of the mirror's
	// own leases.
	space  *alloc.Allocator
	copies map[transfer.LeaseID][]uint64
	last   transfer.LeaseID
	stages stages
}

// ownLeases is the first number of the mirror's own leases, far above the numbers of sources. A
// copy under such a lease stays valid while the lease lasts, whatever happens to the object. The
// mirror's own leases last until Release, whatever their ttl: the server of a connection releases
// those that are left when the connection ends.
const ownLeases transfer.LeaseID = 1 << 62

func own(id transfer.LeaseID) bool { return id >= ownLeases && id < 2*ownLeases }

// New returns a mirror that uses the given range of a tier.
func New(tier memory.DirectTier, offset, bytes uint64) (*Mirror, error) {
	space, err := alloc.New(bytes / alloc.Granule * alloc.Granule)
	if err != nil {
		return nil, fmt.Errorf("mirror: %w", err)
	}
	m := &Mirror{tier: tier, first: offset, space: space, copies: make(map[transfer.LeaseID][]uint64), last: ownLeases}
	m.host, m.base = tier.Host()
	return m, nil
}

// Space returns the memory that other processes map.
func (m *Mirror) Space() memory.Space { return m.host }

// take allocates a frame of each size. It returns their regions, and the offsets for give.
func (m *Mirror) take(sizes []uint64) (regions []transfer.Region, taken []uint64, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	regions = make([]transfer.Region, len(sizes))
	for i, n := range sizes {
		regions[i] = transfer.Region{Space: m.host, Frame: memory.Frame{Bytes: n}}
		if n == 0 {
			continue
		}
		off, ok := m.space.Alloc(n)
		if !ok {
			for _, off := range taken {
				m.space.Free(off)
			}
			return nil, nil, fmt.Errorf("mirror: %w for %d bytes: of %d in host memory %d are taken", transfer.ErrUnreachable, n, m.space.Size(), m.space.Used())
		}
		taken = append(taken, off)
		regions[i].Frame.Offset = m.base + m.first + off
	}
	return regions, taken, nil
}

func (m *Mirror) give(taken []uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, off := range taken {
		m.space.Free(off)
	}
}

// inTier returns the offset in the tier of a region of host memory.
func (m *Mirror) inTier(r transfer.Region) uint64 { return r.Frame.Offset - m.base }

// Source returns a source whose leased objects are readable in the mirror.
func (m *Mirror) Source(s transfer.Source) transfer.Source { return &source{m, s} }

type source struct {
	mirror *Mirror
	of     transfer.Source
}

var _ transfer.Source = (*source)(nil)

// Lease is part of transfer.Source. It waits for the copies.
func (s *source) Lease(reader transfer.Reader, refs []transfer.Ref, ttl time.Duration) []transfer.Leased {
	leased := s.of.Lease(reader, refs, ttl)
	for i := range leased {
		l := &leased[i]
		if l.Err != nil {
			continue
		}
		lease, err := s.mirror.copy(l)
		if lease == 0 && err == nil {
			continue // it is in shared memory, where its own lease protects it
		}
		// Once the object is copied, it may move or end.
		if held := s.of.Release([]transfer.LeaseID{l.Lease}); err == nil && !held[0] {
			s.Release([]transfer.LeaseID{lease})
			err = fmt.Errorf("mirror: %s: %w: its lease ran out while it was copied", l.Head.Ref, transfer.ErrNotHere)
		}
		if l.Lease = lease; err != nil {
			*l = transfer.Leased{Err: err}
		}
	}
	return leased
}

// copy replaces the regions of a leased object by copies under one of the mirror's own leases. It
// returns lease 0 if all regions are in shared host memory already.
func (m *Mirror) copy(l *transfer.Leased) (transfer.LeaseID, error) {
	away := false
	sizes := make([]uint64, len(l.Regions))
	for i, r := range l.Regions {
		sizes[i] = r.Frame.Bytes
		away = away || r.Space != m.host && r.Frame.Bytes > 0
	}
	if !away {
		return 0, nil
	}
	copies, taken, err := m.take(sizes)
	if err != nil {
		return 0, err
	}
	for i, r := range l.Regions {
		if r.Frame.Bytes == 0 {
			continue
		}
		if err := m.fetch(copies[i], r); err != nil {
			m.give(taken)
			return 0, fmt.Errorf("mirror: %s: %w", l.Head.Ref, err)
		}
	}
	l.Regions = copies
	m.mu.Lock()
	defer m.mu.Unlock()
	m.last++
	m.copies[m.last] = taken
	return m.last, nil
}

func (m *Mirror) fetch(to, from transfer.Region) error {
	if m.tier.Reaches(from.Space) {
		return m.tier.Save(m.inTier(to), from.Space, from.Frame)
	}
	if reader, ok := from.Space.(memory.Reader); ok {
		return reader.ReadInto(from.Frame.Offset, to.Bytes())
	}
	copy(to.Bytes(), from.Bytes())
	return nil
}

// Release is part of transfer.Source.
func (s *source) Release(leases []transfer.LeaseID) []bool {
	return s.each(leases, s.of.Release, func(id transfer.LeaseID) {
		for _, off := range s.mirror.copies[id] {
			s.mirror.space.Free(off)
		}
		delete(s.mirror.copies, id)
	})
}

// Renew is part of transfer.Source.
func (s *source) Renew(leases []transfer.LeaseID, ttl time.Duration) []bool {
	return s.each(leases, func(others []transfer.LeaseID) []bool { return s.of.Renew(others, ttl) }, func(transfer.LeaseID) {})
}

// each passes the leases of the source to ask, and answers for the mirror's own leases, calling
// mine for each that exists.
func (s *source) each(leases []transfer.LeaseID, ask func([]transfer.LeaseID) []bool, mine func(transfer.LeaseID)) []bool {
	held := make([]bool, len(leases))
	var others []transfer.LeaseID
	var at []int
	s.mirror.mu.Lock()
	for i, id := range leases {
		if !own(id) {
			others, at = append(others, id), append(at, i)
			continue
		}
		if _, held[i] = s.mirror.copies[id]; held[i] {
			mine(id)
		}
	}
	s.mirror.mu.Unlock()
	if len(others) > 0 {
		for k, ok := range ask(others) {
			held[at[k]] = ok
		}
	}
	return held
}

// Receiver returns a receiver whose objects are written in the mirror.
func (m *Mirror) Receiver(r transfer.Receiver) transfer.Receiver { return &receiver{m, r} }

type receiver struct {
	mirror *Mirror
	of     transfer.Receiver
}

// Create is part of transfer.Receiver.
func (r *receiver) Create(ctx context.Context, head transfer.Head) (transfer.Incoming, error) {
	regions, taken, err := r.mirror.take(head.FrameBytes)
	if err != nil {
		return nil, err
	}
	of, err := r.of.Create(ctx, head)
	if err != nil {
		r.mirror.give(taken)
		return nil, err
	}
	return &incoming{mirror: r.mirror, of: of, regions: regions, taken: taken}, nil
}

type incoming struct {
	mirror  *Mirror
	of      transfer.Incoming
	regions []transfer.Region
	taken   []uint64
}

// Regions is part of transfer.Incoming.
func (in *incoming) Regions() []transfer.Region { return in.regions }

// Commit is part of transfer.Incoming.
func (in *incoming) Commit(ctx context.Context) error {
	err := in.store()
	in.mirror.give(in.taken)
	if err != nil {
		in.of.Abort()
		return fmt.Errorf("mirror: %w", err)
	}
	return in.of.Commit(ctx)
}

func (in *incoming) store() error {
	to := in.of.Regions()
	if len(to) != len(in.regions) {
		return errors.New("another number of frames")
	}
	for i, from := range in.regions {
		if from.Frame.Bytes == 0 {
			continue
		}
		if !in.mirror.tier.Reaches(to[i].Space) {
			return errors.New("the device does not reach the object's place")
		}
		if err := in.mirror.tier.Load(in.mirror.inTier(from), to[i].Space, to[i].Frame); err != nil {
			return err
		}
	}
	return nil
}

// Abort is part of transfer.Incoming.
func (in *incoming) Abort() {
	in.mirror.give(in.taken)
	in.of.Abort()
}
