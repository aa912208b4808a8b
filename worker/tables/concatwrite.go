package tables

import (
	"encoding/binary"
	"fmt"
	"slices"
	"sort"

	"github.com/apache/arrow-go/v18/arrow/bitutil"

	"github.com/millrace/millrace/internal/arrowtable"
)

// stepOf returns the step that writes a row of the result: each has partRows of them.
func stepOf(row int64) int64 { return row / partRows }

// stepEnd returns the first row behind the step of a row.
func stepEnd(row int64) int64 { return (stepOf(row) + 1) * partRows }

// Write copies the rows of all tables to the frame, which has the size FrameBytes, and sets the
// bytes between the buffers to 0.
func (t *Whole) Write(frame []byte) error {
	if int64(len(frame)) != t.FrameBytes {
		return fmt.Errorf("a frame of %d bytes for a table of %d", len(frame), t.FrameBytes)
	}
	for _, b := range t.Layout.Buffers {
		end := b.Offset + b.Bytes
		clear(frame[end : (end+arrowtable.Alignment-1)/arrowtable.Alignment*arrowtable.Alignment])
	}
	// ends are the numbers of steps of the columns until each of them, with those before.
	var writers []*stackWriter
	var ends []int
	var whole copies
	rows := 0
	for _, c := range t.columns {
		w := &stackWriter{stacked: c, layout: t.Layout.Buffers[c.place:], frame: frame}
		if !slices.ContainsFunc(c.sizes, func(size int64) bool { return size > 0 }) {
			continue
		}
		w.addCopies(&whole)
		rows += int(stepOf(c.rows-1)) + 1
		writers, ends = append(writers, w), append(ends, rows)
	}
	return t.call.Each(rows+whole.pieces(), func(n int) error {
		if n >= rows {
			whole.piece(int64(n - rows))
			return nil
		}
		at := sort.SearchInts(ends, n+1)
		if at > 0 {
			n -= ends[at-1]
		}
		return writers[at].step(int64(n))
	})
}

// stackWriter copies one column to the frame.
type stackWriter struct {
	*stacked
	layout []arrowtable.Buffer
	frame  []byte
}

// addCopies adds the bytes of all spans that stay as they are and together.
func (w *stackWriter) addCopies(whole *copies) {
	for i := range w.spans {
		p := &w.spans[i]
		switch {
		case w.of != nil || w.dictionary != nil || p.rows == 0:
		case w.form == formFixed:
			width := int64(w.width)
			whole.add(w.room(1)[p.at*width:], bufferAt(p.data, 1)[p.first*width:(p.first+p.rows)*width])
		case w.form == formText:
			from, to := w.extent(p)
			whole.add(w.room(2)[w.before[i]:], bufferAt(p.data, 2)[from:to])
		case w.form == formViews:
			for k, place := range w.texts[i].whole {
				if from := bufferAt(p.data, k+2); len(from) > 0 {
					whole.add(w.room(2 + int(place.buffer))[place.offset:], from)
				}
			}
		}
	}
}

// pieceBytes is the number of bytes that a processor copies before it takes the next piece.
const pieceBytes = 256 << 10

// copies are bytes that are copied in pieces of equal size, from several places.
type copies struct {
	to, from [][]byte
	ends     []int64 // the number of bytes until the end of each, with those before
	total    int64
}

func (c *copies) add(to, from []byte) {
	if len(from) > 0 {
		c.total += int64(len(from))
		c.to, c.from, c.ends = append(c.to, to), append(c.from, from), append(c.ends, c.total)
	}
}

func (c *copies) pieces() int { return int((c.total + pieceBytes - 1) / pieceBytes) }

// piece copies the bytes of a piece.
func (c *copies) piece(n int64) {
	at, end := n*pieceBytes, min((n+1)*pieceBytes, c.total)
	for i := sort.Search(len(c.ends), func(i int) bool { return c.ends[i] > at }); at < end; i++ {
		first := at - (c.ends[i] - int64(len(c.from[i])))
		at += int64(copy(c.to[i][first:], c.from[i][first:min(first+end-at, int64(len(c.from[i])))]))
	}
}

