package store

import (
	"fmt"
	"sync"
	"time"

	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/ledger"
	"github.com/millrace/millrace/transfer"
)

// movers is the number of goroutines that move bytes in each direction: enough to keep a disk busy
// while checksums are computed.
const movers = 4

// The directions. Each has its own queue: reads, which others wait for, must not queue behind
// writes, which make room.
const (
	reads = iota
	writes
)

// order is a ledger.ReadIn, WriteOut or Discard.
type order = ledger.Effect

// mover carries out the orders of the ledger. Its fields are guarded by Store.mu.
type mover struct {
	queues  [2][]order
	running [2]int
}

// move queues an order. REQUIRES: mu is held.
func (s *Store) move(direction int, e order) {
	if s.closed {
		return
	}
	s.mover.queues[direction] = append(s.mover.queues[direction], e)
	if s.mover.running[direction] < movers {
		s.mover.running[direction]++
		s.working.Add(1)
		go s.carry(direction)
	}
}

// carry carries out orders until the queue is empty.
func (s *Store) carry(direction int) {
	defer s.working.Done()
	s.mu.Lock()
	for len(s.mover.queues[direction]) > 0 {
		queue := s.mover.queues[direction]
		e := queue[0]
		queue[0] = nil
		s.mover.queues[direction] = queue[1:]
		s.mu.Unlock()
		report := s.carryOut(e)
		s.mu.Lock()
		calls := s.apply(report())
		s.mu.Unlock()
		run(calls)
		s.mu.Lock()
	}
	s.mover.queues[direction] = nil
	s.mover.running[direction]--
	s.mu.Unlock()
}

// carryOut moves bytes. It returns the function that reports the outcome to the ledger.
func (s *Store) carryOut(e order) (report func() []ledger.Effect) {
	switch e := e.(type) {
	case ledger.WriteOut:
		sum, err := s.write(e)
		return func() []ledger.Effect { return s.ledger.WriteEnded(time.Now(), e.Ticket, sum, err) }
	case ledger.ReadIn:
		err := s.read(e)
		return func() []ledger.Effect { return s.ledger.ReadEnded(e.Ticket, err) }
	case ledger.Discard:
		if err := s.below[e.Region.Tier-1].Discard(e.Region.Offset, e.Region.Bytes); err != nil {
			s.log.Warn("spilled bytes that nobody needs stay on disk", "error", err)
		}
		return func() []ledger.Effect { return s.ledger.Discarded(e.Ticket) }
	}
	panic(fmt.Sprintf("store: an order of type %T", e))
}

// write moves bytes to a lower tier, by the fastest way that both places support.
func (s *Store) write(e ledger.WriteOut) (sum uint32, err error) {
	to := s.below[e.To.Tier-1]
	if e.From.Tier > 0 {
		host, base, ok := hostOf(s.below[e.From.Tier-1])
		if !ok {
			return 0, fmt.Errorf("store: bytes do not go from %s to %s", s.below[e.From.Tier-1].Name(), to.Name())
		}
		return to.Write(e.To.Offset, host.Bytes(base+e.From.Offset, e.From.Bytes))
	}
	if direct, ok := to.(memory.DirectTier); ok && direct.Reaches(s.space) {
		return 0, direct.Save(e.To.Offset, s.space, e.From.Frame)
	}
	if staged, ok := s.space.(memory.Staged); ok {
		return writeStaged(to, e.To.Offset, staged, e.From.Frame)
	}
	return to.Write(e.To.Offset, s.space.Bytes(e.From.Offset, e.From.Bytes))
}

// read moves bytes up into the slab.
func (s *Store) read(e ledger.ReadIn) error {
	from := s.below[e.From.Tier-1]
	if direct, ok := from.(memory.DirectTier); ok && direct.Reaches(s.space) {
		return direct.Load(e.From.Offset, s.space, e.To.Frame)
	}
	if staged, ok := s.space.(memory.Staged); ok {
		err := readStaged(from, e.From.Offset, staged, e.To.Frame, e.Sum)
		if err != nil {
			// Try again, as tiers do themselves: the error may have been transient.
			err = readStaged(from, e.From.Offset, staged, e.To.Frame, e.Sum)
		}
		return err
	}
	return from.Read(e.From.Offset, s.space.Bytes(e.To.Offset, e.To.Bytes), e.Sum)
}

// hostOf returns the place of a tier's bytes in host memory, if the processor can address them.
func hostOf(t memory.Tier) (s memory.Space, base uint64, ok bool) {
	direct, ok := t.(memory.DirectTier)
	if !ok {
		return nil, 0, false
	}
	s, base = direct.Host()
	return s, base, true
}

// writeStaged writes bytes that the processor cannot address to a tier. The next part is copied out
// of the device while one is written.
func writeStaged(to memory.Tier, off uint64, from memory.Staged, f memory.Frame) (sum uint32, err error) {
	out := memory.NewOutflow(from, []memory.Frame{f}, memory.StageBytes)
	defer out.Close()
	for {
		c, more, err := out.Next()
		if err != nil || !more {
			return sum, err
		}
		if _, err := to.Write(off+c.Offset, c.Data); err != nil {
			return 0, err
		}
		sum = memory.Checksum(sum, c.Data)
	}
}

