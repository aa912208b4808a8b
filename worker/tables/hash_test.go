package tables_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/millrace/millrace/worker/tables"
)

// golden returns the batch that testdata/hashes.py wrote.
func golden(t *testing.T) arrow.RecordBatch {
	t.Helper()
	file, err := os.Open("testdata/hashes.arrow")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = file.Close() })
	reader, err := ipc.NewFileReader(file)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = reader.Close() })
	batch, err := reader.RecordBatchAt(0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(batch.Release)
	return batch
}

// The hashes of all types are those of the Python client, also of a part of a column.
func TestHashesAreThoseOfPython(t *testing.T) {
	batch := golden(t)
	columns := 0
	for i, field := range batch.Schema().Fields() {
		if i+1 >= int(batch.NumCols()) || batch.ColumnName(i+1) != field.Name+" hash" {
			continue
		}
		columns++
		want := batch.Column(i + 1).(*array.Uint64).Uint64Values()
		got, err := tables.Hashes(field.Name, batch.Column(i))
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: hashes %x, want %x (%v)", field.Name, got, want, err)
		}
		part := array.NewSlice(batch.Column(i), 5, 23)
		got, err = tables.Hashes(field.Name, part)
		part.Release()
		if err != nil || !slices.Equal(got, want[5:23]) {
			t.Errorf("%s: hashes of a slice %x, want %x (%v)", field.Name, got, want[5:23], err)
		}
	}
	if columns < 40 {
		t.Errorf("the file has only %d columns", columns)
	}
}

func TestPartitionsAreThoseOfPython(t *testing.T) {
	batch := golden(t)
	var hashes [][]uint64
	for _, name := range []string{"int64", "string", "list"} {
		h, err := tables.Hashes(name, batch.Column(batch.Schema().FieldIndices(name)[0]))
		if err != nil {
			t.Fatal(err)
		}
		hashes = append(hashes, h)
	}
	want := batch.Column(batch.Schema().FieldIndices("partition")[0]).(*array.Uint32).Uint32Values()
	if got := tables.Numbers(hashes, 7); !slices.Equal(got, want) {
		t.Errorf("partitions %v, want %v", got, want)
	}
}

// Equal numbers of any type have one hash, and runs have that of their values.
func TestEqualNumbersHaveOneHash(t *testing.T) {
	one := func(json string, kind arrow.DataType) uint64 {
		a, _, err := array.FromJSON(memory.DefaultAllocator, kind, strings.NewReader(json))
		if err != nil {
			t.Fatal(err)
		}
		defer a.Release()
		h, err := tables.Hashes("x", a)
		if err != nil {
			t.Fatal(err)
		}
		return h[0]
	}
	want := one("[1]", arrow.PrimitiveTypes.Int64)
	for _, got := range []uint64{
		one("[1]", arrow.PrimitiveTypes.Float32),
		one("[true]", arrow.FixedWidthTypes.Boolean),
		one(`["1.00"]`, &arrow.Decimal128Type{Precision: 5, Scale: 2}),
	} {
		if got != want {
			t.Errorf("the hash of another 1 is %x, want %x", got, want)
		}
	}
	ends, _, _ := array.FromJSON(memory.DefaultAllocator, arrow.PrimitiveTypes.Int32, strings.NewReader("[2, 3]"))
	values, _, _ := array.FromJSON(memory.DefaultAllocator, arrow.PrimitiveTypes.Int8, strings.NewReader("[1, null]"))
	runs := array.NewRunEndEncodedArray(ends, values, 2, 1)
	defer runs.Release()
	got, err := tables.Hashes("x", runs)
	if none := one("[null]", arrow.PrimitiveTypes.Int8); err != nil || !slices.Equal(got, []uint64{want, none}) {
		t.Errorf("the hashes of runs are %x (%v)", got, err)
	}
}

// Offsets out of range, descending ones and too few are errors that name the column.
func TestDamagedColumnsAreRefused(t *testing.T) {
	for _, offsets := range [][]int32{{0, 9, 3}, {0, -1, 3}, {2, 1, 3}} {
		data := array.NewData(arrow.BinaryTypes.Binary, 2, []*memory.Buffer{
			nil, memory.NewBufferBytes(arrow.Int32Traits.CastToBytes(offsets)), memory.NewBufferBytes([]byte("abc")),
		}, nil, 0, 0)
		a := array.NewBinaryData(data)
		_, err := tables.Hashes("key", a)
		if err == nil || !strings.HasPrefix(err.Error(), `column "key": `) {
			t.Errorf("the offsets %v gave %v", offsets, err)
		}
	}
	codes, _, _ := array.FromJSON(memory.DefaultAllocator, arrow.PrimitiveTypes.Int8, strings.NewReader("[0, 5]"))
	values, _, _ := array.FromJSON(memory.DefaultAllocator, arrow.BinaryTypes.String, strings.NewReader(`["a"]`))
	kind := &arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int8, ValueType: arrow.BinaryTypes.String}
	if _, err := tables.Hashes("key", array.NewDictionaryArray(kind, codes, values)); err == nil {
		t.Error("a code out of range has a hash")
	}
}

func BenchmarkHashes(b *testing.B) {
	values := make([]int64, 1<<20)
	for i := range values {
		values[i] = int64(i)
	}
	builder := array.NewInt64Builder(memory.DefaultAllocator)
	builder.AppendValues(values, nil)
	column := builder.NewArray()
	for b.Loop() {
		if _, err := tables.Hashes("x", column); err != nil {
			b.Fatal(err)
		}
	}
}