// room returns the place of a buffer.
func (w *stackWriter) room(buffer int) []byte {
	b := w.layout[buffer]
	return w.frame[b.Offset : b.Offset+b.Bytes]
}

// step writes rows of the result. No other step writes to the same bytes of a bitmap.
func (w *stackWriter) step(n int64) error {
	first, end := n*partRows, min((n+1)*partRows, w.rows)
	if w.nulls > 0 && w.form != formNull {
		w.room(0)[(end-1)/8] = 0 // the bits behind the last row
	}
	if w.form == formBits {
		w.room(1)[(end-1)/8] = 0
	}
	i := sort.Search(len(w.spans), func(i int) bool { return w.spans[i].at+w.spans[i].rows > first })
	for ; i < len(w.spans) && w.spans[i].at < end; i++ {
		p := &w.spans[i]
		from, to := max(first-p.at, 0), min(end-p.at, p.rows)
		if from >= to {
			continue
		}
		if w.nulls > 0 && w.form != formNull && w.of == nil {
			w.validity(p, from, to)
		}
		if err := w.values(i, from, to); err != nil {
			return fmt.Errorf("column %q: %w", w.name, err)
		}
	}
	return nil
}

// validOf returns the validity of a span; nil: there are no nulls.
func validOf(p *span) []byte {
	if p.data.NullN() == 0 {
		return nil
	}
	return bufferAt(p.data, 0)
}

func (w *stackWriter) validity(p *span, from, to int64) {
	if valid := validOf(p); len(valid) > 0 {
		copyBits(w.room(0), p.at+from, valid, p.first+from, to-from)
	} else {
		bitutil.SetBitsTo(w.room(0), p.at+from, to-from, true)
	}
}

// values writes rows of a span, except for their validity.
func (w *stackWriter) values(i int, from, to int64) error {
	p := &w.spans[i]
	source, at, first, n := bufferAt(p.data, 1), p.at+from, p.first+from, to-from
	switch {
	case w.of != nil:
		return w.runEnds(i, from, to)
	case w.dictionary != nil:
		return w.putCodes(i, from, to)
	}
	switch w.form {
	case formBits:
		copyBits(w.room(1), at, source, first, n)
	case formText, formList:
		return w.putEnds(i, from, to)
	case formViews:
		return w.views(i, from, to)
	case formSparse:
		copy(w.room(0)[at:], source[first:first+n])
		return w.checkCodes(source[first : first+n])
	case formDense:
		return w.union(i, from, to)
	case formFixed, formNull, formFixedList, formStruct, formRuns:
	}
	return nil
}

// putEnds writes the offsets of rows of a span.
func (w *stackWriter) putEnds(i int, from, to int64) error {
	p := &w.spans[i]
	source, room := w.ends(p), offsetsOf(w.room(1), w.width)
	start, stop := w.extent(p)
	if p.at+from == 0 {
		room.put(0, 0)
	}
	var ordered bool
	if source.short != nil {
		ordered = rebase(room.short[p.at+from+1:], source.short[p.first+from:p.first+to+1], int32(w.before[i]-start))
	} else {
		ordered = rebase(room.long[p.at+from+1:], source.long[p.first+from:p.first+to+1], w.before[i]-start)
	}
	begin, _ := source.row(p.first + from)
	_, end := source.row(p.first + to - 1)
	if !ordered || begin < start || end > stop {
		return fmt.Errorf("the offsets of rows %d to %d do not ascend: the table contradicts itself, write it anew", from, to)
	}
	return nil
}

// rebase writes the ends of rows, and returns whether they ascend.
func rebase[T int32 | int64](to, from []T, by T) bool {
	to = to[:len(from)-1]
	last, ordered := from[0], true
	for i, end := range from[1:] {
		ordered = ordered && end >= last
		to[i] = end + by
		last = end
	}
	return ordered
}

