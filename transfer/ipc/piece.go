package ipc

import "github.com/millrace/millrace/memory/cuda"

// row is a range to copy.
type row = cuda.Row

// piece is the unit of posting: all bytes of some small objects that are contiguous in their fetch,
// or a part of one object.
type piece struct {
	rows  []row
	bytes uint64
	group *group
	// The piece covers count objects from object on.
	object, count int
	// part: the object has several pieces. Then order is the number of the piece if the object is
	// forwarded. step: the piece is smaller than necessary, because a downstream reader waits for
	// its bytes.
	part  bool
	order int
	step  bool
}

func (p *piece) kind() int {
	if len(p.rows) == 1 && p.bytes >= smallBytes {
		return large
	}
	return small
}

// tableRows returns an upper bound of its table rows when they are cut to GatherRow.
func (p *piece) tableRows() int { return len(p.rows) + int(p.bytes/cuda.GatherRow) }

// cutting makes rows and pieces for the objects of a fetch. Its lists are reused, so its results
// are valid until reset.
type cutting struct {
	rows   []row
	pieces []piece
	// began is the first row of the small objects that are not in a piece yet.
	began int
	open  piece
}

// reset clears the lists. It keeps their memory unless that is unusually large.
func (c *cutting) reset() {
	const keep = 1 << 16
	clear(c.pieces)
	if cap(c.rows) > keep {
		c.rows = nil
	}
	if cap(c.pieces) > keep {
		c.pieces = nil
	}
	c.rows, c.pieces, c.began, c.open = c.rows[:0], c.pieces[:0], 0, piece{}
}

// small adds a frame of a small object. Objects must come in order; an object that does not follow
// the previous one begins another piece. Ranges that are adjacent on both sides become one row.
func (c *cutting) small(to, from, bytes, chunk uint64) {
	if last := len(c.rows) - 1; last >= c.began {
		if l := &c.rows[last]; l.To+l.Bytes == to && l.From+l.Bytes == from && l.Bytes+bytes <= cuda.GatherRow {
			l.Bytes += bytes
			return
		}
	}
	for ; bytes > chunk; bytes -= chunk {
		c.rows = append(c.rows, row{To: to, From: from, Bytes: chunk})
		to, from = to+chunk, from+chunk
	}
	c.rows = append(c.rows, row{To: to, From: from, Bytes: bytes})
}

// close makes a piece of the small objects since the last one.
func (c *cutting) close() {
	if c.open.count > 0 {
		c.open.rows = c.rows[c.began:len(c.rows):len(c.rows)]
		c.pieces = append(c.pieces, c.open)
	}
	c.began, c.open = len(c.rows), piece{}
}

// parts divides the small object that was added since the last piece into pieces of at most `most`
// rows: while one piece is posted, other fetches cannot post.
func (c *cutting) parts(g *group, object, most int) {
	for c.began < len(c.rows) {
		end := min(c.began+most, len(c.rows))
		p := piece{rows: c.rows[c.began:end:end], group: g, object: object, count: 1, part: true}
		for i := range p.rows {
			p.bytes += p.rows[i].Bytes
		}
		c.pieces = append(c.pieces, p)
		c.began = end
	}
	c.open = piece{}
}

// large adds a frame of an object that has pieces of its own. REQUIRES: close was called.
func (c *cutting) large(to, from, bytes, chunk uint64, g *group, object int) {
	for at := uint64(0); at < bytes; at += chunk {
		c.rows = append(c.rows, row{To: to + at, From: from + at, Bytes: min(chunk, bytes-at)})
		n := len(c.rows)
		c.pieces = append(c.pieces, piece{rows: c.rows[n-1 : n : n], bytes: c.rows[n-1].Bytes, group: g, object: object, count: 1, part: true})
	}
	c.began = len(c.rows)
}

// copies appends the copies of pieces by the copy engine to a list.
func copies(list []cuda.Copy, pieces []piece, one func(to, from, bytes uint64) cuda.Copy) []cuda.Copy {
	for _, p := range pieces {
		for _, r := range p.rows {
			list = append(list, one(r.To, r.From, r.Bytes))
		}
	}
	return list
}
