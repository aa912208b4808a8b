package tables

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
)

// SortKey is a column by which rows are sorted.
type SortKey struct {
	Column                int
	Descending, NullsLast bool
}

// Sort returns the numbers of the rows in the order of the keys. Rows that are equal in all of them
// keep their order. NaN is larger than all numbers. Errors name the column.
func (c *Call) Sort(batch arrow.RecordBatch, by []SortKey) ([]uint32, error) {
	rows := Room[uint32](c, int(batch.NumRows()))
	for i := range rows {
		rows[i] = uint32(i)
	}
	s := &sorter{Call: c, rows: rows, items: Room[item](c, len(rows)), spare: Room[item](c, len(rows))}
	for _, key := range slices.Backward(by) {
		o, err := c.orderOf(batch.Column(key.Column), "sorted")
		if err != nil {
			return nil, fmt.Errorf("column %q: %w", batch.ColumnName(key.Column), err)
		}
		turn := uint64(0)
		if key.Descending {
			turn = ^turn
		}
		for _, words := range slices.Backward(o.words) {
			if err := s.sort(o, words, turn); err != nil {
				return nil, err
			}
		}
		if err := s.nulls(o, key.NullsLast); err != nil {
			return nil, err
		}
	}
	return rows, nil
}

// sorter sorts rows by one word after the other, the most significant last.
type sorter struct {
	*Call
	rows         []uint32
	items, spare []item
}

type item struct {
	word uint64
	row  uint32
}

const (
	digitBits = 8
	digits    = 64 / digitBits
	buckets   = 1 << digitBits
)

// sort sorts the rows by a word of each, stably. Those of nulls count as equal.
func (s *sorter) sort(o *order, words []uint64, turn uint64) error {
	var counts [digits][buckets]uint32
	if err := s.inOrder(len(s.rows), func(from, to int) {
		for i, row := range s.rows[from:to] {
			w := uint64(0)
			if o.has(int(row)) {
				w = words[row] ^ turn
			}
			s.items[from+i] = item{w, row}
			for d := range digits {
				counts[d][w>>(d*digitBits)&(buckets-1)]++
			}
		}
	}); err != nil {
		return err
	}
	for d := range digits {
		places, next := &counts[d], uint32(0)
		if slices.Contains(places[:], uint32(len(s.rows))) {
			continue // all have the same digit
		}
		for i, n := range places {
			places[i] = next
			next += n
		}
		if err := s.inOrder(len(s.items), func(from, to int) {
			for _, x := range s.items[from:to] {
				at := &places[x.word>>(d*digitBits)&(buckets-1)]
				s.spare[*at] = x
				*at++
			}
		}); err != nil {
			return err
		}
		s.items, s.spare = s.spare, s.items
	}
	for i, x := range s.items {
		s.rows[i] = x.row
	}
	return nil
}

// nulls moves the rows with null to one end, stably.
func (s *sorter) nulls(o *order, last bool) error {
	if len(o.valid.bits) == 0 {
		return nil
	}
	n := 0
	for _, first := range []bool{last, !last} {
		if err := s.inOrder(len(s.rows), func(from, to int) {
			for _, row := range s.rows[from:to] {
				if o.has(int(row)) == first {
					s.items[n].row = row
					n++
				}
			}
		}); err != nil {
			return err
		}
	}
	for i := range s.rows {
		s.rows[i] = s.items[i].row
	}
	return nil
}

// order has words for each value of a column, the most significant first: their order is that of
// the values. No words: all values are null.
type order struct {
	n      int
	valid  bitmap
	words  [][]uint64
	floats bool // the largest word is NaN
}

// has says whether a value is not null.
func (o *order) has(row int) bool { return o.valid.has(row) }

// isText says whether values of a type are texts or bytes.
func isText(t arrow.DataType) bool {
	return slices.Contains([]arrow.Type{
		arrow.STRING, arrow.LARGE_STRING, arrow.STRING_VIEW, arrow.BINARY, arrow.LARGE_BINARY, arrow.BINARY_VIEW, arrow.FIXED_SIZE_BINARY,
	}, t.ID())
}