// runEnds writes ends of runs of another column.
func (w *stackWriter) runEnds(i int, from, to int64) error {
	p, of := &w.spans[i], &w.of.spans[i]
	endOf, last, room := runEndsOf(p.data, w.width), of.first, w.room(1)
	if from > 0 {
		last = int64(endOf(p.first + from - 1))
	}
	for r := from; r < to; r++ {
		end := int64(endOf(p.first + r))
		if r == p.rows-1 {
			end = min(end, of.first+of.rows)
		}
		if end <= last || end > of.first+of.rows {
			return fmt.Errorf("its runs end at row %d and then at row %d: the table contradicts itself, write it anew", last, end)
		}
		putNumber(room, w.width, p.at+r, uint64(of.at+end-of.first))
		last = end
	}
	return nil
}

// union writes the codes and offsets of rows of a dense union.
func (w *stackWriter) union(i int, from, to int64) error {
	p := &w.spans[i]
	codes, places := bufferAt(p.data, 1), elements[int32](bufferAt(p.data, 2))
	room := elements[int32](w.room(1))
	copy(w.room(0)[p.at+from:], codes[p.first+from:p.first+to])
	for r := from; r < to; r++ {
		code, place := codes[p.first+r], places[p.first+r]
		child := w.childOf(code)
		if child < 0 || child >= len(w.inside) || place < 0 || int64(place) >= w.inside[child].spans[i].rows {
			return fmt.Errorf("row %d of a union has the code %d and the place %d: the table contradicts itself, write it anew", r, code, place)
		}
		room[p.at+r] = int32(w.inside[child].spans[i].at) + place
	}
	return nil
}

// putCodes writes the codes of rows of a span.
func (w *stackWriter) putCodes(i int, from, to int64) error {
	p := &w.spans[i]
	var valid []byte
	if b := validOf(p); len(b) > 0 {
		valid = b
	}
	count, codes := uint64(p.data.Dictionary().Len()), []uint32(nil)
	if w.codes != nil {
		codes = w.codes[i]
	}
	source, room := bufferAt(p.data, 1), w.room(1)
	switch w.width {
	case 1:
		return recode(room[p.at+from:], source[p.first+from:p.first+to], valid, p.first+from, codes, count)
	case 2:
		return recode(elements[uint16](room)[p.at+from:], elements[uint16](source)[p.first+from:p.first+to], valid, p.first+from, codes, count)
	case 4:
		return recode(elements[uint32](room)[p.at+from:], elements[uint32](source)[p.first+from:p.first+to], valid, p.first+from, codes, count)
	}
	return recode(elements[uint64](room)[p.at+from:], elements[uint64](source)[p.first+from:p.first+to], valid, p.first+from, codes, count)
}

// recode writes codes of a dictionary of count values: those of codes, or the same ones. A null has
// the code 0.
func recode[T uint8 | uint16 | uint32 | uint64](to, from []T, valid []byte, first int64, codes []uint32, count uint64) error {
	to = to[:len(from)]
	for i, code := range from {
		switch {
		case len(valid) > 0 && bit(valid, first+int64(i)) == 0:
			to[i] = 0
		case uint64(code) >= count:
			return fmt.Errorf("a row has the code %d of %d values: the table contradicts itself, write it anew", code, count)
		case codes != nil:
			to[i] = T(codes[code])
		default:
			to[i] = code
		}
	}
	return nil
}

// copyBits copies n bits of a bitmap. The other bits of the bytes of the result stay.
// bitutil.CopyBitmap also writes to bytes behind them, which another step writes at the same time.
func copyBits(to []byte, at int64, from []byte, first, n int64) {
	one := func() {
		to[at>>3] = to[at>>3]&^(1<<(at&7)) | bit(from, first)<<(at&7)
		at, first, n = at+1, first+1, n-1
	}
	for n > 0 && at&7 != 0 {
		one()
	}
	if shift := first & 7; shift == 0 {
		size := int64(copy(to[at>>3:][:n>>3], from[first>>3:]))
		at, first, n = at+8*size, first+8*size, n-8*size
	} else {
		for ; n >= 64; at, first, n = at+64, first+64, n-64 {
			// The last of these bits is in the ninth byte.
			word := binary.LittleEndian.Uint64(from[first>>3:])>>shift | uint64(from[first>>3+8])<<(64-shift)
			binary.LittleEndian.PutUint64(to[at>>3:], word)
		}
	}
	for n > 0 {
		one()
	}
}
