package tables

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/apache/arrow-go/v18/arrow/memory"
)

// Aggregation is a function of the values that a column has in a group of rows.
type Aggregation struct {
	Column         int
	Function, Name string
}

// functions are the names of the functions of Aggregation.
var functions = []string{"sum", "count", "len", "min", "max", "mean", "var", "std", "first", "last", "n_unique"}

// chosen are those whose result is one of the values. It has the metadata of the column.
var chosen = []string{"min", "max", "first", "last"}

// Functions returns the names of the functions of Aggregation.
func Functions() []string { return slices.Clone(functions) }

// maxDigits is the number of digits of a sum of decimals.
const maxDigits = 38

// Types by what functions have of their values: small integers have wider sums, the large numbers
// have sums of their own type, unordered ones have no least value, and the nulls of some are inside
// of them.
var (
	small     = []arrow.Type{arrow.INT8, arrow.INT16, arrow.UINT8, arrow.UINT16}
	large     = []arrow.Type{arrow.INT32, arrow.INT64, arrow.UINT32, arrow.UINT64, arrow.FLOAT64}
	unordered = []arrow.Type{
		arrow.LIST, arrow.LARGE_LIST, arrow.FIXED_SIZE_LIST, arrow.MAP, arrow.STRUCT, arrow.EXTENSION, arrow.FLOAT16,
		arrow.INTERVAL_MONTHS, arrow.INTERVAL_DAY_TIME, arrow.INTERVAL_MONTH_DAY_NANO,
		arrow.SPARSE_UNION, arrow.DENSE_UNION, arrow.RUN_END_ENCODED, arrow.LIST_VIEW, arrow.LARGE_LIST_VIEW,
	}
	inside = []arrow.Type{arrow.SPARSE_UNION, arrow.DENSE_UNION, arrow.RUN_END_ENCODED}
)

// ResultType returns the type of a function of the values of a column of a type. It is an error if
// the values have no such function.
func ResultType(of arrow.DataType, function string) (arrow.DataType, error) {
	switch function {
	case "count":
		if !slices.Contains(inside, storage(of).ID()) {
			return arrow.PrimitiveTypes.Uint32, nil
		}
	case "len", "n_unique":
		return arrow.PrimitiveTypes.Uint32, nil
	case "first", "last":
		return of, nil
	case "min", "max":
		if !slices.Contains(unordered, of.ID()) {
			return of, nil
		}
	case "sum":
		decimal, isDecimal := of.(*arrow.Decimal128Type)
		switch {
		case slices.Contains(small, of.ID()):
			return arrow.PrimitiveTypes.Int64, nil
		case slices.Contains(large, of.ID()) || of.ID() == arrow.FLOAT32 || of.ID() == arrow.DURATION:
			return of, nil
		case of.ID() == arrow.BOOL:
			return arrow.PrimitiveTypes.Uint32, nil
		case isDecimal:
			return &arrow.Decimal128Type{Precision: maxDigits, Scale: decimal.Scale}, nil
		}
	case "mean", "var", "std":
		switch {
		case slices.Contains(small, of.ID()) || slices.Contains(large, of.ID()) || of.ID() == arrow.BOOL || of.ID() == arrow.DECIMAL128:
			return arrow.PrimitiveTypes.Float64, nil
		case of.ID() == arrow.FLOAT32:
			return of, nil
		}
	default:
		return nil, fmt.Errorf("there is no function %q: it is one of %s", function, strings.Join(functions, ", "))
	}
	return nil, fmt.Errorf("values of type %s have no %s: cast them to a number", of, function)
}

// groups are the groups of the rows of a table.
type groups struct {
	*Call
	numbers []uint32 // that of the group of each row
	count   int
	first   []uint32 // the first row of each group; None: it has no row
}

