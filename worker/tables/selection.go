package tables

import "fmt"

// chunkRows is the number of rows of a column that are read at a time: in most types they fit into
// the cache of a processor.
const chunkRows = 1 << 16

// selection says which rows of a column belong to which part, and in which order. Rows are sorted
// by their chunk, inside of a chunk by their part, and keep their order inside of these.
type selection struct {
	parts, chunks int
	rows          []uint32
	// ends says where the rows of a cell, which is a part in a chunk, begin in rows: those of cell
	// c*parts+p do at ends[c*parts+p], and end where the next cell begins.
	ends []int64
	// before is the number of rows of the part in the chunks before, for each cell.
	before []int64
	// counts is the number of rows of each part.
	counts []int64
}

// cell returns the rows of a part in a chunk, and the number of rows of the part before them.
func (s *selection) cell(c, p int) (rows []uint32, before int64) {
	at := c*s.parts + p
	return s.rows[s.ends[at]:s.ends[at+1]], s.before[at]
}

// Numbering writes the parts of the rows from a row on.
type Numbering func(from int, into []uint32) error

// selectionOf sorts rows by their parts. The selection holds all of them.
func selectionOf(call *Call, rows int64, parts int, numbers Numbering) (*selection, error) {
	// A part should have some rows in a chunk: each costs a step.
	length := max(chunkRows, 16*parts)
	s := &selection{parts: parts, chunks: int((rows + int64(length) - 1) / int64(length)), rows: anyRoom[uint32](call, int(rows))}
	cells := Room[int64](call, s.chunks*parts)
	err := call.Each(s.chunks, func(c int) error {
		from := c * length
		into := s.rows[from:min(from+length, int(rows))]
		of := make([]uint32, len(into))
		if err := numbers(from, of); err != nil {
			return err
		}
		count := cells[c*parts : (c+1)*parts]
		for i, p := range of {
			if int64(p) >= int64(parts) {
				return fmt.Errorf("row %d has the number %d, and there are %d pieces", from+i, p, parts)
			}
			count[p]++
		}
		next := make([]int64, parts)
		var end int64
		for p, n := range count {
			next[p] = end
			end += n
		}
		for i, p := range of {
			into[next[p]] = uint32(from + i)
			next[p]++
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	s.place(call, cells)
	return s, nil
}

// place computes where the rows lie from the number of rows in each cell, which it replaces.
func (s *selection) place(call *Call, cells []int64) {
	s.ends = anyRoom[int64](call, len(cells)+1)
	s.ends[0] = 0
	for i, n := range cells {
		s.ends[i+1] = s.ends[i] + n
	}
	s.before, s.counts = cells, runningSums(cells, s.parts)
}

// runningSums replaces the number of each cell by the sum of those of the same part in the chunks
// before, and returns the sum of each part.
func runningSums(cells []int64, parts int) []int64 {
	totals := make([]int64, parts)
	for from := 0; from < len(cells); from += parts {
		for p, n := range cells[from : from+parts] {
			cells[from+p] = totals[p]
			totals[p] += n
		}
	}
	return totals
}

// inner returns the selection of the rows inside of rows, such as the elements of lists. cells says
// how many there are in each cell, and is replaced. fill writes those of a chunk.
func (s *selection) inner(call *Call, cells []int64, fill func(c int, inner *selection) error) (*selection, error) {
	inner := &selection{parts: s.parts, chunks: s.chunks}
	inner.place(call, cells)
	inner.rows = anyRoom[uint32](call, int(inner.ends[len(cells)]))
	return inner, call.Each(s.chunks, func(c int) error { return fill(c, inner) })
}
