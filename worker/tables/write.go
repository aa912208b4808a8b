package tables

import (
	"fmt"

	"github.com/millrace/millrace/internal/arrowtable"
)

// bitGroups is the number of groups of parts whose bitmaps are written by one processor each:
// several chunks of a part write to one byte.
const bitGroups = 8

// Write copies the rows of all parts to their frames, which have the sizes FrameBytes, and sets the
// bytes between the buffers to 0.
func (p *Parts) Write(frames [][]byte) error {
	for i, l := range p.Layouts {
		if int64(len(frames[i])) != p.FrameBytes[i] {
			return fmt.Errorf("a frame of %d bytes for a part of %d", len(frames[i]), p.FrameBytes[i])
		}
		for _, b := range l.Buffers {
			end := b.Offset + b.Bytes
			clear(frames[i][end : (end+arrowtable.Alignment-1)/arrowtable.Alignment*arrowtable.Alignment])
		}
	}
	var steps []func() error
	for _, c := range p.columns {
		w := &writer{piece: c, parts: p, frames: frames}
		if c.sel == nil {
			for i := range frames {
				steps = append(steps, func() error { w.whole(i); return nil })
			}
			continue
		}
		for chunk := range c.sel.chunks {
			steps = append(steps, func() error { return w.chunk(chunk) })
		}
		if c.form == formBits || c.nulls != nil && c.form != formNull {
			for g := range min(bitGroups, len(frames)) {
				steps = append(steps, func() error { w.bits(g, min(bitGroups, len(frames))); return nil })
			}
		}
	}
	return p.call.Each(len(steps), func(i int) error { return steps[i]() })
}

// writer copies one column to the frames.
type writer struct {
	*piece
	parts  *Parts
	frames [][]byte
}

// room returns the place of a buffer of a part.
func (w *writer) room(buffer, part int) []byte {
	b := w.parts.Layouts[part].Buffers[w.place+buffer]
	return w.frames[part][b.Offset : b.Offset+b.Bytes]
}

func (w *writer) whole(part int) {
	for i, from := range w.places(w.data) {
		copy(w.room(i, part), from)
	}
}

// bits writes the bitmaps of the parts of a group.
func (w *writer) bits(group, groups int) {
	valid, values := bufferAt(w.data, 0), []byte(nil)
	if w.form == formBits {
		values = bufferAt(w.data, 1)
	}
	for part := group; part < w.sel.parts; part += groups {
		if w.nulls != nil && w.nulls[part] > 0 {
			w.gatherBits(w.room(0, part), valid, part)
		}
		if values != nil {
			w.gatherBits(w.room(1, part), values, part)
		}
	}
}

func (w *writer) gatherBits(room, from []byte, part int) {
	clear(room)
	for chunk := range w.sel.chunks {
		rows, before := w.sel.cell(chunk, part)
		for i, r := range rows {
			at := before + int64(i)
			room[at>>3] |= bit(from, r) << (at & 7)
		}
	}
}

// chunk writes the rows of a chunk, except for bitmaps.
func (w *writer) chunk(chunk int) error {
	if w.of != nil && w.of.form == formList {
		return w.elements(chunk)
	}
	if w.of != nil {
		return w.runEnds(chunk)
	}
	for part := range w.sel.parts {
		rows, before := w.sel.cell(chunk, part)
		if len(rows) == 0 {
			continue
		}
		cell := chunk*w.sel.parts + part
		switch {
		case w.codes != nil:
			w.putCodes(w.room(1, part), w.codes[w.sel.ends[cell]:], len(rows), before)
		case w.form == formFixed && w.width > 0:
			width := w.width * w.times
			gather(w.room(1, part)[before*int64(width):], bufferAt(w.data, 1), rows, width)
		case w.form == formText:
			w.putEnds(part, rows, before, w.text[cell])
			w.copyRanges(w.room(2, part), bufferAt(w.data, 2), rows, w.text[cell], 1, w.ends)
		case w.form == formList:
			w.putEnds(part, rows, before, w.text[cell])
		case w.form == formViews:
			if err := w.putViews(part, rows, before, w.text[cell]); err != nil {
				return err
			}
		case w.form == formSparse:
			codes := w.room(0, part)[before : before+int64(len(rows))]
			gather(codes, bufferAt(w.data, 1), rows, 1)
			if err := w.checkCodes(codes); err != nil {
				return err
			}
		case w.form == formDense:
			w.putUnion(chunk, part, rows, before)
		}
	}
	return nil
}