// Aggregate returns a table with one row for each group of rows that have equal values in the
// columns by, in the order of their first appearance: these values, then those of the functions.
// Without columns all rows are one group. Errors name the column.
func (c *Call) Aggregate(batch arrow.RecordBatch, by []int, list []Aggregation) (arrow.RecordBatch, error) {
	g, err := c.groupsOf(batch, by)
	if err != nil {
		return nil, err
	}
	var fields []arrow.Field
	var columns []arrow.Array
	for _, at := range by {
		values, err := c.Take(batch.ColumnName(at), batch.Column(at), g.first)
		if err != nil {
			return nil, err
		}
		fields, columns = append(fields, batch.Schema().Field(at)), append(columns, values)
	}
	for _, a := range list {
		of := batch.Schema().Field(a.Column)
		kind, err := ResultType(of.Type, a.Function)
		if err == nil {
			var values arrow.Array
			values, err = g.fold(batch.Column(a.Column), a.Function, kind)
			columns = append(columns, values)
		}
		if err != nil {
			return nil, fmt.Errorf("column %q: %w", of.Name, err)
		}
		field := arrow.Field{Name: a.Name, Type: kind, Nullable: true}
		if slices.Contains(chosen, a.Function) {
			field.Metadata = of.Metadata
		}
		fields = append(fields, field)
	}
	return array.NewRecordBatch(arrow.NewSchema(fields, nil), columns, int64(g.count)), nil
}

// groupsOf returns the groups of rows with equal values.
func (c *Call) groupsOf(batch arrow.RecordBatch, by []int) (*groups, error) {
	if len(by) == 0 {
		g := &groups{Call: c, numbers: Room[uint32](c, int(batch.NumRows())), count: 1, first: []uint32{0}}
		if batch.NumRows() == 0 {
			g.first[0] = None
		}
		return g, nil
	}
	columns := make([][]*keys, len(by))
	for i, at := range by {
		k, err := c.keysOf(batch.Column(at), "grouped")
		if err != nil {
			return nil, fmt.Errorf("column %q: %w", batch.ColumnName(at), err)
		}
		columns[i] = []*keys{k}
	}
	numbers, count, err := c.numberRows(columns, true)
	if err != nil {
		return nil, err
	}
	first, err := c.firstRows(numbers[0], count)
	return &groups{c, numbers[0], int(count), first}, err
}

// fold returns the value of a function for each group.
func (g *groups) fold(a arrow.Array, function string, kind arrow.DataType) (arrow.Array, error) {
	valid := nullsOf(a)
	switch function {
	case "first":
		return g.Take("", a, g.first)
	case "last":
		rows, err := g.lastRows()
		if err != nil {
			return nil, err
		}
		return g.Take("", a, rows)
	case "len":
		counts, err := g.counts(bitmap{})
		return arrayOf(kind, counts, nil, 0), err
	case "count":
		valid, err := g.present(a)
		if err != nil {
			return nil, err
		}
		counts, err := g.counts(valid)
		return arrayOf(kind, counts, nil, 0), err
	case "n_unique":
		counts, err := g.distinct(a)
		return arrayOf(kind, counts, nil, 0), err
	case "min", "max":
		return g.extreme(a, function == "max")
	case "sum":
		return g.sum(a, valid, kind)
	}
	return g.moment(a, valid, function, kind)
}

// arrayOf returns an array of values.
func arrayOf[T any](kind arrow.DataType, values []T, valid []byte, nulls int) arrow.Array {
	var bits *memory.Buffer
	if nulls > 0 {
		bits = memory.NewBufferBytes(valid)
	}
	return array.MakeFromData(array.NewData(kind, len(values), []*memory.Buffer{bits, bufferOf(values)}, nil, nulls, 0))
}

func (g *groups) lastRows() ([]uint32, error) {
	rows := Room[uint32](g.Call, g.count)
	for i := range rows {
		rows[i] = None
	}
	return rows, g.inOrder(len(g.numbers), func(from, to int) {
		for i, n := range g.numbers[from:to] {
			rows[n] = uint32(from + i)
		}
	})
}