// orderOf returns the order of the values of an array.
func (c *Call) orderOf(a arrow.Array, verb string) (*order, error) {
	if e, ok := a.(array.ExtensionArray); ok {
		return c.orderOf(e.Storage(), verb)
	}
	k, err := c.keysOf(a, verb)
	if err != nil {
		return nil, err
	}
	o := &order{n: k.n, valid: k.valid}
	switch a := a.(type) {
	case *array.Null:
		o.valid = bitmap{Room[uint8](c, (k.n+7)/8), 0}
		return o, nil
	case *array.Dictionary:
		return o, c.orderOfCodes(o, k, a, verb)
	case *array.Float16, *array.Float32, *array.Float64:
		o.floats = true
		return o, c.turned(o, k.words, func(w uint64) uint64 {
			switch {
			case w<<1 > 0x7FF<<53: // NaN
				return ^uint64(0)
			case w >= flip:
				return ^w
			}
			return w | flip
		})
	case *array.Uint64, *array.Boolean:
		o.words = [][]uint64{k.words}
		return o, nil
	case *array.Decimal32:
		return o, c.orderOfDecimals(o, elements[int32](k.text.data))
	case *array.Decimal64:
		return o, c.turned(o, elements[uint64](k.text.data), func(w uint64) uint64 { return w ^ flip })
	case *array.Decimal128:
		return o, c.orderOfParts(o, elements[uint64](k.text.data), 2)
	case *array.Decimal256:
		return o, c.orderOfParts(o, elements[uint64](k.text.data), 4)
	}
	if k.text != nil {
		return o, c.orderOfTexts(o, k)
	}
	return o, c.turned(o, k.words, func(w uint64) uint64 { return w ^ flip })
}

// turned makes words of others.
func (c *Call) turned(o *order, from []uint64, f func(uint64) uint64) error {
	words := Room[uint64](c, o.n)
	o.words = [][]uint64{words}
	return c.inParts(o.n, partRows, func(first, end int) error {
		out := words[first:end]
		for i, w := range from[first:end] {
			out[i] = f(w)
		}
		return nil
	})
}

func (c *Call) orderOfDecimals(o *order, values []int32) error {
	words, err := wordsOf(c, values)
	if err != nil {
		return err
	}
	return c.turned(o, words, func(w uint64) uint64 { return w ^ flip })
}

// orderOfParts makes words of integers of several words, the least significant first.
func (c *Call) orderOfParts(o *order, from []uint64, parts int) error {
	for part := range parts {
		words, sign := Room[uint64](c, o.n), uint64(0)
		if part == 0 {
			sign = flip
		}
		o.words = append(o.words, words)
		if err := c.inParts(o.n, partRows, func(first, end int) error {
			for i := first; i < end; i++ {
				words[i] = from[i*parts+parts-1-part] ^ sign
			}
			return nil
		}); err != nil {
			return err
		}
	}
	return nil
}

// orderOfTexts makes the ranks of texts.
func (c *Call) orderOfTexts(o *order, k *keys) error {
	numbers, count, err := c.number([]*keys{k}, false)
	if err != nil {
		return err
	}
	first, err := c.firstRows(numbers[0], count)
	if err != nil {
		return err
	}
	list := Room[item](c, int(count)) // the words are the beginnings of the texts
	for i, row := range first {
		var begin [8]byte
		copy(begin[:], k.text.at(int(row)))
		list[i] = item{binary.BigEndian.Uint64(begin[:]), uint32(i)}
	}
	// A call that has ended treats the rest as equal: then sorting ends soon.
	steps := 0
	slices.SortFunc(list, func(x, y item) int {
		if steps++; steps%partRows == 0 && err == nil {
			err = c.Err()
		}
		if err != nil {
			return 0
		}
		if x.word != y.word {
			return cmp.Compare(x.word, y.word)
		}
		return bytes.Compare(k.text.at(int(first[x.row])), k.text.at(int(first[y.row])))
	})
	if err != nil {
		return err
	}
	ranks := Room[uint64](c, int(count))
	for rank, x := range list {
		ranks[x.row] = uint64(rank)
	}
	words := Room[uint64](c, o.n)
	o.words = [][]uint64{words}
	return c.inParts(o.n, partRows, func(from, to int) error {
		for i := from; i < to; i++ {
			if n := numbers[0][i]; n != None {
				words[i] = ranks[n]
			}
		}
		return nil
	})
}

// orderOfCodes makes words of the values that codes stand for. Codes of an ordered dictionary are
// in the order of its values.
func (c *Call) orderOfCodes(o *order, k *keys, a *array.Dictionary, verb string) error {
	values := &order{n: k.codes.values.n}
	if a.DataType().(*arrow.DictionaryType).Ordered {
		ranks := Room[uint64](c, values.n)
		for i := range ranks {
			ranks[i] = uint64(i)
		}
		values.words = [][]uint64{ranks}
	} else {
		var err error
		if values, err = c.orderOf(a.Dictionary(), verb); err != nil {
			return err
		}
	}
	o.valid, o.floats = bitmap{Room[uint8](c, (o.n+7)/8), 0}, values.floats
	for range values.words {
		o.words = append(o.words, Room[uint64](c, o.n))
	}
	return c.inParts(o.n, partRows, func(from, to int) error {
		for i := from; i < to; i++ {
			place := k.codes.places[i]
			if place == None {
				continue
			}
			o.valid.bits[i/8] |= 1 << (i % 8)
			for part, words := range values.words {
				o.words[part][i] = words[place]
			}
		}
		return nil
	})
}
