//go:build cgo && linux

package cuda

import (
	"testing"

	"google.golang.org/protobuf/proto"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/worker/device"
)

// pointCall is a point of Task Bench that takes the results of so many others, 16 bytes each that came with words.
func pointCall(tb testing.TB, inputs int) device.Call {
	tb.Helper()
	integer := func(n int64) *millracev1.Value {
		return &millracev1.Value{Kind: &millracev1.Value_IntValue{IntValue: n}}
	}
	from := &millracev1.ListValue{}
	args := &millracev1.Arguments{}
	marshal := func(m proto.Message) []byte {
		b, err := proto.Marshal(m)
		if err != nil {
			tb.Fatal(err)
		}
		return b
	}
	call := device.Call{Op: "bench.point", Attempt: 1}
	for i := range inputs {
		from.Values = append(from.Values, integer(int64(i)))
		data := make([]byte, 16)
		data[0], data[8] = 1, byte(i)
		call.Inputs = append(call.Inputs, device.Input{Header: marshal(&millracev1.Value{Kind: &millracev1.Value_TensorValue{TensorValue: &millracev1.Tensor{
			Dtype: millracev1.DType_DTYPE_UINT8, Shape: []int64{16}, Location: &millracev1.Tensor_InlineData{InlineData: data},
		}}})})
	}
	args.Positional = []*millracev1.Value{integer(2), integer(0), {Kind: &millracev1.Value_ListValue{ListValue: from}}, integer(1), integer(16)}
	for i := range inputs {
		args.Positional = append(args.Positional, &millracev1.Value{Kind: &millracev1.Value_Input{Input: uint32(i)}})
	}
	call.Arguments = marshal(args)
	return call
}

func BenchmarkPrepare(b *testing.B) {
	d := open(b, 8<<20, Options{})
	call := pointCall(b, 3)
	b.ReportAllocs()
	for b.Loop() {
		p, err := d.Prepare(call)
		if err != nil {
			b.Fatal(err)
		}
		if p.OutputBytes() != nil {
			b.Fatal("a small result")
		}
	}
}

func BenchmarkSmallCall(b *testing.B) {
	d := open(b, 8<<20, Options{})
	call := pointCall(b, 3)
	b.ReportAllocs()
	for b.Loop() {
		p, err := d.Prepare(call)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := p.Run(b.Context(), d.alloc); err != nil {
			b.Fatal(err)
		}
	}
}