// present says which values are not null. A code of a null value is null.
func (c *Call) present(a arrow.Array) (bitmap, error) {
	switch a := a.(type) {
	case array.ExtensionArray:
		return c.present(a.Storage())
	case *array.Null:
		return bitmap{bits: Room[uint8](c, (a.Len()+7)/8)}, nil
	case *array.Dictionary:
		values, err := c.present(a.Dictionary())
		if err != nil || len(values.bits) == 0 {
			return nullsOf(a), err
		}
		codes, valid := nullsOf(a), bitmap{bits: Room[uint8](c, (a.Len()+7)/8)}
		return valid, c.inParts(a.Len(), partRows, func(from, to int) error {
			for i := from; i < to; i++ {
				if !codes.has(i) {
					continue
				}
				code := a.GetValueIndex(i)
				if code < 0 || code >= a.Dictionary().Len() {
					return fmt.Errorf("row %d has the code %d of %d values", i, code, a.Dictionary().Len())
				}
				if values.has(code) {
					valid.bits[i/8] |= 1 << (i % 8)
				}
			}
			return nil
		})
	}
	return nullsOf(a), nil
}

// counts returns the number of values of each group that are not null.
func (g *groups) counts(valid bitmap) ([]uint32, error) {
	counts := Room[uint32](g.Call, g.count)
	return counts, g.inOrder(len(g.numbers), func(from, to int) {
		if len(valid.bits) == 0 {
			for _, n := range g.numbers[from:to] {
				counts[n]++
			}
			return
		}
		for i, n := range g.numbers[from:to] {
			if valid.has(from + i) {
				counts[n]++
			}
		}
	})
}

// distinct returns the number of different values of each group; null is one.
func (g *groups) distinct(a arrow.Array) ([]uint32, error) {
	k, err := g.keysOf(a, "counted")
	if err != nil {
		return nil, err
	}
	numbers, count, err := g.number([]*keys{k}, true)
	if err != nil {
		return nil, err
	}
	pairs, err := g.pairs(g.numbers, numbers[0], count)
	if err != nil {
		return nil, err
	}
	numbers, count, err = g.number([]*keys{pairs}, true)
	if err != nil {
		return nil, err
	}
	first, err := g.firstRows(numbers[0], count)
	if err != nil {
		return nil, err
	}
	counts := Room[uint32](g.Call, g.count)
	for _, row := range first {
		counts[g.numbers[row]]++
	}
	return counts, nil
}

// sum returns the sums of the values that are not null.
func (g *groups) sum(a arrow.Array, valid bitmap, kind arrow.DataType) (arrow.Array, error) {
	switch a := a.(type) {
	case *array.Int8:
		return summed[int8, int64](g, a.Int8Values(), valid, kind)
	case *array.Int16:
		return summed[int16, int64](g, a.Int16Values(), valid, kind)
	case *array.Uint8:
		return summed[uint8, int64](g, a.Uint8Values(), valid, kind)
	case *array.Uint16:
		return summed[uint16, int64](g, a.Uint16Values(), valid, kind)
	case *array.Int32:
		return summed[int32, int32](g, a.Int32Values(), valid, kind)
	case *array.Uint32:
		return summed[uint32, uint32](g, a.Uint32Values(), valid, kind)
	case *array.Int64:
		return summed[int64, int64](g, a.Int64Values(), valid, kind)
	case *array.Uint64:
		return summed[uint64, uint64](g, a.Uint64Values(), valid, kind)
	case *array.Duration:
		return summed[arrow.Duration, int64](g, a.DurationValues(), valid, kind)
	case *array.Float64:
		return summed[float64, float64](g, a.Float64Values(), valid, kind)
	case *array.Float32:
		sums, err := sums[float32, float64](g, a.Float32Values(), valid)
		return arrayOf(kind, narrow(g.Call, sums), nil, 0), err
	case *array.Boolean:
		words, err := g.boolWords(a)
		if err != nil {
			return nil, err
		}
		return summed[uint64, uint32](g, words, valid, kind)
	case *array.Decimal128:
		return g.decimals(a, valid, kind)
	}
	return nil, fmt.Errorf("values of type %s have no sum: cast them to a number", a.DataType())
}