// readStaged is the reverse of writeStaged. It also verifies the checksum.
func readStaged(from memory.Tier, off uint64, to memory.Staged, f memory.Frame, want uint32) error {
	in := memory.NewInflow(to)
	defer in.Close()
	var sum uint32
	for done := uint64(0); done < f.Bytes; {
		part, err := in.Room(f.Offset+done, f.Bytes-done)
		if err != nil {
			return err
		}
		if err := from.ReadInto(off+done, part); err != nil {
			return err
		}
		sum = memory.Checksum(sum, part)
		done += uint64(len(part))
	}
	if err := in.Flush(); err != nil {
		return err
	}
	if sum != want {
		return fmt.Errorf("store: %d bytes at %d of %s: %w: %08x, written as %08x", f.Bytes, off, from.Name(), memory.ErrChecksum, sum, want)
	}
	return nil
}

func (s *Store) tierFailed(e ledger.TierFailed) {
	name := s.below[e.Tier-1].Name()
	if e.Err == nil {
		s.log.Info("spilling works again", "tier", name)
		return
	}
	s.log.Error("spilling failed; results stay in memory meanwhile", "tier", name, "retry", e.Retry, "error", e.Err,
		"remedy", "free space below --local-directory or choose another one")
}

// Lose gives up an object that a reader has found to be broken.
func (s *Store) Lose(id ledger.ObjectID, err error) {
	s.mu.Lock()
	calls := s.apply(s.ledger.Lose(id, err))
	s.mu.Unlock()
	run(calls)
}

// spilled returns the places of the frames of a leased object of which some are in a tier below the
// slab. REQUIRES: mu is held.
func (s *Store) spilled(id ledger.ObjectID) []transfer.Region {
	copies, _ := s.ledger.Copies(id)
	regions := make([]transfer.Region, len(copies))
	for i, c := range copies {
		regions[i] = transfer.Region{Space: s.space, Frame: c.Frame}
		if c.Tier == 0 {
			continue
		}
		if host, base, ok := hostOf(s.below[c.Tier-1]); ok {
			// Readers read these bytes in place, in the tier.
			regions[i] = transfer.Region{Space: host, Frame: memory.Frame{Offset: base + c.Offset, Bytes: c.Bytes}}
		} else {
			regions[i].Space = &spilled{
				Space: s.space, tier: s.below[c.Tier-1], whole: c.Whole, sum: c.Sum, next: c.Whole.Offset,
				broken: func(err error) { s.Lose(id, err) },
			}
		}
	}
	return regions
}

// spilled is a spilled part of a tier, as a space that can only be read with ReadInto. If it is
// read in the order of offsets, the last byte is not returned before the checksum is verified.
type spilled struct {
	memory.Space
	tier  memory.Tier
	whole memory.Frame
	sum   uint32
	// broken is called if the bytes cannot be read, or are not the bytes that were written.
	broken func(error)

	mu sync.Mutex
	// is is the checksum of the bytes up to next. Both are guarded by mu.
	next uint64
	is   uint32
}

var _ memory.Reader = (*spilled)(nil)

// Bytes is part of memory.Space.
func (*spilled) Bytes(uint64, uint64) []byte { return nil }

// FD is part of memory.Space.
func (*spilled) FD() int { return -1 }

// Size is part of memory.Space.
func (p *spilled) Size() uint64 { return p.tier.Size() }

// ReadInto is part of memory.Reader.
func (p *spilled) ReadInto(off uint64, to []byte) error {
	err := p.readInto(off, to)
	if err != nil {
		p.broken(err)
	}
	return err
}

func (p *spilled) readInto(off uint64, to []byte) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if off != p.next {
		// The read is out of order or repeated: the rest is read first, to verify the checksum.
		if err := p.check(); err != nil {
			return err
		}
		return p.tier.ReadInto(off, to)
	}
	if err := p.tier.ReadInto(off, to); err != nil {
		return err
	}
	p.is = memory.Checksum(p.is, to)
	p.next += uint64(len(to))
	return p.verdict()
}

func (p *spilled) verdict() error {
	if p.next == p.whole.End() && p.is != p.sum {
		return fmt.Errorf("store: %d bytes at %d of %s: %w: %08x, written as %08x", p.whole.Bytes, p.whole.Offset, p.tier.Name(), memory.ErrChecksum, p.is, p.sum)
	}
	return nil
}

// check reads the rest, only to verify the checksum.
func (p *spilled) check() error {
	if p.next == p.whole.End() {
		return p.verdict()
	}
	buffer := make([]byte, min(1<<20, p.whole.End()-p.next))
	for p.next < p.whole.End() {
		part := buffer[:min(uint64(len(buffer)), p.whole.End()-p.next)]
		if err := p.tier.ReadInto(p.next, part); err != nil {
			return err
		}
		p.is = memory.Checksum(p.is, part)
		p.next += uint64(len(part))
	}
	return p.verdict()
}
