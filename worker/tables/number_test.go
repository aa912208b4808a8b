package tables

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
)

// plainCall returns a call on one processor.
func plainCall(ctx context.Context) *Call {
	return &Call{
		Scratch: func(bytes int64) ([]byte, error) { return make([]byte, bytes), nil },
		Each: func(n int, do func(i int) error) error {
			for i := range n {
				if err := errors.Join(ctx.Err(), do(i)); err != nil {
					return err
				}
			}
			return nil
		},
		Err: ctx.Err,
	}
}

// builtColumn returns a column of rows that are drawn from values; an empty text is null.
func builtColumn(t *testing.T, random *rand.Rand, kind arrow.DataType, values []string, rows int) arrow.Array {
	t.Helper()
	b := array.NewBuilder(memory.DefaultAllocator, kind)
	defer b.Release()
	for range rows {
		v := values[random.IntN(len(values))]
		if v == "" {
			b.AppendNull()
			continue
		}
		if err := b.AppendValueFromString(v); err != nil {
			t.Fatal(err)
		}
	}
	return b.NewArray()
}

// TestEqualRowsHaveEqualNumbers compares the numbers of rows of two tables with those that a map of
// their texts gives.
func TestEqualRowsHaveEqualNumbers(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	var large []string
	for range 5000 {
		large = append(large, fmt.Sprint(random.Int64()-random.Int64()))
	}
	var long []string
	for i := range 3000 {
		long = append(long, strings.Repeat(fmt.Sprint(i), i%40+1))
	}
	codes := &arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int16, ValueType: arrow.BinaryTypes.String}
	kinds := []struct {
		kind   arrow.DataType
		values []string
	}{
		{arrow.PrimitiveTypes.Int8, []string{"", "-128", "0", "127"}},
		{arrow.PrimitiveTypes.Int64, append([]string{"", fmt.Sprint(math.MinInt64), fmt.Sprint(math.MaxInt64)}, large...)},
		{arrow.PrimitiveTypes.Float64, []string{"", "1.5", "NaN", "-Inf", "0"}},
		{arrow.BinaryTypes.String, append([]string{""}, long...)},
		{arrow.BinaryTypes.StringView, append([]string{""}, long[:100]...)},
		{codes, append([]string{""}, long[:50]...)},
	}
	for range 60 {
		var columns [][]*keys
		sizes := []int{random.IntN(3000), random.IntN(100)}
		rows := [][]string{make([]string, sizes[0]), make([]string, sizes[1])}
		null := [][]bool{make([]bool, sizes[0]), make([]bool, sizes[1])}
		c := plainCall(t.Context())
		for range 1 + random.IntN(3) {
			k := kinds[random.IntN(len(kinds))]
			var parts []*keys
			for part, n := range sizes {
				column := builtColumn(t, random, k.kind, k.values, n)
				for i := range n {
					rows[part][i] += "|" + column.ValueStr(i)
					null[part][i] = null[part][i] || column.IsNull(i)
				}
				of, err := c.keysOf(column, "grouped")
				if err != nil {
					t.Fatal(err)
				}
				parts = append(parts, of)
			}
			columns = append(columns, parts)
		}
		for _, nulls := range []bool{true, false} {
			numbers, count, err := c.numberRows(columns, nulls)
			if err != nil {
				t.Fatal(err)
			}
			known := map[string]uint32{}
			for part, list := range rows {
				want := make([]uint32, len(list))
				for i, row := range list {
					if null[part][i] && !nulls {
						want[i] = None
						continue
					}
					if _, ok := known[row]; !ok {
						known[row] = uint32(len(known))
					}
					want[i] = known[row]
				}
				if !slices.Equal(numbers[part], want) {
					t.Fatalf("nulls %v: table %d: got %v, want %v", nulls, part, numbers[part], want)
				}
			}
			if int(count) != len(known) {
				t.Errorf("nulls %v: %d numbers, want %d", nulls, count, len(known))
			}
		}
	}
}

func TestFirstRowsOfNumbers(t *testing.T) {
	first, err := plainCall(t.Context()).firstRows([]uint32{0, 0, 1, 0, 2, 1}, 3)
	if err != nil || !slices.Equal(first, []uint32{0, 2, 4}) {
		t.Errorf("%v, %v", first, err)
	}
}

func TestEndedCallsNumberNoRows(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	c := plainCall(ctx)
	k, err := c.keysOf(builtColumn(t, rand.New(rand.NewPCG(1, 2)), arrow.BinaryTypes.String, []string{"a", "b"}, 100), "grouped")
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if _, _, err := c.numberRows([][]*keys{{k}}, true); !errors.Is(err, context.Canceled) {
		t.Errorf("after the end: %v", err)
	}
}

// TestADictionaryHasAsManyValuesAsCanBeCounted: a code beyond is not taken for another one.
func TestADictionaryHasAsManyValuesAsCanBeCounted(t *testing.T) {
	codes := array.NewInt64Builder(memory.DefaultAllocator)
	codes.AppendValues([]int64{0, 1 << 32}, nil)
	kind := &arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int64, ValueType: arrow.Null}
	column := array.NewDictionaryArray(kind, codes.NewArray(), array.NewNull(1<<33))
	if _, err := plainCall(t.Context()).keysOf(column, "grouped"); err == nil || !strings.Contains(err.Error(), "its dictionary has 8589934592 values") {
		t.Errorf("got %v", err)
	}
}
