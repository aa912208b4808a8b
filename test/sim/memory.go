package sim

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/millrace/millrace/memory"
)

// wordBytes is the size of the part of a frame that the simulation keeps: each frame is full of
// copies of one word.
const wordBytes = 8

// garbage is the content of memory that belongs to nobody.
const garbage = 0xdeadbeef

var (
	errSpill  = errors.New("simulated failure of the disk")
	errBroken = fmt.Errorf("simulated damage: %w", memory.ErrChecksum)
)

// contents are the ranges of a memory that were written and not written over since, in order.
type contents struct{ pieces []piece }

type piece struct {
	frame memory.Frame
	word  uint64
}

func (c *contents) write(f memory.Frame, word uint64) {
	first, _ := slices.BinarySearchFunc(c.pieces, f.Offset, func(p piece, offset uint64) int {
		if p.frame.End() <= offset {
			return -1
		}
		return 1
	})
	last := first
	for last < len(c.pieces) && c.pieces[last].frame.Offset < f.End() {
		last++
	}
	c.pieces = slices.Replace(c.pieces, first, last, piece{f, word})
}

// read returns the word of a frame; ok is false if it is not what was written there last.
func (c *contents) read(f memory.Frame) (word uint64, ok bool) {
	i, ok := slices.BinarySearchFunc(c.pieces, f.Offset, func(p piece, offset uint64) int {
		switch {
		case p.frame.Offset < offset:
			return -1
		case p.frame.Offset > offset:
			return 1
		}
		return 0
	})
	if !ok || c.pieces[i].frame.Bytes != f.Bytes {
		return garbage, false
	}
	return c.pieces[i].word, true
}

// words is a space whose frames can be read.
type words interface {
	memory.Space
	word(f memory.Frame) (uint64, bool)
}

// slab is the memory of a worker. The processor cannot address it.
type slab struct {
	size uint64
	contents
}

var _ memory.Staged = (*slab)(nil)

// Size is part of memory.Space.
func (s *slab) Size() uint64 { return s.size }

// Identity is part of memory.Space.
func (*slab) Identity() memory.Identity { return memory.Identity{} }

// Bytes is part of memory.Space.
func (*slab) Bytes(uint64, uint64) []byte { return nil }

// FD is part of memory.Space: other processes can map the slab.
func (*slab) FD() int { return 1 }

// ReadInto is part of memory.Reader.
func (s *slab) ReadInto(off uint64, p []byte) error { return readInto(s, off, p) }

// WriteFrom is part of memory.Staged.
func (s *slab) WriteFrom(off uint64, p []byte) error {
	s.write(memory.Frame{Offset: off, Bytes: uint64(len(p))}, binary.LittleEndian.Uint64(p))
	return nil
}

// Buffer is part of memory.Staged.
func (*slab) Buffer() (memory.Buffer, error) { panic("sim: a buffer is asked for") }

// TryBuffer is part of memory.Staged.
func (*slab) TryBuffer() (memory.Buffer, error) { panic("sim: a buffer is asked for") }

func (s *slab) word(f memory.Frame) (uint64, bool) { return s.read(f) }

func readInto(from words, off uint64, p []byte) error {
	word, _ := from.word(memory.Frame{Offset: off, Bytes: uint64(len(p))})
	for i := 0; i+wordBytes <= len(p); i += len(p) { // one word stands for all
		binary.LittleEndian.PutUint64(p[i:], word)
	}
	return nil
}

// tier is the disk of a worker. Its bytes can be read in place, in space.
type tier struct {
	p     *process
	size  uint64
	space tierSpace
}

var _ memory.DirectTier = (*tier)(nil)

// tierSpace is the memory in which a tier lies.
type tierSpace struct {
	p    *process
	size uint64
	contents
}

var _ memory.Reader = (*tierSpace)(nil)

// Size is part of memory.Space.
func (s *tierSpace) Size() uint64 { return s.size }

