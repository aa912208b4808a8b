package ipc

import (
	"embed"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/millrace/millrace/memory/cuda"
)

// The kernels, as kernel/build.py makes them of kernel/gather.cu.
//
//go:embed kernel/gather.sm_*.cubin kernel/gather.compute_80.ptx
var cubins embed.FS

const (
	// threads a block has: four loads of 16 bytes each under way in each of them fill
	// the link.
	threads = 512
	// A row is what a block copies in one go: at least minRow, so that few bytes keep
	// many blocks busy, at most maxRow, so that tables stay short.
	minRow = 16 << 10
	maxRow = 64 << 10
	// rowBytes is the size of a row, here as in the kernel.
	rowBytes = uint64(unsafe.Sizeof(row{}))
	// tableRows bounds the frames and pieces of one post, tableRoom is what a table
	// has room for: cut finer than maxRow it has minRows more.
	tableRows = 4096
	tableRoom = tableRows + 1024
	// blocksPerProcessor is what fits at once.
	blocksPerProcessor = 4
	// markedBytes is up to which size a gather writes a word when it is through: nobody sleeps
	// before what is over so soon.
	markedBytes = firstBytes
	// markBytes keeps those words, and what blocks count, on lines of their own.
	markBytes = 64
)

// gather copies many frames by one kernel.
type gather struct {
	device   *cuda.Device
	module   *cuda.Module
	function *cuda.Function
	// tables are in its host part, one for each slot, and behind them the words that kernels
	// write; what their blocks count is in its device part.
	tables *cuda.Scratch
	// numbers are what was written last, by slot; each is that of whoever has the slot.
	numbers    []uint64
	blocks     uint32
	computeCap uint32
	computing  func() bool
	mu         sync.Mutex // guards free
	free       []int
	// launches are counted for tests and figures.
	launches atomic.Uint64
}

// newGather loads the kernel. One table is for each post that can be under way.
func newGather(d *cuda.Device, slots int, computeBlocks uint32, computing func() bool) (*gather, error) {
	a := d.Info().Attributes
	code, err := cubinFor(a.ComputeMajor, a.ComputeMinor)
	if err != nil {
		return nil, err
	}
	g := &gather{device: d, blocks: uint32(max(a.Multiprocessors, 1) * blocksPerProcessor), computeCap: computeBlocks, computing: computing}
	if err := g.load(code, slots); err != nil {
		return nil, errors.Join(err, g.close())
	}
	return g, nil
}

// cubinFor returns the code for an architecture: that of the same major version and
// the highest minor version that is not above it, else PTX, which the driver translates.
func cubinFor(major, minor int) ([]byte, error) {
	for m := minor; m >= 0; m-- {
		if code, err := cubins.ReadFile(fmt.Sprintf("kernel/gather.sm_%d%d.cubin", major, m)); err == nil {
			return code, nil
		}
	}
	if major >= 8 {
		return cubins.ReadFile("kernel/gather.compute_80.ptx")
	}
	return nil, fmt.Errorf("there is no gather kernel for devices of compute capability %d.%d; kernel/build.py makes them", major, minor)
}

func (g *gather) load(code []byte, slots int) (err error) {
	if g.module, err = g.device.Load(code); err != nil {
		return err
	}
	if g.function, err = g.module.Function("millrace_gather"); err != nil {
		return err
	}
	counters := uint64(slots) * markBytes
	if g.tables, err = g.device.NewScratch(counters, uint64(slots)*(tableRoom*rowBytes+markBytes)); err != nil {
		return err
	}
	s := g.device.Stream(cuda.In)
	if err := errors.Join(s.Memset(g.tables.Pointer(0, counters), 0, counters), s.Sync()); err != nil {
		return err
	}
	g.numbers = make([]uint64, slots)
	for i := range slots {
		g.free = append(g.free, i)
	}
	return nil
}

// take returns a slot, -1 if there is none.
func (g *gather) take() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := len(g.free)
	if n == 0 {
		return -1
	}
	slot := g.free[n-1]
	g.free = g.free[:n-1]
	return slot
}

func (g *gather) full() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.free) == 0
}

func (g *gather) give(slot int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.free = append(g.free, slot)
}

// table is one as the kernel reads it, in memory of the host.
func (g *gather) table(slot int) (rows []row, at uint64) {
	at = uint64(slot) * tableRoom * rowBytes
	return unsafe.Slice((*row)(unsafe.Pointer(&g.tables.Host()[at])), tableRoom), at
}

// launch submits a post, whose slot is its own.
func (g *gather) launch(s *cuda.Stream, p *post) error {
	blocks := g.blocks
	if g.computeCap > 0 && g.computing != nil && g.computing() {
		blocks = min(blocks, g.computeCap)
	}
	cut := min(max((p.bytes/uint64(blocks)+minRow-1)/minRow*minRow, minRow), maxRow)
	table, at := g.table(p.slot)
	rows := 0
	for i := range p.pieces {
		for _, r := range p.pieces[i].rows {
			for ; r.bytes > cut; r.to, r.from, r.bytes = r.to+cut, r.from+cut, r.bytes-cut {
				table[rows] = row{r.to, r.from, cut}
				rows++
			}
			table[rows] = r
			rows++
		}
	}
	g.launches.Add(1)
	m := p.event.(*marker)
	var parameters [parameterBytes]byte
	binary.LittleEndian.PutUint64(parameters[:], g.tables.Mapped(at))
	binary.LittleEndian.PutUint32(parameters[8:], uint32(rows))
	after := m.event
	m.recorded()
	if p.bytes <= markedBytes {
		after = nil
		g.numbers[p.slot]++
		word, mapped := g.word(p.slot)
		binary.LittleEndian.PutUint64(parameters[16:], g.tables.Pointer(uint64(p.slot)*markBytes, markBytes))
		binary.LittleEndian.PutUint64(parameters[24:], mapped)
		binary.LittleEndian.PutUint64(parameters[32:], g.numbers[p.slot])
		m.expect(word, g.numbers[p.slot])
	}
	m.batch.Reset()
	m.batch.Launch(cuda.Launch{Function: g.function, Grid: cuda.Dim{min(uint32(rows), blocks)}, Block: cuda.Dim{threads}, Parameters: parameters[:]})
	err := s.Submit(&m.batch, after)
	if err != nil {
		m.recorded()
	}
	return err
}

// parameterBytes is the size of the kernel's parameters: the table and how many rows it has, and,
// all 0 if nothing is to be written, what blocks count, the word and its number.
const parameterBytes = 40

// word is what the kernel of a slot writes, here and for the kernel.
func (g *gather) word(slot int) (word *uint64, mapped uint64) {
	at := uint64(len(g.numbers))*tableRoom*rowBytes + uint64(slot)*markBytes
	return (*uint64)(unsafe.Pointer(&g.tables.Host()[at])), g.tables.Mapped(at)
}

// close frees what the kernel needs. REQUIRES: it does not run.
func (g *gather) close() error {
	var errs []error
	if g.tables != nil {
		errs = append(errs, g.tables.Close())
	}
	if g.module != nil {
		errs = append(errs, g.module.Close())
	}
	return errors.Join(errs...)
}
