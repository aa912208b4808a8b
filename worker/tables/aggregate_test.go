package tables

import (
	"slices"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/apache/arrow-go/v18/arrow/memory"
)

// TestAllFormsOfNullAreNotCounted: a code of a null value is null, as it is for other functions.
func TestAllFormsOfNullAreNotCounted(t *testing.T) {
	codes := array.NewInt8Builder(memory.DefaultAllocator)
	codes.AppendValues([]int8{0, 1, 0, 1}, []bool{true, true, false, true})
	values := array.NewStringBuilder(memory.DefaultAllocator)
	values.AppendValues([]string{"a", ""}, []bool{true, false})
	kind := &arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int8, ValueType: arrow.BinaryTypes.String}
	indices := codes.NewArray()
	for _, c := range []struct {
		column arrow.Array
		want   []uint32
	}{
		{array.NewDictionaryArray(kind, indices, values.NewArray()), []uint32{1, 2, 4}},
		{array.NewDictionaryArray(&arrow.DictionaryType{IndexType: kind.IndexType, ValueType: arrow.Null}, indices, array.NewNull(2)), []uint32{0, 1, 4}},
		{array.NewNull(4), []uint32{0, 1, 4}},
		{indices, []uint32{3, 3, 4}},
	} {
		schema := arrow.NewSchema([]arrow.Field{{Name: "x", Type: c.column.DataType(), Nullable: true}}, nil)
		batch := array.NewRecordBatch(schema, []arrow.Array{c.column}, 4)
		out, err := plainCall(t.Context()).Aggregate(batch, nil, []Aggregation{{0, "count", "count"}, {0, "n_unique", "different"}, {0, "len", "rows"}})
		if err != nil {
			t.Fatal(err)
		}
		var got []uint32
		for _, c := range out.Columns() {
			got = append(got, c.(*array.Uint32).Uint32Values()...)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%v: count, different values and rows: %v, want %v", c.column, got, c.want)
		}
	}
	if _, err := ResultType(arrow.RunEndEncodedOf(arrow.PrimitiveTypes.Int32, arrow.PrimitiveTypes.Int64), "count"); err == nil {
		t.Error("nulls of runs are counted")
	}
}

// TestOnlyValuesOfTheColumnHaveItsMetadata: numbers that are computed are other things, also if
// they are of the type of the column.
func TestOnlyValuesOfTheColumnHaveItsMetadata(t *testing.T) {
	values := array.NewUint32Builder(memory.DefaultAllocator)
	values.AppendValues([]uint32{7, 8}, nil)
	unit := arrow.NewMetadata([]string{"unit"}, []string{"kg"})
	schema := arrow.NewSchema([]arrow.Field{{Name: "x", Type: arrow.PrimitiveTypes.Uint32, Metadata: unit}}, nil)
	batch := array.NewRecordBatch(schema, []arrow.Array{values.NewArray()}, 2)
	var list []Aggregation
	for _, function := range Functions() {
		list = append(list, Aggregation{0, function, function})
	}
	out, err := plainCall(t.Context()).Aggregate(batch, nil, list)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range out.Schema().Fields() {
		if has, want := f.HasMetadata(), slices.Contains([]string{"min", "max", "first", "last"}, f.Name); has != want {
			t.Errorf("%s has metadata: %v", f.Name, has)
		}
	}
}

// TestASumOfDecimalsThatIsTooWideIsAnError: -2^127 is its own negative, and no decimal.
func TestASumOfDecimalsThatIsTooWideIsAnError(t *testing.T) {
	kind := &arrow.Decimal128Type{Precision: maxDigits}
	half := decimal128.New(-1<<62, 0)
	values := array.NewDecimal128Builder(memory.DefaultAllocator, kind)
	values.AppendValues([]decimal128.Num{half, half}, nil)
	schema := arrow.NewSchema([]arrow.Field{{Name: "x", Type: kind}}, nil)
	batch := array.NewRecordBatch(schema, []arrow.Array{values.NewArray()}, 2)
	if out, err := plainCall(t.Context()).Aggregate(batch, nil, []Aggregation{{0, "sum", "sum"}}); err == nil {
		t.Errorf("the sum is %v", out.Column(0))
	}
}
