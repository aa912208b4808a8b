package tables

import (
	"bytes"
	"fmt"

	"github.com/apache/arrow-go/v18/arrow"
)

// addCodes plans the dictionary, which is the same one in all spans.
func (b *concatenation) addCodes(c *stacked) error {
	first := c.spans[0].data.Dictionary()
	for i := range c.spans {
		if d := c.spans[i].data.Dictionary(); !sameBytes(d, first) {
			return fmt.Errorf("its dictionary differs from that of table %d: cast the column to the type of its values", i)
		}
	}
	b.dictionaries = append(b.dictionaries, values{name: b.name, kind: c.dictionary.ValueType, spans: []span{wholeSpan(first)}})
	return nil
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
