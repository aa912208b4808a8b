package tables

import (
	"bytes"
	"fmt"
	"hash/maphash"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
)

// addCodes plans one dictionary that has the values of the dictionaries of all spans: first all
// those of the first one, with their codes, then those that others have in addition.
func (b *concatenation) addCodes(c *stacked) error {
	first := c.spans[0].data.Dictionary()
	all := values{name: b.name, kind: c.dictionary.ValueType, spans: []span{wholeSpan(first)}}
	u := &union{Call: b.call, kind: c.dictionary.ValueType}
	count := int64(first.Len())
	for i := range c.spans {
		d := c.spans[i].data.Dictionary()
		if d.Len() == 0 || sameBytes(d, first) {
			continue
		}
		if u.parts == nil {
			if err := u.begin(c.spans); err != nil {
				return err
			}
		}
		codes, added, err := u.add(d, uint32(count))
		if err != nil {
			return err
		}
		if codes != nil && c.dictionary.Ordered {
			return fmt.Errorf("its dictionary has an order, and that of table %d has another one: cast the column to the type of its values", i)
		}
		if codes != nil && c.codes == nil {
			c.codes = make([][]uint32, len(c.spans))
		}
		if codes != nil {
			c.codes[i] = codes
		}
		switch {
		case len(added) == 0:
		case len(added) == d.Len():
			all.spans = append(all.spans, wholeSpan(d))
		default:
			further, err := b.call.Take(b.name, array.MakeFromData(d), added)
			if err != nil {
				return err
			}
			all.spans = append(all.spans, wholeSpan(further.Data()))
		}
		count += int64(len(added))
	}
	// A dictionary that stays may have values without a code.
	if bits := 8*c.width - signBits(c.dictionary); bits < 32 && count > 1<<bits && (len(all.spans) > 1 || c.codes != nil) {
		return fmt.Errorf("the tables together have %d categories, and its codes of type %s can tell %d apart: cast the column to the type of its values",
			count, c.dictionary.IndexType, 1<<bits)
	}
	b.dictionaries = append(b.dictionaries, all)
	return nil
}

// signBits returns the number of bits of a code that say its sign.
func signBits(d *arrow.DictionaryType) int {
	if arrow.IsSignedInteger(d.IndexType.ID()) {
		return 1
	}
	return 0
}

func wholeSpan(data arrow.ArrayData) span {
	return span{data: data, first: int64(data.Offset()), rows: int64(data.Len())}
}

// sameBytes says whether two arrays of one type are the same, or copies of each other. Equal arrays
// may have different bytes.
func sameBytes(a, b arrow.ArrayData) bool {
	if a == b {
		return true
	}
	if a.Len() != b.Len() || a.Offset() != b.Offset() || len(a.Buffers()) != len(b.Buffers()) || len(a.Children()) != len(b.Children()) {
		return false
	}
	for i := range a.Buffers() {
		if !bytes.Equal(bufferAt(a, i), bufferAt(b, i)) {
			return false
		}
	}
	for i, child := range a.Children() {
		if !sameBytes(child, b.Children()[i]) {
			return false
		}
	}
	return storage(a.DataType()).ID() != arrow.DICTIONARY || sameBytes(a.Dictionary(), b.Dictionary())
}

// union finds the values of several dictionaries that are equal, byte by byte.
type union struct {
	*Call
	kind arrow.DataType
	seed maphash.Seed
	// places has the places of values in parts, by their hash: 0 if there is none, else the place
	// plus one in the lower half, and a half of the hash in the upper one. Its length is a power of
	// two, and more than the number of values.
	places []uint64
	// parts are the dictionaries. Value v of part p has the place of the values before it, plus v.
	parts []arrow.ArrayData
	// owners are the parts of the values that are in places, rows their rows there, and codes their
	// codes in the result.
	owners, rows, codes []uint32
	count               int
	// one and two are the bytes of values.
	one, two valueKey
}

// begin takes memory for the values of all spans, and adds those of the first one.
func (u *union) begin(spans []span) error {
	var total int64
	for i := range spans {
		if d := spans[i].data.Dictionary(); i == 0 || !sameBytes(d, spans[0].data.Dictionary()) {
			total += int64(d.Len())
		}
	}
	if err := Check(total); err != nil {
		return fmt.Errorf("its dictionaries together: %w", err)
	}
	size := 1
	for int64(size) <= total*3/2 {
		size *= 2
	}
	u.one.Call, u.two.Call = u.Call, u.Call
	u.seed, u.places = maphash.MakeSeed(), Room[uint64](u.Call, size)
	u.owners, u.rows, u.codes = anyRoom[uint32](u.Call, int(total)), anyRoom[uint32](u.Call, int(total)), anyRoom[uint32](u.Call, int(total))
	first := spans[0].data.Dictionary()
	u.parts = append(u.parts, first)
	return u.inOrderErr(first.Len(), func(row int) error {
		_, _, err := u.find(0, row, uint32(row))
		return err
	})
}

// inOrderErr calls f for the numbers from 0 to n-1, until it returns an error.
func (u *union) inOrderErr(n int, f func(i int) error) error {
	var failure error
	err := u.inOrder(n, func(from, to int) {
		for i := from; i < to && failure == nil; i++ {
			failure = f(i)
		}
	})
	if failure != nil {
		return failure
	}
	return err
}

// add adds the values of a dictionary. The first new one has the code next. It returns the codes of
// all values, or nil if these are their rows, and the rows of new values.
func (u *union) add(d arrow.ArrayData, next uint32) (codes, added []uint32, err error) {
	u.parts = append(u.parts, d)
	codes, added = anyRoom[uint32](u.Call, d.Len()), anyRoom[uint32](u.Call, d.Len())[:0]
	same := true
	err = u.inOrderErr(d.Len(), func(row int) error {
		code, found, err := u.find(len(u.parts)-1, row, next+uint32(len(added)))
		if !found {
			added = append(added, uint32(row))
		}
		codes[row] = code
		same = same && code == uint32(row)
		return err
	})
	if same {
		codes = nil
	}
	return codes, added, err
}

// find returns the code of a value of a part. If it is new, it gets the code next.
func (u *union) find(part, row int, next uint32) (code uint32, found bool, err error) {
	if err := u.one.set(u.parts[part], u.kind, row); err != nil {
		return 0, false, err
	}
	hash := maphash.Bytes(u.seed, u.one.bytes)
	mask := uint64(len(u.places) - 1)
	for at := hash & mask; ; at = (at + 1) & mask {
		entry := u.places[at]
		if entry == 0 {
			u.owners[u.count], u.rows[u.count], u.codes[u.count] = uint32(part), uint32(row), next
			u.count++
			u.places[at] = hash>>32<<32 | uint64(u.count)
			return next, false, nil
		}
		if entry>>32 != hash>>32 {
			continue
		}
		place := uint32(entry) - 1
		if err := u.two.set(u.parts[u.owners[place]], u.kind, int(u.rows[place])); err != nil {
			return 0, false, err
		}
		if bytes.Equal(u.one.bytes, u.two.bytes) {
			return u.codes[place], true, nil
		}
	}
}
