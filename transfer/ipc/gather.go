package ipc

import (
	"sync"

	"github.com/millrace/millrace/memory/cuda"
)

const (
	// tableRows bounds the rows of one post, counted at cuda.GatherRow bytes each.
	tableRows = 4096
	// markedBytes is the largest gather that signals its end by writing a word. Waiters spin for so
	// short a gather and do not sleep.
	markedBytes = firstBytes
	// copyBytes is what the gather kernel reads in the time that each further copy takes the copy
	// engine, at 300 GB/s. Measured on H200s over NVLink.
	copyBytes = 1 << 20
)

// gather copies many frames by one kernel launch.
type gather struct {
	*cuda.Gather
	computeCap uint32
	computing  func() bool
	mu         sync.Mutex // guards free
	// free are the tables that no post uses.
	free []int
}

// newGather loads the kernel. Each concurrent post needs a slot with a table.
func newGather(d *cuda.Device, slots int, computeBlocks uint32, computing func() bool) (*gather, error) {
	kernel, err := d.NewGather(slots, tableRows)
	if err != nil {
		return nil, err
	}
	g := &gather{Gather: kernel, computeCap: computeBlocks, computing: computing}
	for i := range slots {
		g.free = append(g.free, i)
	}
	return g, nil
}

// gathers reports whether small frames go by the gather kernel or by the copy engine.
func gathers(copies int, bytes uint64) bool { return cuda.GatherPays(copies, bytes, copyBytes) }

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

// launch submits a post, which owns its slot.
func (g *gather) launch(s *cuda.Stream, p *post) error {
	blocks := g.Blocks()
	if g.computeCap > 0 && g.computing != nil && g.computing() {
		blocks = min(blocks, g.computeCap)
	}
	table := g.Table(p.slot, p.bytes, blocks)
	for i := range p.pieces {
		table.Add(p.pieces[i].rows...)
	}
	m := p.event.(*marker)
	after := m.event
	m.recorded()
	if word, number := table.Launch(&m.batch, p.bytes <= markedBytes); word != nil {
		after = nil
		m.expect(word, number)
	}
	err := s.Submit(&m.batch, after)
	if err != nil {
		m.recorded()
	}
	return err
}
