package tables

import (
	"fmt"
	"math"
)

// viewText says where the long values of the views of a span lie in the result.
type viewText struct {
	// whole are the places of the buffers of the span, which are copied as they are. Nil: only the
	// values are copied, one after the other.
	whole []textPlace
	// values is the place of the values, and starts says how many bytes of them lie before each
	// step of the result that has rows of the span.
	values textPlace
	starts []int64
}

// textPlace is a place in the buffers of text of a column.
type textPlace struct {
	buffer int32
	offset int64
}

// textRoom gives places in buffers of text. A view reaches 2 GiB of one.
type textRoom struct{ sizes []int64 }

func (r *textRoom) take(size int64) textPlace {
	if last := len(r.sizes) - 1; size > 0 && (last < 0 || r.sizes[last] > math.MaxInt32-size) {
		r.sizes = append(r.sizes, 0)
	} else if last < 0 {
		return textPlace{}
	}
	last := len(r.sizes) - 1
	place := textPlace{int32(last), r.sizes[last]}
	r.sizes[last] += size
	return place
}

// addViews plans the long values of views: each of them, or the buffers if these are smaller
// together, because several views share a value.
func (b *concatenation) addViews(c *stacked) error {
	c.texts = make([]viewText, len(c.spans))
	totals := make([]int64, len(c.spans))
	err := b.call.Each(len(c.spans), func(i int) error {
		p := &c.spans[i]
		for at := p.at; at < p.at+p.rows; at = stepEnd(at) {
			c.texts[i].starts = append(c.texts[i].starts, totals[i])
			size, err := longBytes(p, at-p.at, min(stepEnd(at), p.at+p.rows)-p.at)
			if err != nil {
				return err
			}
			totals[i] += size
		}
		return nil
	})
	if err != nil {
		return err
	}
	var room textRoom
	for i := range c.spans {
		buffers, all := c.spans[i].data.Buffers()[2:], int64(0)
		for k := range buffers {
			all += int64(len(bufferAt(c.spans[i].data, k+2)))
		}
		if totals[i] <= all && totals[i] <= math.MaxInt32 {
			c.texts[i].values = room.take(totals[i])
			continue
		}
		c.texts[i].whole = make([]textPlace, len(buffers))
		for k := range buffers {
			c.texts[i].whole[k] = room.take(int64(len(bufferAt(c.spans[i].data, k+2))))
		}
	}
	if len(room.sizes) > math.MaxInt32 {
		return fmt.Errorf("the result has %d buffers of text: concatenate fewer tables", len(room.sizes))
	}
	c.sizes = append(append(c.sizes, c.rows*int64(c.width)), room.sizes...)
	return nil
}

// longBytes returns the bytes of the long values of some rows of a span, and checks their places.
func longBytes(p *span, from, to int64) (int64, error) {
	views, valid, total := elements[view](bufferAt(p.data, 1)), validOf(p), int64(0)
	for r := p.first + from; r < p.first+to; r++ {
		if len(valid) > 0 && bit(valid, r) == 0 {
			continue
		}
		size, err := views[r].longBytes(p.data)
		if err != nil {
			return 0, err
		}
		total += size
	}
	return total, nil
}

// views writes the views of some rows of a span, and the values of these if the buffers are not
// copied.
func (w *stackWriter) views(i int, from, to int64) error {
	p, text := &w.spans[i], &w.texts[i]
	views, valid, room := elements[view](bufferAt(p.data, 1)), validOf(p), elements[view](w.room(1))[p.at:]
	at := text.values.offset
	if text.whole == nil {
		at += text.starts[stepOf(p.at+from)-stepOf(p.at)]
	}
	for r := from; r < to; r++ {
		v := views[p.first+r]
		switch {
		case len(valid) > 0 && bit(valid, p.first+r) == 0:
			v = view{}
		case v.size <= inlineView:
		case text.whole != nil:
			place := text.whole[v.buffer]
			v.buffer, v.offset = place.buffer, v.offset+int32(place.offset)
		default:
			bytes, err := v.text(p.data)
			if err != nil {
				return err
			}
			v.buffer, v.offset = text.values.buffer, int32(at)
			at += int64(copy(w.room(2 + int(v.buffer))[at:], bytes))
		}
		room[r] = v
	}
	return nil
}
