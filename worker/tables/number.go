package tables

import (
	"bytes"
	"hash/maphash"
	"math"
)

// numberRows gives the rows of tables numbers: rows have the same number if and only if their
// values are equal in all columns. Numbers begin with 0, in the order of first appearance, and
// count is one more than the last. columns has the values of each column, by table. If nulls is
// false, a row with a null has None.
func (c *Call) numberRows(columns [][]*keys, nulls bool) (numbers [][]uint32, count uint32, err error) {
	for i, parts := range columns {
		next, nextCount, err := c.number(parts, nulls)
		if err != nil {
			return nil, 0, err
		}
		if i == 0 {
			numbers, count = next, nextCount
			continue
		}
		pairs := make([]*keys, len(parts))
		for part := range parts {
			if pairs[part], err = c.pairs(numbers[part], next[part], nextCount); err != nil {
				return nil, 0, err
			}
		}
		if numbers, count, err = c.number(pairs, false); err != nil {
			return nil, 0, err
		}
	}
	return numbers, count, nil
}

// pairs returns a word for each pair of numbers, of which the second is less than count. It is null
// if one of them is None.
func (c *Call) pairs(first, second []uint32, count uint32) (*keys, error) {
	k := &keys{n: len(first), words: Room[uint64](c, len(first)), valid: bitmap{bits: Room[uint8](c, (len(first)+7)/8)}}
	return k, c.inParts(k.n, partRows, func(from, to int) error {
		for i := from; i < to; i++ {
			if first[i] != None && second[i] != None {
				k.words[i] = uint64(first[i])*uint64(count) + uint64(second[i])
				k.valid.bits[i/8] |= 1 << (i % 8)
			}
		}
		return nil
	})
}

// number gives the values of one column of several tables numbers, as numberRows does.
func (c *Call) number(parts []*keys, nulls bool) ([][]uint32, uint32, error) {
	plain, hasCodes, hasText := make([]*keys, len(parts)), false, false
	for i, k := range parts {
		if plain[i] = k; k.codes != nil {
			plain[i], hasCodes = k.codes.values, true
		}
		hasText = hasText || k.text != nil
	}
	if hasCodes {
		// The values get numbers first, and the rows then numbers in the order of their appearance.
		numbers, _, err := c.number(plain, false)
		if err != nil {
			return nil, 0, err
		}
		for i, k := range parts {
			if plain[i], err = c.decoded(k, numbers[i]); err != nil {
				return nil, 0, err
			}
		}
	}
	x := &numbering{nulls: nulls, null: None, parts: plain}
	out := make([][]uint32, len(plain))
	for i, k := range plain {
		out[i] = Room[uint32](c, k.n)
	}
	add := x.addWords
	if hasText && !hasCodes {
		add = x.addTexts
	}
	err := add(c, out)
	return out, x.count, err
}

// decoded returns numbers of values as words of the rows that have these values.
func (c *Call) decoded(k *keys, numbers []uint32) (*keys, error) {
	d := &keys{n: k.n, words: Room[uint64](c, k.n), valid: bitmap{bits: Room[uint8](c, (k.n+7)/8)}}
	return d, c.inParts(k.n, partRows, func(from, to int) error {
		for i := from; i < to; i++ {
			number := None
			switch {
			case k.codes == nil:
				number = numbers[i]
			case k.codes.places[i] != None:
				number = numbers[k.codes.places[i]]
			}
			if number != None {
				d.words[i] = uint64(number)
				d.valid.bits[i/8] |= 1 << (i % 8)
			}
		}
		return nil
	})
}

// numbering gives values numbers in the order of their first appearance.
type numbering struct {
	parts []*keys
	nulls bool   // null has a number, too
	null  uint32 // that of null; None: it has none yet
	count uint32
	// direct has the numbers of the words from low on, plus one; nil: slots has them.
	direct []uint32
	low    uint64
	slots  []slot
	shift  uint // of hashes, whose upper bits are the place in slots
	seed   maphash.Seed
}

// slot has a word and its number plus one; 0: it is free. Of a text it has the hash, and the part
// and row where it was met first.
type slot struct {
	word  uint64
	next  uint32
	place uint32
}

// nullNumber returns the number of null.
func (x *numbering) nullNumber() uint32 {
	if x.null == None && x.nulls {
		x.null = x.count
		x.count++
	}
	return x.null
}

// directWords is the number of words for which a table of all words is used at any number of rows.
const directWords = 1 << 12

// flip brings signed numbers into the order of unsigned ones.
const flip = 1 << 63

