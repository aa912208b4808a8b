package cuda

import (
	"embed"
	"encoding/binary"
	"errors"
	"fmt"
	"unsafe"
)

// The kernels, as kernel/build.py makes them from kernel/gather.cu.
//
//go:embed kernel/gather.sm_*.cubin kernel/gather.compute_80.ptx
var cubins embed.FS

// GatherRow is the largest number of bytes of one row of a gather's table. A block copies one row
// at a time, so longer ranges are cut into rows of gatherShort to GatherRow bytes: into short ones
// if there are few bytes, so that these still occupy many blocks, and otherwise into long ones, so
// that tables stay short.
const GatherRow = 64 << 10

const (
	// gatherShort is the size of the shortest rows in bytes; see GatherRow.
	gatherShort = 16 << 10
	// gatherThreads is the size of a block. With the two loads of 16 bytes that each thread has
	// outstanding (flight in gather.cu), the blocks saturate the link.
	gatherThreads = 512
	// gatherBlocks is the number of blocks that a multiprocessor runs at once.
	gatherBlocks = 4
	// rowBytes is the size of a row, the same as in the kernel.
	rowBytes = uint64(unsafe.Sizeof(Row{}))
	// markBytes separates the words that the kernels write, and the block counters, by a cache line
	// each.
	markBytes = 64
	// gatherParameters is the size of the kernel's parameters: the table, the number of rows, and,
	// all 0 if no word is to be written, the block counter, the address of the word and its number.
	gatherParameters = 40
)

// Row is a range that a gather copies: device addresses, or addresses of pinned memory for kernels.
// The struct has the layout of row in gather.cu.
type Row struct{ To, From, Bytes uint64 }

// Gather copies many ranges by one launch of a kernel. Its methods may be called from any
// goroutine.
type Gather struct {
	module   *Module
	function *Function
	// The host part of memory has the tables, and behind them the words that the kernels write. The
	// device part has the block counters.
	memory *Scratch
	// numbers are the numbers last written, by table. The user of a table owns its number.
	numbers []uint64
	// room is the number of rows of a table.
	room   uint64
	blocks uint32
}

// NewGather loads the kernel. Each launch uses one of the tables until it is over. A table has room
// for ranges whose number, plus 1 for each GatherRow of their bytes, is at most rows.
func (d *Device) NewGather(tables, rows int) (*Gather, error) {
	a := d.info.Attributes
	code, err := cubinFor(a.ComputeMajor, a.ComputeMinor)
	if err != nil {
		return nil, err
	}
	g := &Gather{blocks: uint32(max(a.Multiprocessors, 1) * gatherBlocks), numbers: make([]uint64, tables)}
	// Ranges are cut into rows that are shorter than GatherRow only as long as there are fewer rows
	// than blocks.
	g.room = uint64(rows) + uint64(g.blocks)
	if err := g.load(d, code); err != nil {
		return nil, errors.Join(err, g.Close())
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

func (g *Gather) load(d *Device, code []byte) (err error) {
	if g.module, err = d.Load(code); err != nil {
		return err
	}
	if g.function, err = g.module.Function("millrace_gather"); err != nil {
		return err
	}
	tables := uint64(len(g.numbers))
	counters := tables * markBytes
	if g.memory, err = d.NewScratch(counters, tables*(g.room*rowBytes+markBytes)); err != nil {
		return err
	}
	s := d.Stream(In)
	return errors.Join(s.Memset(g.memory.Pointer(0, counters), 0, counters), s.Sync())
}

// GatherPays says whether a gather of the given bytes takes less time than copies by the copy
// engine. perCopy is what the kernel moves in the time that each further copy takes the engine,
// 3.3 µs. A gather begins about twice that time later than a first copy (measured on H200s). It is
// a fixed rule. If measured rates decided, a method that was slow once, because of other work on
// the GPU, would not be chosen again, and so would never be measured again.
func GatherPays(copies int, bytes, perCopy uint64) bool {
	return copies > 1 && bytes+2*perCopy < uint64(copies-1)*perCopy
}

// Blocks returns the number of blocks that occupy the whole device.
func (g *Gather) Blocks() uint32 { return g.blocks }

// GatherTable lists what one launch copies. It is valid until the next Table with the same index.
type GatherTable struct {
	gather *Gather
	index  int
	blocks uint32
	// Longer ranges are cut into rows of cut bytes.
	cut uint64
	// table is the memory that the kernel reads. Its first rows are in use.
	table []Row
	rows  int
}

// Table begins a table for ranges of bytes in all, which at most the given number of blocks copy.
// REQUIRES: no launch with this table is under way.
func (g *Gather) Table(index int, bytes uint64, blocks uint32) GatherTable {
	blocks = min(max(blocks, 1), g.blocks)
	cut := (bytes/uint64(blocks) + gatherShort - 1) / gatherShort * gatherShort
	return GatherTable{gather: g, index: index, blocks: blocks, cut: min(max(cut, gatherShort), GatherRow), table: g.table(index)}
}

// Add adds ranges to a table.
// REQUIRES: the table has room for them, see NewGather.
func (t *GatherTable) Add(ranges ...Row) {
	table, n := t.table, t.rows
	for _, r := range ranges {
		for ; r.Bytes > t.cut; r.To, r.From, r.Bytes = r.To+t.cut, r.From+t.cut, r.Bytes-t.cut {
			table[n] = Row{r.To, r.From, t.cut}
			n++
		}
		table[n] = r
		n++
	}
	t.rows = n
}

// table returns the memory of a table.
func (g *Gather) table(index int) []Row {
	return unsafe.Slice((*Row)(unsafe.Pointer(&g.memory.Host()[g.tableAt(index)])), g.room)
}

// tableAt returns the offset of a table in the pinned memory.
func (g *Gather) tableAt(index int) uint64 { return uint64(index) * g.room * rowBytes }

// Launch fills a batch with the launch alone. If mark is set, the kernel writes number to word when
// it has copied everything. Both are 0 otherwise.
func (t *GatherTable) Launch(b *Batch, mark bool) (word *uint64, number uint64) {
	g := t.gather
	var parameters [gatherParameters]byte
	binary.LittleEndian.PutUint64(parameters[:], g.memory.Mapped(g.tableAt(t.index)))
	binary.LittleEndian.PutUint32(parameters[8:], uint32(t.rows))
	if mark {
		g.numbers[t.index]++
		number = g.numbers[t.index]
		at := g.tableAt(len(g.numbers)) + uint64(t.index)*markBytes
		word = (*uint64)(unsafe.Pointer(&g.memory.Host()[at]))
		binary.LittleEndian.PutUint64(parameters[16:], g.memory.Pointer(uint64(t.index)*markBytes, markBytes))
		binary.LittleEndian.PutUint64(parameters[24:], g.memory.Mapped(at))
		binary.LittleEndian.PutUint64(parameters[32:], number)
	}
	b.Reset()
	b.Launch(Launch{Function: g.function, Grid: Dim{min(uint32(t.rows), t.blocks)}, Block: Dim{gatherThreads}, Parameters: parameters[:]})
	return word, number
}

// Close frees the kernel's resources.
// REQUIRES: no gather is under way.
func (g *Gather) Close() error {
	errs := []error{g.memory.Close()}
	if g.module != nil {
		errs = append(errs, g.module.Close())
	}
	return errors.Join(errs...)
}
