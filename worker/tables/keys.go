package tables

import (
	"fmt"
	"math"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/bitutil"
	"github.com/apache/arrow-go/v18/arrow/float16"
)

// keys are the values of a column in a form that is compared fast: equal values, and only these,
// have equal words, or equal texts. NaN equals NaN, and -0.0 equals 0.0.
type keys struct {
	n     int
	valid bitmap
	// Exactly one of the next three has the values; all of them nil: each value is null.
	words []uint64
	text  *texts
	codes *codes
	// kind names the types whose values can equal each other; "": all values are null.
	kind string
}

// codes are the values of a dictionary column: codes of values.
type codes struct {
	places []uint32 // None for null
	values *keys
}

// has says whether a value is not null.
func (k *keys) has(row int) bool { return k.valid.has(row) }

// bitmap says which values are not null.
type bitmap struct {
	bits   []byte // empty: none is null
	offset int
}

// nullsOf returns the bitmap of an array.
func nullsOf(a arrow.Array) bitmap { return bitmap{a.NullBitmapBytes(), a.Data().Offset()} }

// has says whether a value is not null.
func (b *bitmap) has(row int) bool { return len(b.bits) == 0 || bit(b.bits, b.offset+row) != 0 }

// texts are bytes of different lengths.
type texts struct {
	data   []byte
	narrow []int32 // offsets, one more than texts
	wide   []int64 // the same, for large types
	width  int     // the bytes of each text, if there are no offsets
	views  *views
}

// at returns a text. It is not that of a null view.
func (t *texts) at(row int) []byte {
	switch {
	case t.narrow != nil:
		return t.data[t.narrow[row]:t.narrow[row+1]]
	case t.wide != nil:
		return t.data[t.wide[row]:t.wide[row+1]]
	case t.views != nil:
		return t.views.at(row)
	}
	return t.data[row*t.width : (row+1)*t.width]
}

// keysOf returns the values of an array. verb says what shall be done with them.
func (c *Call) keysOf(a arrow.Array, verb string) (*keys, error) {
	if e, ok := a.(array.ExtensionArray); ok {
		return c.keysOf(e.Storage(), verb)
	}
	k := &keys{n: a.Len(), valid: nullsOf(a), kind: "integers"}
	if bits := k.valid.bits; len(bits) > 0 && int64(len(bits))*8 < int64(k.valid.offset)+int64(k.n) {
		return nil, fmt.Errorf("the validity of %d rows has only %d bytes", k.n, len(bits))
	}
	err := c.fill(k, a, verb)
	return k, err
}

func (c *Call) fill(k *keys, a arrow.Array, verb string) (err error) {
	kind := a.DataType()
	switch a := a.(type) {
	case *array.Null:
		k.kind = ""
	case *array.Boolean:
		k.kind = "bools"
		k.words, err = c.boolWords(a)
	case *array.Int8:
		k.words, err = wordsOf(c, a.Int8Values())
	case *array.Int16:
		k.words, err = wordsOf(c, a.Int16Values())
	case *array.Int32:
		k.words, err = wordsOf(c, a.Int32Values())
	case *array.Int64:
		k.words = elements[uint64](bytesOf(a.Int64Values()))
	case *array.Uint8:
		k.words, err = wordsOf(c, a.Uint8Values())
	case *array.Uint16:
		k.words, err = wordsOf(c, a.Uint16Values())
	case *array.Uint32:
		k.words, err = wordsOf(c, a.Uint32Values())
	case *array.Uint64:
		k.kind, k.words = "integers of uint64", a.Uint64Values()
	case *array.Float16:
		k.kind = "numbers of float16"
		k.words, err = floatWords(c, a.Values(), func(v float16.Num) float64 { return float64(v.Float32()) })
	case *array.Float32:
		k.kind = "numbers of float32"
		k.words, err = floatWords(c, a.Float32Values(), func(v float32) float64 { return float64(v) })
	case *array.Float64:
		k.kind = "numbers of float64"
		k.words, err = floatWords(c, a.Float64Values(), func(v float64) float64 { return v })
	case *array.Date32:
		k.kind = kind.String()
		k.words, err = wordsOf(c, a.Date32Values())
	case *array.Date64:
		k.kind, k.words = kind.String(), elements[uint64](bytesOf(a.Date64Values()))
	case *array.Time32:
		k.kind = kind.String()
		k.words, err = wordsOf(c, a.Time32Values())
	case *array.Time64:
		k.kind, k.words = kind.String(), elements[uint64](bytesOf(a.Time64Values()))
	case *array.Timestamp:
		k.kind, k.words = kind.String(), elements[uint64](bytesOf(a.TimestampValues()))
	case *array.Duration:
		k.kind, k.words = kind.String(), elements[uint64](bytesOf(a.DurationValues()))
	case *array.String, *array.LargeString, *array.StringView:
		k.kind = "texts"
		k.text, err = textsOf(a)
	case *array.Binary, *array.LargeBinary, *array.BinaryView:
		k.kind = "bytes"
		k.text, err = textsOf(a)
	case *array.FixedSizeBinary, *array.Decimal128, *array.Decimal256, *array.Decimal64, *array.Decimal32:
		k.kind = kind.String()
		k.text, err = textsOf(a)
	case *array.Dictionary:
		k.codes, err = c.codesOf(a, verb)
		if err == nil {
			k.kind = k.codes.values.kind
		}
	default:
		return fmt.Errorf("values of type %s cannot be %s: cast them to a number or a text", kind, verb)
	}
	return err
}

