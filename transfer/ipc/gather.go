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

// The kernels, as kernel/build.py makes them from kernel/gather.cu.
//
//go:embed kernel/gather.sm_*.cubin kernel/gather.compute_80.ptx
var cubins embed.FS

const (
	// threads is the size of a block. With the two loads of 16 bytes that each thread has
	// outstanding (flight in gather.cu), the blocks saturate the link.
	threads = 512
	// A block copies one row at a time. Longer ranges are cut into rows of minRow to maxRow bytes:
	// into short ones if there are few bytes, so that these still occupy many blocks, and otherwise
	// into long ones, so that tables stay short.
	minRow = 16 << 10
	maxRow = 64 << 10
	// rowBytes is the size of a row, the same as in the kernel.
	rowBytes = uint64(unsafe.Sizeof(row{}))
	// tableRows bounds the rows of one post, counted at maxRow bytes each. tableRoom is the
	// capacity of a table: rows shorter than maxRow make more of them.
	tableRows = 4096
	tableRoom = tableRows + 1024
	// blocksPerProcessor is the number of blocks that a multiprocessor runs at once.
	blocksPerProcessor = 4
	// markedBytes is the largest gather that signals its end by writing a word. Waiters spin for so
	// short a gather and do not sleep.
	markedBytes = firstBytes
	// markBytes separates those words, and the block counters, by a cache line each.
	markBytes = 64
)

// gather copies many frames by one kernel launch.
type gather struct {
	device   *cuda.Device
	module   *cuda.Module
	function *cuda.Function
	// The host part of tables has a table for each slot, and behind them the words that the kernels
	// write. The device part has the block counters.
	tables *cuda.Scratch
	// numbers are the numbers last written, by slot. The holder of a slot owns its number.
	numbers    []uint64
	blocks     uint32
	computeCap uint32
	computing  func() bool
	mu         sync.Mutex // guards free
	free       []int
	// launches is a counter for tests and measurements.
	launches atomic.Uint64
}

// newGather loads the kernel. Each concurrent post needs a slot with a table.
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

// cubinFor returns the code for an architecture: the cubin with the same major version and the
// highest minor version that is not above minor, otherwise PTX, which the driver compiles.
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

// copyBytes is what the gather kernel reads in the time that each further copy takes the copy
// engine: 3.3 µs, at 300 GB/s. A gather begins about twice that time later than a first copy.
// Measured on H200s over NVLink.
const copyBytes = 1 << 20

// gathers reports whether small frames go by the gather kernel or by the copy engine. It is a fixed
// rule. If measured rates decided, a method that was slow once, because of other work on the GPU,
// would not be chosen again, and so would never be measured again.
func gathers(copies int, bytes uint64) bool {
	return copies > 1 && bytes+2*copyBytes < uint64(copies-1)*copyBytes
}

// take returns a free slot, or -1.
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

func (g *gather) give(slot int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.free = append(g.free, slot)
}

// table returns the table of a slot, in host memory that the kernel reads, and its offset.
func (g *gather) table(slot int) (rows []row, at uint64) {
	at = uint64(slot) * tableRoom * rowBytes
	return unsafe.Slice((*row)(unsafe.Pointer(&g.tables.Host()[at])), tableRoom), at
}

// launch submits a post, which owns its slot.
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

// parameterBytes is the size of the kernel's parameters: the table, the number of rows, and, all 0
// if no word is to be written, the block counter, the address of the word and its number.
const parameterBytes = 40

// word returns the word that the kernel of a slot writes: for this process, and its device address.
func (g *gather) word(slot int) (word *uint64, mapped uint64) {
	at := uint64(len(g.numbers))*tableRoom*rowBytes + uint64(slot)*markBytes
	return (*uint64)(unsafe.Pointer(&g.tables.Host()[at])), g.tables.Mapped(at)
}

// close frees the kernel's resources. REQUIRES: no gather runs.
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