func summed[T, A number](g *groups, values []T, valid bitmap, kind arrow.DataType) (arrow.Array, error) {
	out, err := sums[T, A](g, values, valid)
	return arrayOf(kind, out, nil, 0), err
}

func sums[T, A number](g *groups, values []T, valid bitmap) ([]A, error) {
	out := Room[A](g.Call, g.count)
	return out, g.inOrder(len(g.numbers), func(from, to int) {
		numbers := g.numbers[from:to]
		if len(valid.bits) == 0 {
			for i, v := range values[from:to] {
				out[numbers[i]] += A(v)
			}
			return
		}
		for i, v := range values[from:to] {
			if valid.has(from + i) {
				out[numbers[i]] += A(v)
			}
		}
	})
}

func narrow(c *Call, wide []float64) []float32 {
	out := Room[float32](c, len(wide))
	for i, v := range wide {
		out[i] = float32(v)
	}
	return out
}

// leastWhole is -2^127. It is its own negative, so FitsInPrecision takes it for a small number.
var leastWhole = decimal128.New(math.MinInt64, 0)

// decimals returns sums of decimals, which must fit their type.
func (g *groups) decimals(a *array.Decimal128, valid bitmap, kind arrow.DataType) (arrow.Array, error) {
	out, wide := Room[decimal128.Num](g.Call, g.count), false
	values := a.Values()
	err := g.inOrder(len(g.numbers), func(from, to int) {
		for i, n := range g.numbers[from:to] {
			if valid.has(from + i) {
				out[n] = out[n].Add(values[from+i])
				wide = wide || !out[n].FitsInPrecision(maxDigits) || out[n] == leastWhole
			}
		}
	})
	if err == nil && wide {
		err = fmt.Errorf("a sum of decimals has more than %d digits: cast them to floats", maxDigits)
	}
	return arrayOf(kind, out, nil, 0), err
}

// moment returns means, variances or standard deviations. Those of too few values are null.
func (g *groups) moment(a arrow.Array, valid bitmap, function string, kind arrow.DataType) (arrow.Array, error) {
	switch a := a.(type) {
	case *array.Int8:
		return moments(g, a.Int8Values(), valid, function, kind)
	case *array.Int16:
		return moments(g, a.Int16Values(), valid, function, kind)
	case *array.Int32:
		return moments(g, a.Int32Values(), valid, function, kind)
	case *array.Int64:
		return moments(g, a.Int64Values(), valid, function, kind)
	case *array.Uint8:
		return moments(g, a.Uint8Values(), valid, function, kind)
	case *array.Uint16:
		return moments(g, a.Uint16Values(), valid, function, kind)
	case *array.Uint32:
		return moments(g, a.Uint32Values(), valid, function, kind)
	case *array.Uint64:
		return moments(g, a.Uint64Values(), valid, function, kind)
	case *array.Float32:
		return moments(g, a.Float32Values(), valid, function, kind)
	case *array.Float64:
		return moments(g, a.Float64Values(), valid, function, kind)
	case *array.Boolean:
		words, err := g.boolWords(a)
		if err != nil {
			return nil, err
		}
		return moments(g, words, valid, function, kind)
	case *array.Decimal128:
		values, floats := a.Values(), Room[float64](g.Call, a.Len())
		scale := a.DataType().(*arrow.Decimal128Type).Scale
		if err := g.inParts(len(values), partRows, func(from, to int) error {
			for i := from; i < to; i++ {
				floats[i] = values[i].ToFloat64(scale)
			}
			return nil
		}); err != nil {
			return nil, err
		}
		return moments(g, floats, valid, function, kind)
	}
	return nil, fmt.Errorf("values of type %s have no %s: cast them to a number", a.DataType(), function)
}

