package tables

import (
	"fmt"
	"math"
	"math/big"
	"strconv"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
)

// ofTimes returns the hashes of dates, times and durations, by their microseconds, or nil for
// another type.
func ofTimes(a arrow.Array) []uint64 {
	switch a := a.(type) {
	case *array.Date32:
		return ofTicks(a.Date32Values(), 86_400_000_000, 1)
	case *array.Date64:
		return ofTicks(a.Date64Values(), 1000, 1)
	case *array.Time32:
		return ofUnits(a.Time32Values(), a.DataType().(*arrow.Time32Type).Unit)
	case *array.Time64:
		return ofUnits(a.Time64Values(), a.DataType().(*arrow.Time64Type).Unit)
	case *array.Timestamp:
		return ofUnits(a.TimestampValues(), a.DataType().(*arrow.TimestampType).Unit)
	case *array.Duration:
		return ofUnits(a.DurationValues(), a.DataType().(*arrow.DurationType).Unit)
	}
	return nil
}

func ofUnits[T ~int32 | ~int64](values []T, unit arrow.TimeUnit) []uint64 {
	switch unit {
	case arrow.Second:
		return ofTicks(values, 1_000_000, 1)
	case arrow.Millisecond:
		return ofTicks(values, 1000, 1)
	case arrow.Microsecond:
		return ofTicks(values, 1, 1)
	case arrow.Nanosecond:
		return ofTicks(values, 1, 1000)
	}
	return nil
}

// ofTicks hashes times of ticks of factor/divisor microseconds. The least integer is no time.
func ofTicks[T ~int32 | ~int64](values []T, factor, divisor int64) []uint64 {
	return ofEach(len(values), func(i int) uint64 {
		v := int64(values[i])
		if v == math.MinInt64 {
			return missing
		}
		v *= factor
		if divisor > 1 {
			rest := v % divisor
			v /= divisor
			if rest < 0 {
				v--
			}
		}
		return mixed(uint64(v))
	})
}

// ofDecimals returns the hashes of decimals, by the nearest floats, or nil for another type.
func ofDecimals(a arrow.Array) []uint64 {
	var value func(i int) *big.Int
	switch a := a.(type) {
	case *array.Decimal32:
		value = func(i int) *big.Int { return big.NewInt(int64(a.Value(i))) }
	case *array.Decimal64:
		value = func(i int) *big.Int { return big.NewInt(int64(a.Value(i))) }
	case *array.Decimal128:
		value = func(i int) *big.Int { return a.Value(i).BigInt() }
	case *array.Decimal256:
		value = func(i int) *big.Int { return a.Value(i).BigInt() }
	default:
		return nil
	}
	scale := int(a.DataType().(arrow.DecimalType).GetScale())
	return ofEach(a.Len(), func(i int) uint64 {
		v := value(i)
		if scale >= 0 && scale < 23 && v.IsInt64() {
			if small := v.Int64(); small > -1<<53 && small < 1<<53 {
				// The quotient of two exact floats is the float nearest to the decimal.
				return ofFloat(float64(small) / math.Pow10(scale))
			}
		}
		// A number above all floats is infinite, besides the error.
		nearest, _ := strconv.ParseFloat(v.String()+"e"+strconv.Itoa(-scale), 64)
		return ofFloat(nearest)
	})
}

// ofSequences returns the hashes of text, bytes and lists.
func ofSequences(a arrow.Array) ([]uint64, error) {
	switch kind := a.DataType().(type) {
	case *arrow.StringType, *arrow.BinaryType:
		return ofText(a, arrow.Int32Traits.CastFromBytes(buffer(a, 1)))
	case *arrow.LargeStringType, *arrow.LargeBinaryType:
		return ofText(a, arrow.Int64Traits.CastFromBytes(buffer(a, 1)))
	case *arrow.StringViewType, *arrow.BinaryViewType:
		return ofViews(a)
	case *arrow.FixedSizeBinaryType:
		width, data, from := kind.ByteWidth, buffer(a, 1), a.Data().Offset()
		if int64(from+a.Len())*int64(width) > int64(len(data)) {
			return nil, fmt.Errorf("%d rows of %d bytes are beyond the data", a.Len(), width)
		}
		return ofEach(a.Len(), func(i int) uint64 {
			return ofBytes(data[(from+i)*width : (from+i+1)*width])
		}), nil
	case *arrow.ListType:
		return ofList(a, a.(*array.List).ListValues(), arrow.Int32Traits.CastFromBytes(buffer(a, 1)))
	case *arrow.LargeListType:
		return ofList(a, a.(*array.LargeList).ListValues(), arrow.Int64Traits.CastFromBytes(buffer(a, 1)))
	case *arrow.FixedSizeListType:
		values, from := a.(*array.FixedSizeList).ListValues(), a.Data().Offset()
		ends := make([]int64, a.Len()+1)
		for i := range ends {
			ends[i] = int64(from+i) * int64(kind.Len())
		}
		if last := ends[a.Len()]; last > int64(values.Len()) {
			return nil, fmt.Errorf("%d rows need %d elements and have %d", from+a.Len(), last, values.Len())
		}
		return ofElements(values, ends)
	}
	return nil, fmt.Errorf("rows cannot be split by the hash of a column of type %s", a.DataType())
}

