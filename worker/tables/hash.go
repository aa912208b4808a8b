// Package tables is an Adapter: operations on tables of Arrow in host memory.
package tables

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/bitutil"
)

// The constants of the hash; docs/shuffle.md describes it.
const (
	missing uint64 = 0x6C8E9CF570932BD5
	first   uint64 = 0x9E3779B97F4A7C15
	second  uint64 = 0xBF58476D1CE4E5B9
	// base is the base of the polynomial that hashes text of more than words bytes.
	base uint64 = 0x5851F42D4C957F2D
)

// words is the size of the longest text, in bytes, that is hashed by words of 8 bytes.
const words = 64

// Hashes returns the hash of each value of a column, the same as that of the Python client: equal
// keys have equal hashes, whatever their type is. Its errors name the column: a type may have no
// hash, and the data may be damaged.
func Hashes(name string, column arrow.Array) ([]uint64, error) {
	out, err := hashesOf(column)
	if err != nil {
		return nil, fmt.Errorf("column %q: %w", name, err)
	}
	return out, nil
}

// Numbers returns the partition of each row, from 0 to n-1, by the hashes of its columns, which
// have equal lengths.
func Numbers(hashes [][]uint64, n uint32) []uint32 {
	if len(hashes) == 0 {
		return nil
	}
	out := make([]uint32, len(hashes[0]))
	for row := range out {
		h := hashes[0][row]
		for _, other := range hashes[1:] {
			h = h*first + other[row]
		}
		if len(hashes) > 1 {
			h = mixed(h)
		}
		out[row] = uint32((h >> 32) * uint64(n) >> 32)
	}
	return out
}

// mixed spreads each bit over all bits of the result.
func mixed(bits uint64) uint64 {
	bits *= first
	bits ^= bits >> 32
	bits *= second
	return bits ^ bits>>32
}

func ofFloat(v float64) uint64 {
	switch {
	case v != v:
		return missing
	case v == 0: // also -0.0
		return mixed(0)
	}
	return mixed(math.Float64bits(v))
}

func ofBytes(text []byte) uint64 {
	h := uint64(len(text))
	if len(text) > words {
		h = 0
		power := uint64(1)
		for _, b := range text {
			h += (uint64(b) + 1) * power
			power *= base
		}
		return mixed(h)
	}
	for ; len(text) >= 8; text = text[8:] {
		h = (h ^ binary.LittleEndian.Uint64(text)) * first
		h ^= h >> 32
	}
	if len(text) > 0 {
		var word uint64
		for i, b := range text {
			word |= uint64(b) << (8 * i)
		}
		h = (h ^ word) * first
		h ^= h >> 32
	}
	return mixed(h)
}

// hashesOf returns the hashes of an array.
func hashesOf(a arrow.Array) ([]uint64, error) {
	valid, offset := a.NullBitmapBytes(), a.Data().Offset()
	if len(valid) > 0 && int64(len(valid))*8 < int64(offset)+int64(a.Len()) {
		return nil, fmt.Errorf("the validity of %d rows has only %d bytes", a.Len(), len(valid))
	}
	out, err := hashesOfAll(a)
	if err != nil || len(valid) == 0 {
		return out, err
	}
	for i := range out {
		if bitutil.BitIsNotSet(valid, offset+i) {
			out[i] = missing
		}
	}
	return out, nil
}

