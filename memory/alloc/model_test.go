package alloc_test

import (
	"fmt"

	"github.com/millrace/millrace/memory/alloc"
)

// model is a naive allocator for the comparison with the real one: it has one owner per granule, 0
// for free.
type model struct {
	real   *alloc.Allocator
	owner  []uint32
	blocks []block // in order of allocation
	serial uint32
}

type block struct {
	off, bytes uint64
	owner      uint32
}

func newModel(granules int) (*model, error) {
	a, err := alloc.New(uint64(granules) * alloc.Granule)
	return &model{real: a, owner: make([]uint32, granules)}, err
}

// alignment returns the alignment of a request's offset.
func alignment(bytes uint64) uint64 {
	switch bytes = alloc.Rounded(bytes); {
	case bytes >= alloc.BigBytes:
		return alloc.HugeBytes
	case bytes >= alloc.PagedBytes:
		return alloc.PageBytes
	}
	return alloc.Granule
}

// fits says whether a free run can hold the request at its alignment.
func (m *model) fits(bytes uint64) bool {
	need := int(alloc.Rounded(bytes) / alloc.Granule)
	align := int(alignment(bytes) / alloc.Granule)
	run := 0
	for i, o := range m.owner {
		if o != 0 {
			run = 0
			continue
		}
		if run > 0 || i%align == 0 {
			run++
		}
		if run == need {
			return true
		}
	}
	return false
}

func (m *model) add(off, bytes uint64) error {
	m.serial++
	for g := off / alloc.Granule; g < (off+bytes)/alloc.Granule; g++ {
		if g >= uint64(len(m.owner)) || m.owner[g] != 0 {
			return fmt.Errorf("[%d, +%d) is outside or overlaps at granule %d", off, bytes, g)
		}
		m.owner[g] = m.serial
	}
	m.blocks = append(m.blocks, block{off, bytes, m.serial})
	return nil
}

func (m *model) alloc(bytes uint64) error {
	want := m.fits(bytes)
	off, ok := m.real.Alloc(bytes)
	switch {
	case ok != want:
		return fmt.Errorf("alloc of %d bytes said %v, the bitmap says %v", bytes, ok, want)
	case !ok:
		return nil
	case off%alignment(bytes) != 0:
		return fmt.Errorf("alloc of %d bytes at %d is not aligned", bytes, off)
	case m.real.Bytes(off) != alloc.Rounded(bytes):
		return fmt.Errorf("block for %d bytes says it has %d", bytes, m.real.Bytes(off))
	}
	return m.add(off, alloc.Rounded(bytes))
}

func (m *model) free(i int) {
	b := m.blocks[i]
	m.real.Free(b.off)
	for g := b.off / alloc.Granule; g < (b.off+b.bytes)/alloc.Granule; g++ {
		m.owner[g] = 0
	}
	m.blocks = append(m.blocks[:i], m.blocks[i+1:]...)
}

func (m *model) split(i int, bytes uint64) error {
	b := &m.blocks[i]
	keep := alloc.Rounded(bytes)
	rest, ok := m.real.Split(b.off, bytes)
	if ok != (keep < b.bytes) {
		return fmt.Errorf("split of %d bytes after %d said %v", b.bytes, keep, ok)
	}
	if !ok {
		return nil
	}
	if rest != b.off+keep {
		return fmt.Errorf("rest of a split at %d starts at %d", b.off+keep, rest)
	}
	tail := block{rest, b.bytes - keep, m.serial + 1}
	b.bytes = keep
	for g := tail.off / alloc.Granule; g < (tail.off+tail.bytes)/alloc.Granule; g++ {
		m.owner[g] = 0
	}
	return m.add(tail.off, tail.bytes)
}

func (m *model) claim(off, bytes uint64) error {
	lo, hi := off/alloc.Granule, (off+bytes+alloc.Granule-1)/alloc.Granule
	want := bytes > 0 && hi <= uint64(len(m.owner))
	for g := lo; want && g < hi; g++ {
		want = m.owner[g] == 0
	}
	if ok := m.real.Claim(off, bytes); ok != want {
		return fmt.Errorf("claim of [%d, +%d) said %v, the bitmap says %v", off, bytes, ok, want)
	}
	if !want {
		return nil
	}
	return m.add(lo*alloc.Granule, (hi-lo)*alloc.Granule)
}

// check compares the statistics and the free blocks with the bitmap.
func (m *model) check() error {
	if err := m.real.Check(); err != nil {
		return err
	}
	var want alloc.Stats
	want.Size = uint64(len(m.owner)) * alloc.Granule
	want.Blocks = len(m.blocks)
	runs := map[uint64]uint64{}
	run := uint64(0)
	for i, o := range append(m.owner[:len(m.owner):len(m.owner)], 1) {
		if o == 0 {
			run++
			continue
		}
		if run > 0 {
			runs[(uint64(i)-run)*alloc.Granule] = run * alloc.Granule
			want.FreeBlocks++
			want.Free += run * alloc.Granule
			want.LargestFree = max(want.LargestFree, run*alloc.Granule)
		}
		run = 0
	}
	want.Used = want.Size - want.Free
	if got := m.real.Stats(); got != want {
		return fmt.Errorf("statistics are %+v, the bitmap says %+v", got, want)
	}
	const least = 3 * alloc.Granule
	seen := 0
	for off, bytes := range m.real.FreeBlocks(least) {
		if runs[off] != bytes || bytes < least {
			return fmt.Errorf("free block [%d, +%d) is not a free run of the bitmap", off, bytes)
		}
		seen++
	}
	for _, bytes := range runs {
		if bytes >= least {
			seen--
		}
	}
	if seen != 0 {
		return fmt.Errorf("free blocks listed: %d more than the bitmap has", seen)
	}
	return nil
}