// buffer returns the bytes of a buffer of an array, which may have none.
func buffer(a arrow.Array, at int) []byte { return bufferAt(a.Data(), at) }

// rowEnds returns the offsets of the rows of an array, after a check: they ascend, up to limit.
func rowEnds[T int32 | int64](a arrow.Array, ends []T, limit int) ([]T, error) {
	if a.Len() == 0 {
		return make([]T, 1), nil
	}
	from, to := a.Data().Offset(), a.Data().Offset()+a.Len()
	if to >= len(ends) {
		return nil, fmt.Errorf("%d rows have only %d offsets", to, len(ends))
	}
	ends = ends[from : to+1]
	for i, end := range ends {
		if end < 0 || int64(end) > int64(limit) || i > 0 && end < ends[i-1] {
			return nil, fmt.Errorf("the offset %d of row %d is out of range", end, i)
		}
	}
	return ends, nil
}

func ofText[T int32 | int64](a arrow.Array, ends []T) ([]uint64, error) {
	data := buffer(a, 2)
	ends, err := rowEnds(a, ends, len(data))
	if err != nil {
		return nil, err
	}
	return ofEach(a.Len(), func(i int) uint64 { return ofBytes(data[ends[i]:ends[i+1]]) }), nil
}

func ofViews(a arrow.Array) ([]uint64, error) {
	headers, from := arrow.ViewHeaderTraits.CastFromBytes(buffer(a, 1)), a.Data().Offset()
	if len(headers) < from+a.Len() {
		return nil, fmt.Errorf("%d rows have only %d views", from+a.Len(), len(headers))
	}
	out := make([]uint64, a.Len())
	for i := range out {
		if a.IsNull(i) {
			continue
		}
		h := &headers[from+i]
		if h.Len() < 0 {
			return nil, fmt.Errorf("row %d has the length %d", i, h.Len())
		}
		if h.IsInline() {
			out[i] = ofBytes(h.InlineBytes())
			continue
		}
		at, size := int64(h.BufferOffset()), int64(h.Len())
		var data []byte
		if h.BufferIndex() >= 0 {
			data = buffer(a, int(h.BufferIndex())+2)
		}
		if at < 0 || at+size > int64(len(data)) {
			return nil, fmt.Errorf("the view of row %d is out of range", i)
		}
		out[i] = ofBytes(data[at : at+size])
	}
	return out, nil
}

func ofList[T int32 | int64](a, values arrow.Array, ends []T) ([]uint64, error) {
	ends, err := rowEnds(a, ends, values.Len())
	if err != nil {
		return nil, err
	}
	return ofElements(values, ends)
}

// ofElements returns the hashes of lists, of which each has the elements from its offset to the
// next one. The offsets are inside of values.
func ofElements[T int32 | int64](values arrow.Array, ends []T) ([]uint64, error) {
	part := array.NewSlice(values, int64(ends[0]), int64(ends[len(ends)-1]))
	defer part.Release()
	elements, err := hashesOf(part)
	if err != nil {
		return nil, err
	}
	return ofEach(len(ends)-1, func(i int) uint64 {
		row := elements[ends[i]-ends[0] : ends[i+1]-ends[0]]
		sum := uint64(len(row))
		for place, h := range row {
			sum += mixed(h*first + uint64(place))
		}
		return mixed(sum)
	}), nil
}