// wordsOf widens integers.
func wordsOf[T ~int8 | ~int16 | ~int32 | ~uint8 | ~uint16 | ~uint32](c *Call, values []T) ([]uint64, error) {
	words := Room[uint64](c, len(values))
	return words, c.inParts(len(values), partRows, func(from, to int) error {
		out := words[from:to]
		for i, v := range values[from:to] {
			out[i] = uint64(int64(v))
		}
		return nil
	})
}

func floatWords[T any](c *Call, values []T, wide func(T) float64) ([]uint64, error) {
	words := Room[uint64](c, len(values))
	return words, c.inParts(len(values), partRows, func(from, to int) error {
		out := words[from:to]
		for i, value := range values[from:to] {
			v := wide(value)
			switch {
			case v != v:
				out[i] = math.Float64bits(math.NaN())
			case v == 0:
				out[i] = 0
			default:
				out[i] = math.Float64bits(v)
			}
		}
		return nil
	})
}

func (c *Call) boolWords(a *array.Boolean) ([]uint64, error) {
	words, data, offset := Room[uint64](c, a.Len()), buffer(a, 1), a.Data().Offset()
	return words, c.inParts(len(words), partRows, func(from, to int) error {
		for i := from; i < to; i++ {
			if bitutil.BitIsSet(data, offset+i) {
				words[i] = 1
			}
		}
		return nil
	})
}

// textsOf returns the texts of an array, after a check of its offsets.
func textsOf(a arrow.Array) (*texts, error) {
	t := &texts{data: buffer(a, 2)}
	var err error
	switch a.(type) {
	case *array.String, *array.Binary:
		t.narrow, err = rowEnds(a, elements[int32](buffer(a, 1)), len(t.data))
	case *array.LargeString, *array.LargeBinary:
		t.wide, err = rowEnds(a, elements[int64](buffer(a, 1)), len(t.data))
	case *array.StringView, *array.BinaryView:
		var v views
		v, err = viewsOf(a)
		t.views = &v
	default:
		t.width = a.DataType().(arrow.FixedWidthDataType).BitWidth() / 8
		from := a.Data().Offset() * t.width
		to := from + a.Len()*t.width
		if data := buffer(a, 1); to <= len(data) {
			t.data = data[from:to]
		} else {
			err = fmt.Errorf("%d rows of %d bytes are beyond the data", a.Len(), t.width)
		}
	}
	return t, err
}

func (c *Call) codesOf(a *array.Dictionary, verb string) (*codes, error) {
	values, err := c.keysOf(a.Dictionary(), verb)
	if err != nil {
		return nil, err
	}
	if values.codes != nil {
		return nil, fmt.Errorf("values of type %s cannot be %s: cast them to a number or a text", a.DataType(), verb)
	}
	if int64(values.n) > int64(None) {
		return nil, fmt.Errorf("its dictionary has %d values, and %d can be counted: cast the column to the type of its values", values.n, None)
	}
	indices, err := c.keysOf(a.Indices(), verb)
	if err != nil {
		return nil, err
	}
	places := Room[uint32](c, a.Len())
	return &codes{places, values}, c.inParts(len(places), partRows, func(from, to int) error {
		for i := from; i < to; i++ {
			if !indices.has(i) {
				places[i] = None
				continue
			}
			code := indices.words[i]
			if code >= uint64(values.n) {
				return fmt.Errorf("row %d has the code %d of %d values", i, int64(code), values.n)
			}
			places[i] = None
			if values.has(int(code)) {
				places[i] = uint32(code)
			}
		}
		return nil
	})
}