// Identity is part of memory.Space.
func (*tierSpace) Identity() memory.Identity { return memory.Identity{} }

// Bytes is part of memory.Space.
func (*tierSpace) Bytes(uint64, uint64) []byte { return nil }

// FD is part of memory.Space.
func (*tierSpace) FD() int { return -1 }

// ReadInto is part of memory.Reader.
func (s *tierSpace) ReadInto(off uint64, p []byte) error {
	if !s.p.sleep(s.p.w.diskTime(uint64(len(p)))) {
		return errEnded
	}
	return readInto(s, off, p)
}

func (s *tierSpace) word(f memory.Frame) (uint64, bool) { return s.read(f) }

// Name is part of memory.Tier.
func (*tier) Name() string { return "disk" }

// Size is part of memory.Tier.
func (t *tier) Size() uint64 { return t.size }

// UnitBytes is part of memory.Tier.
func (*tier) UnitBytes() uint64 { return 4 << 10 }

// DiscardBytes is part of memory.Tier.
func (*tier) DiscardBytes() uint64 { return 64 << 10 }

// ReadInto is part of memory.Reader.
func (t *tier) ReadInto(off uint64, p []byte) error { return t.space.ReadInto(off, p) }

// Write is part of memory.Tier.
func (*tier) Write(uint64, []byte) (uint32, error) { panic("sim: a tier is written to") }

// Read is part of memory.Tier.
func (*tier) Read(uint64, []byte, uint32) error { panic("sim: a tier is read") }

// Discard is part of memory.Tier.
func (t *tier) Discard(off, _ uint64) error {
	if !t.p.arrive(turnDiscard, off) {
		return errEnded
	}
	return nil
}

// Reaches is part of memory.DirectTier.
func (*tier) Reaches(memory.Space) bool { return true }

// Host is part of memory.DirectTier.
func (t *tier) Host() (memory.Space, uint64) { return &t.space, 0 }

// Gather is part of memory.DirectTier.
func (*tier) Gather(uint64, memory.Space, []memory.Piece) error { panic("sim: a tier gathers") }

// Save is part of memory.DirectTier.
func (t *tier) Save(off uint64, _ memory.Space, f memory.Frame) error {
	p, w := t.p, t.p.w
	if !p.arrive(turnSave, off) || !p.sleep(w.diskTime(f.Bytes)) {
		return errEnded
	}
	w.counts.spilled++
	if w.fault(w.plan.spillFails) {
		w.log("%s cannot write to its disk", p.host.name)
		return errSpill
	}
	word, ok := p.slab.read(f)
	if !ok {
		w.fail(nil, "worker %s spills bytes at %d that are not there", p.host.name, f.Offset)
	}
	t.space.write(memory.Frame{Offset: off, Bytes: f.Bytes}, word)
	return nil
}

// Load is part of memory.DirectTier.
func (t *tier) Load(off uint64, _ memory.Space, f memory.Frame) error {
	p, w := t.p, t.p.w
	if !p.arrive(turnLoad, off) || !p.sleep(w.diskTime(f.Bytes)) {
		return errEnded
	}
	w.counts.loaded++
	if w.fault(w.plan.spillFails) {
		w.log("%s cannot read what it wrote to its disk", p.host.name)
		w.mayLoseAny = true
		return errBroken
	}
	word, ok := t.space.read(memory.Frame{Offset: off, Bytes: f.Bytes})
	if !ok {
		w.fail(nil, "worker %s loads bytes at %d that are not on its disk", p.host.name, off)
	}
	p.slab.write(f, word)
	return nil
}

// diskTime is how long a disk takes.
func (w *world) diskTime(bytes uint64) time.Duration {
	if w.fault(w.plan.slowDisk) {
		w.counts.slow++
		return w.between(10*time.Millisecond, 4*time.Second)
	}
	return w.between(50*time.Microsecond, time.Millisecond) + time.Duration(bytes)
}