// gather copies rows of fixed width.
func gather(room, from []byte, rows []uint32, width int) {
	switch width {
	case 1:
		gatherOf(room, from, rows)
	case 2:
		gatherOf(elements[uint16](room), elements[uint16](from), rows)
	case 4:
		gatherOf(elements[uint32](room), elements[uint32](from), rows)
	case 8:
		gatherOf(elements[uint64](room), elements[uint64](from), rows)
	case 16:
		gatherOf(elements[[16]byte](room), elements[[16]byte](from), rows)
	case 32:
		gatherOf(elements[[32]byte](room), elements[[32]byte](from), rows)
	default:
		for i, r := range rows {
			copy(room[i*width:(i+1)*width], from[int64(r)*int64(width):])
		}
	}
}

func gatherOf[T any](room, from []T, rows []uint32) {
	room = room[:len(rows)]
	for i, r := range rows {
		room[i] = from[r]
	}
}

func (w *writer) putCodes(room []byte, codes []uint32, rows int, before int64) {
	codes = codes[:rows]
	switch w.width {
	case 1:
		putCodesOf(room[before:], codes)
	case 2:
		putCodesOf(elements[uint16](room)[before:], codes)
	case 4:
		putCodesOf(elements[uint32](room)[before:], codes)
	default:
		putCodesOf(elements[uint64](room)[before:], codes)
	}
}

func putCodesOf[T uint8 | uint16 | uint32 | uint64](room []T, codes []uint32) {
	room = room[:len(codes)]
	for i, c := range codes {
		room[i] = T(c)
	}
}

// putEnds writes the offsets of rows of text or lists, of which the first begins at end.
func (w *writer) putEnds(part int, rows []uint32, before, end int64) {
	room := offsetsOf(w.room(1, part), w.width)
	if before == 0 {
		room.put(0, 0)
	}
	for i, r := range rows {
		from, to := w.ends.row(int64(r))
		end += to - from
		room.put(before+int64(i)+1, end)
	}
}

// copyRanges copies the bytes or elements of rows.
func (w *writer) copyRanges(room, from []byte, rows []uint32, at, unit int64, ends offsets) {
	room = room[at*unit:]
	for _, r := range rows {
		first, end := ends.row(int64(r))
		room = room[copy(room, from[first*unit:end*unit]):]
	}
}

// elements writes the elements of the lists of another column.
func (w *writer) elements(chunk int) error {
	for part := range w.sel.parts {
		if rows, _ := w.of.sel.cell(chunk, part); len(rows) > 0 {
			w.copyRanges(w.room(1, part), bufferAt(w.data, 1), rows, w.of.text[chunk*w.sel.parts+part], int64(w.width), w.of.ends)
		}
	}
	return nil
}

// runEnds writes the ends of the runs of another column.
func (w *writer) runEnds(chunk int) error {
	for part := range w.sel.parts {
		rows, before := w.of.sel.cell(chunk, part)
		_, at := w.sel.cell(chunk, part)
		room := w.room(1, part)
		err := w.of.eachRun(rows, func(_, end int) {
			putNumber(room, w.width, at, uint64(before)+uint64(end))
			at++
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func putNumber(room []byte, width int, at int64, n uint64) {
	switch width {
	case 2:
		elements[uint16](room)[at] = uint16(n)
	case 4:
		elements[uint32](room)[at] = uint32(n)
	default:
		elements[uint64](room)[at] = n
	}
}

// putViews writes views of the text of a part, and the text.
func (w *writer) putViews(part int, rows []uint32, before, at int64) error {
	valid, from := bufferAt(w.data, 0), elements[view](bufferAt(w.data, 1))
	room, text := elements[view](w.room(1, part))[before:], w.room(2, part)
	for i, r := range rows {
		if len(valid) > 0 && bit(valid, r) == 0 {
			room[i] = view{}
			continue
		}
		v := from[r]
		if v.size > inlineView {
			bytes, err := v.text(w.data)
			if err != nil {
				return err
			}
			v.buffer, v.offset = 0, int32(at)
			at += int64(copy(text[at:], bytes))
		}
		room[i] = v
	}
	return nil
}

func (w *writer) putUnion(chunk, part int, rows []uint32, before int64) {
	codes := bufferAt(w.data, 1)
	gather(w.room(0, part)[before:], codes, rows, 1)
	next := make([]int64, len(w.inside))
	for child, sel := range w.inside {
		_, next[child] = sel.cell(chunk, part)
	}
	room := elements[int32](w.room(1, part))[before:]
	for i, r := range rows {
		child := w.childOf(codes[r])
		room[i] = int32(next[child])
		next[child]++
	}
}