// hashesOfAll returns the hashes of an array; those of missing values have no meaning, except if
// the type has no validity of its own.
func hashesOfAll(a arrow.Array) ([]uint64, error) {
	switch a := a.(type) {
	case *array.Null:
		return slices.Repeat([]uint64{missing}, a.Len()), nil
	case *array.Boolean:
		return ofEach(a.Len(), func(i int) uint64 {
			if a.Value(i) {
				return ofFloat(1)
			}
			return ofFloat(0)
		}), nil
	case *array.Int8:
		return ofNumbers(a.Int8Values()), nil
	case *array.Int16:
		return ofNumbers(a.Int16Values()), nil
	case *array.Int32:
		return ofNumbers(a.Int32Values()), nil
	case *array.Int64:
		return ofNumbers(a.Int64Values()), nil
	case *array.Uint8:
		return ofNumbers(a.Uint8Values()), nil
	case *array.Uint16:
		return ofNumbers(a.Uint16Values()), nil
	case *array.Uint32:
		return ofNumbers(a.Uint32Values()), nil
	case *array.Uint64:
		return ofNumbers(a.Uint64Values()), nil
	case *array.Float16:
		return ofEach(a.Len(), func(i int) uint64 { return ofFloat(float64(a.Value(i).Float32())) }), nil
	case *array.Float32:
		return ofNumbers(a.Float32Values()), nil
	case *array.Float64:
		return ofNumbers(a.Float64Values()), nil
	case *array.Dictionary:
		return ofCodes(a)
	case *array.Struct:
		return ofStruct(a)
	case array.ExtensionArray:
		return hashesOf(a.Storage())
	case *array.RunEndEncoded:
		return ofRuns(a)
	}
	if out := ofTimes(a); out != nil {
		return out, nil
	}
	if out := ofDecimals(a); out != nil {
		return out, nil
	}
	return ofSequences(a)
}

type number interface {
	~int8 | ~int16 | ~int32 | ~int64 | ~uint8 | ~uint16 | ~uint32 | ~uint64 | ~float32 | ~float64
}

func ofNumbers[T number](values []T) []uint64 {
	out := make([]uint64, len(values))
	for i, v := range values {
		out[i] = ofFloat(float64(v))
	}
	return out
}

func ofEach(n int, f func(i int) uint64) []uint64 {
	out := make([]uint64, n)
	for i := range out {
		out[i] = f(i)
	}
	return out
}

func ofCodes(a *array.Dictionary) ([]uint64, error) {
	values, err := hashesOf(a.Dictionary())
	if err != nil {
		return nil, err
	}
	out := make([]uint64, a.Len())
	for i := range out {
		if a.IsNull(i) {
			continue
		}
		code := a.GetValueIndex(i)
		if code < 0 || code >= len(values) {
			return nil, fmt.Errorf("row %d has the code %d of %d categories", i, code, len(values))
		}
		out[i] = values[code]
	}
	return out, nil
}

func ofStruct(a *array.Struct) ([]uint64, error) {
	kind := a.DataType().(*arrow.StructType)
	fields := make([]int, a.NumField())
	for i := range fields {
		fields[i] = i
	}
	slices.SortStableFunc(fields, func(x, y int) int {
		return strings.Compare(kind.Field(x).Name, kind.Field(y).Name)
	})
	out := slices.Repeat([]uint64{uint64(len(fields))}, a.Len())
	for _, at := range fields {
		values, err := hashesOf(a.Field(at))
		if err != nil {
			return nil, err
		}
		if len(values) < len(out) {
			return nil, fmt.Errorf("field %q has %d of %d rows", kind.Field(at).Name, len(values), len(out))
		}
		for i := range out {
			out[i] = mixed(out[i]*first + values[i])
		}
	}
	return out, nil
}

func ofRuns(a *array.RunEndEncoded) ([]uint64, error) {
	values, err := hashesOf(a.Values())
	if err != nil {
		return nil, err
	}
	var end func(run int) int
	switch ends := a.RunEndsArr().(type) {
	case *array.Int16:
		end = func(run int) int { return int(ends.Value(run)) }
	case *array.Int32:
		end = func(run int) int { return int(ends.Value(run)) }
	case *array.Int64:
		end = func(run int) int { return int(ends.Value(run)) }
	}
	runs := min(a.RunEndsArr().Len(), len(values))
	out, run := make([]uint64, a.Len()), 0
	for i := range out {
		for run < runs && end(run) <= a.Offset()+i {
			run++
		}
		if run == runs {
			return nil, fmt.Errorf("the runs end before row %d", i)
		}
		out[i] = values[run]
	}
	return out, nil
}