// addWords numbers words. A table of all words from the least to the largest is used if it is small
// beside the columns.
func (x *numbering) addWords(c *Call, out [][]uint32) error {
	low, high, rows := uint64(math.MaxUint64), uint64(0), 0
	for _, k := range x.parts {
		rows += k.n
		if k.words == nil {
			continue
		}
		if err := c.inOrder(k.n, func(from, to int) {
			for i, w := range k.words[from:to] {
				if k.has(from + i) {
					low, high = min(low, w^flip), max(high, w^flip)
				}
			}
		}); err != nil {
			return err
		}
	}
	if low > high { // all are null
		low, high = 0, 0
	}
	add := x.addSlots
	if span := high - low; span < directWords || span < uint64(rows) {
		x.low, x.direct, add = low^flip, Room[uint32](c, int(span)+1), x.addDirect
	} else {
		x.slots, x.shift = Room[slot](c, leastSlots), 64-leastShift
	}
	for part, k := range x.parts {
		if err := c.inOrder(k.n, func(from, to int) {
			if k.words == nil {
				for i := from; i < to; i++ {
					out[part][i] = x.nullNumber()
				}
				return
			}
			add(c, k, from, k.words[from:to], out[part][from:to])
		}); err != nil {
			return err
		}
	}
	return nil
}

// addDirect numbers words from a row on, by the table of all words.
func (x *numbering) addDirect(_ *Call, k *keys, first int, words []uint64, out []uint32) {
	direct, low := x.direct, x.low
	for i, w := range words {
		if !k.has(first + i) {
			out[i] = x.nullNumber()
			continue
		}
		at := &direct[w-low]
		if *at == 0 {
			x.count++
			*at = x.count
		}
		out[i] = *at - 1
	}
}

// addSlots numbers words from a row on, by a hash table.
func (x *numbering) addSlots(c *Call, k *keys, first int, words []uint64, out []uint32) {
	for i, w := range words {
		if !k.has(first + i) {
			out[i] = x.nullNumber()
			continue
		}
		at := x.wordPlace(w)
		if at.next == 0 {
			if x.grown(c, mixed) {
				at = x.wordPlace(w)
			}
			x.count++
			*at = slot{word: w, next: x.count}
		}
		out[i] = at.next - 1
	}
}

const (
	leastShift = 10
	leastSlots = 1 << leastShift
)

// wordPlace returns the slot of a word, or the free one where it belongs.
func (x *numbering) wordPlace(w uint64) *slot {
	slots, mask := x.slots, uint64(len(x.slots)-1)
	for at := mixed(w) >> x.shift; ; at++ {
		s := &slots[at&mask]
		if s.next == 0 || s.word == w {
			return s
		}
	}
}

// grown makes room for one more value, and says whether the slots have moved. At least half of them
// are free. hash returns the hash of a word of a slot.
func (x *numbering) grown(c *Call, hash func(uint64) uint64) bool {
	if uint64(x.count) < uint64(len(x.slots)/2) {
		return false
	}
	old := x.slots
	x.slots = Room[slot](c, growth*len(old))
	x.shift -= growthShift
	mask := uint64(len(x.slots) - 1)
	for i := range old {
		if old[i].next == 0 {
			continue
		}
		at := hash(old[i].word) >> x.shift
		for x.slots[at&mask].next != 0 {
			at++
		}
		x.slots[at&mask] = old[i]
	}
	return true
}

const (
	growthShift = 2
	growth      = 1 << growthShift
)

// addTexts numbers texts. Texts with one hash are compared.
func (x *numbering) addTexts(c *Call, out [][]uint32) error {
	x.slots, x.shift, x.seed = Room[slot](c, leastSlots), 64-leastShift, maphash.MakeSeed()
	before := uint32(0)
	for part, k := range x.parts {
		if err := c.inOrder(k.n, func(from, to int) {
			for i := from; i < to; i++ {
				if k.text == nil || !k.has(i) {
					out[part][i] = x.nullNumber()
					continue
				}
				text := k.text.at(i)
				hash := maphash.Bytes(x.seed, text)
				at := x.textPlace(hash, text)
				if at.next == 0 {
					if x.grown(c, same) {
						at = x.textPlace(hash, text)
					}
					x.count++
					*at = slot{hash, x.count, before + uint32(i)}
				}
				out[part][i] = at.next - 1
			}
		}); err != nil {
			return err
		}
		before += uint32(k.n)
	}
	return nil
}

func same(hash uint64) uint64 { return hash }

// textPlace returns the slot of a text, or the free one where it belongs.
func (x *numbering) textPlace(hash uint64, text []byte) *slot {
	mask := uint64(len(x.slots) - 1)
	for at := hash >> x.shift; ; at++ {
		s := &x.slots[at&mask]
		if s.next == 0 || s.word == hash && bytes.Equal(x.textAt(s.place), text) {
			return s
		}
	}
}

// textAt returns the text at a place, which counts the rows of all parts.
func (x *numbering) textAt(place uint32) []byte {
	part := 0
	for place >= uint32(x.parts[part].n) {
		place -= uint32(x.parts[part].n)
		part++
	}
	return x.parts[part].text.at(int(place))
}

// firstRows returns the row at which each number appears first.
func (c *Call) firstRows(numbers []uint32, count uint32) ([]uint32, error) {
	rows, next := Room[uint32](c, int(count)), uint32(0)
	return rows, c.inOrder(len(numbers), func(from, to int) {
		for i, n := range numbers[from:to] {
			if n == next {
				rows[next] = uint32(from + i)
				next++
			}
		}
	})
}