func moments[T number](g *groups, values []T, valid bitmap, function string, kind arrow.DataType) (arrow.Array, error) {
	counts, err := g.counts(valid)
	if err != nil {
		return nil, err
	}
	out, err := sums[T, float64](g, values, valid)
	if err != nil {
		return nil, err
	}
	least := uint32(1)
	for n := range out {
		out[n] /= float64(counts[n])
	}
	if function != "mean" {
		least = 2
		if out, err = squares(g, values, valid, out); err != nil {
			return nil, err
		}
		for n := range out {
			out[n] /= float64(counts[n]) - 1
			if function == "std" {
				out[n] = math.Sqrt(out[n])
			}
		}
	}
	bits, nulls := Room[uint8](g.Call, (g.count+7)/8), 0
	for n, count := range counts {
		if count < least {
			nulls++
			out[n] = 0
			continue
		}
		bits[n/8] |= 1 << (n % 8)
	}
	if kind.ID() == arrow.FLOAT32 {
		return arrayOf(kind, narrow(g.Call, out), bits, nulls), nil
	}
	return arrayOf(kind, out, bits, nulls), nil
}

// squares returns the sums of the squares of the distances from the means.
func squares[T number](g *groups, values []T, valid bitmap, means []float64) ([]float64, error) {
	out := Room[float64](g.Call, g.count)
	return out, g.inOrder(len(g.numbers), func(from, to int) {
		numbers := g.numbers[from:to]
		for i, v := range values[from:to] {
			if valid.has(from + i) {
				n := numbers[i]
				d := float64(v) - means[n]
				out[n] += d * d
			}
		}
	})
}

// extreme returns the least or the largest values that are not null. A NaN is the result only if
// there is no number.
func (g *groups) extreme(a arrow.Array, largest bool) (arrow.Array, error) {
	rows := Room[uint32](g.Call, g.count)
	for i := range rows {
		rows[i] = None
	}
	var err error
	if isText(a.DataType()) {
		err = g.extremeTexts(a, largest, rows)
	} else {
		err = g.extremeWords(a, largest, rows)
	}
	if err != nil {
		return nil, err
	}
	return g.Take("", a, rows)
}

func (g *groups) extremeTexts(a arrow.Array, largest bool, rows []uint32) error {
	k, err := g.keysOf(a, "compared")
	if err != nil {
		return err
	}
	sign := 1
	if largest {
		sign = -1
	}
	return g.inOrder(k.n, func(from, to int) {
		for i := from; i < to; i++ {
			n := g.numbers[i]
			if k.has(i) && (rows[n] == None || bytes.Compare(k.text.at(i), k.text.at(int(rows[n])))*sign < 0) {
				rows[n] = uint32(i)
			}
		}
	})
}

func (g *groups) extremeWords(a arrow.Array, largest bool, rows []uint32) error {
	o, err := g.orderOf(a, "compared")
	if err != nil {
		return err
	}
	// Words in the other order; NaN, whose word is the largest, stays the largest.
	turn, less := uint64(0), uint64(0)
	if largest {
		turn = math.MaxUint64
		if o.floats {
			less = 1
		}
	}
	best := make([][]uint64, len(o.words))
	for i := range best {
		best[i] = Room[uint64](g.Call, g.count)
	}
	if len(o.words) != 1 {
		return g.inOrder(o.n, func(from, to int) {
			for i := from; i < to; i++ {
				n := g.numbers[i]
				if !o.has(i) || rows[n] != None && !o.before(i, best, n, turn) {
					continue
				}
				rows[n] = uint32(i)
				for at, words := range o.words {
					best[at][n] = words[i] ^ turn
				}
			}
		})
	}
	return g.inOrder(o.n, func(from, to int) {
		numbers, least := g.numbers[from:to], best[0]
		for i, w := range o.words[0][from:to] {
			if !o.valid.has(from + i) {
				continue
			}
			n := numbers[i]
			if w = (w ^ turn) - less; rows[n] == None || w < least[n] {
				rows[n], least[n] = uint32(from+i), w
			}
		}
	})
}

// before says whether the turned words of a row are before those of a group.
func (o *order) before(row int, best [][]uint64, n uint32, turn uint64) bool {
	for at, words := range o.words {
		if w := words[row] ^ turn; w != best[at][n] {
			return w < best[at][n]
		}
	}
	return false
}
