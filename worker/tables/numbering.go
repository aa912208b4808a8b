package tables

import (
	"fmt"
	"slices"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
)

// ByHash numbers rows by the hash of some columns: rows with equal keys have one number, from 0 to
// n-1, whatever their types are. It is the partition of the Python client.
func ByHash(names []string, columns []arrow.Array, n int) (Numbering, error) {
	hashes := make([]func(from, to int) ([]uint64, error), len(columns))
	for i, column := range columns {
		var err error
		if hashes[i], err = ranges(column); err != nil {
			return nil, fmt.Errorf("column %q: %w", names[i], err)
		}
	}
	return func(from int, into []uint32) error {
		of := make([][]uint64, len(columns))
		for i := range columns {
			var err error
			if of[i], err = hashes[i](from, from+len(into)); err != nil {
				return fmt.Errorf("column %q: %w", names[i], err)
			}
		}
		copy(into, Numbers(of, uint32(n)))
		return nil
	}, nil
}

// ranges returns a function that computes the hashes of a range of rows. Hashes of dictionaries are
// computed once.
func ranges(column arrow.Array) (func(from, to int) ([]uint64, error), error) {
	plain := column
	for {
		e, ok := plain.(array.ExtensionArray)
		if !ok {
			break
		}
		plain = e.Storage()
	}
	if d, ok := plain.(*array.Dictionary); ok {
		values, err := guarded(func() ([]uint64, error) { return hashesOf(d.Dictionary()) })
		if err != nil {
			return nil, err
		}
		codes, valid := codesOf(bufferAt(d.Data(), 1), d.DataType().(*arrow.DictionaryType).IndexType.(arrow.FixedWidthDataType).Bytes()), bufferAt(d.Data(), 0)
		return func(from, to int) ([]uint64, error) {
			out := make([]uint64, to-from)
			for i := range out {
				row := uint32(d.Data().Offset() + from + i)
				if len(valid) > 0 && bit(valid, row) == 0 {
					out[i] = missing
					continue
				}
				code := codes(row)
				if code >= uint64(len(values)) {
					return nil, fmt.Errorf("row %d has the code %d of %d categories", from+i, code, len(values))
				}
				out[i] = values[code]
			}
			return out, nil
		}, nil
	}
	if shared(plain.Data()) {
		all, err := guarded(func() ([]uint64, error) { return hashesOf(plain) })
		return func(from, to int) ([]uint64, error) { return all[from:to], nil }, err
	}
	return func(from, to int) ([]uint64, error) {
		return guarded(func() ([]uint64, error) {
			part := array.NewSlice(plain, int64(from), int64(to))
			defer part.Release()
			return hashesOf(part)
		})
	}, nil
}

// shared says whether the hash of a range of rows reads values of all rows: those of dictionaries
// and runs.
func shared(data arrow.ArrayData) bool {
	id := storage(data.DataType()).ID()
	return id == arrow.DICTIONARY || id == arrow.RUN_END_ENCODED || slices.ContainsFunc(data.Children(), shared)
}

// guarded returns a panic of arrow-go as an error: a table may contradict itself.
func guarded[T any](f func() (T, error)) (out T, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("the table contradicts itself: %v: write it anew", cause)
		}
	}()
	return f()
}

// InTurn numbers rows in turns: row i has the number i modulo n.
func InTurn(n int) Numbering {
	return func(from int, into []uint32) error {
		next := from % n
		for i := range into {
			into[i] = uint32(next)
			if next++; next == n {
				next = 0
			}
		}
		return nil
	}
}

// Given numbers rows by a column of integers from 0 to n-1.
func Given(column arrow.Array, n int) (Numbering, error) {
	switch a := column.(type) {
	case *array.Int8:
		return given(column, a.Int8Values(), n), nil
	case *array.Int16:
		return given(column, a.Int16Values(), n), nil
	case *array.Int32:
		return given(column, a.Int32Values(), n), nil
	case *array.Int64:
		return given(column, a.Int64Values(), n), nil
	case *array.Uint8:
		return given(column, a.Uint8Values(), n), nil
	case *array.Uint16:
		return given(column, a.Uint16Values(), n), nil
	case *array.Uint32:
		return given(column, a.Uint32Values(), n), nil
	case *array.Uint64:
		return given(column, a.Uint64Values(), n), nil
	}
	return nil, fmt.Errorf("the column has the type %s: expected integers", column.DataType())
}

func given[T int8 | int16 | int32 | int64 | uint8 | uint16 | uint32 | uint64](column arrow.Array, values []T, n int) Numbering {
	valid := column.NullBitmapBytes()
	return func(from int, into []uint32) error {
		for i := range into {
			v := values[from+i]
			if len(valid) > 0 && bit(valid, column.Data().Offset()+from+i) == 0 {
				return fmt.Errorf("row %d has no number: give each row one from 0 to %d", from+i, n-1)
			}
			if v < 0 || uint64(v) >= uint64(n) {
				return fmt.Errorf("row %d has the number %d: give each row one from 0 to %d", from+i, v, n-1)
			}
			into[i] = uint32(v)
		}
		return nil
	}
}
