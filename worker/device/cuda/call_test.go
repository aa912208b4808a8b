//go:build cgo && linux

package cuda

import (
	"maps"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/worker/device"
)

// pointCall returns a call of bench.point (Task Bench) with the given number of inputs. Each has 16
// bytes, which are stored in its header.
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

// smallCalls returns typical calls of short tasks. Their inputs came with the call or lie in the
// slab.
func (b *bench) smallCalls(tb testing.TB) map[string]device.Call {
	tb.Helper()
	words := func(op string, options map[string]*millracev1.Value, positional ...*millracev1.Value) device.Call {
		arguments, err := proto.Marshal(&millracev1.Arguments{Positional: positional, Named: options})
		if err != nil {
			tb.Fatal(err)
		}
		return device.Call{Op: op, Arguments: arguments, Attempt: 1}
	}
	text := func(s string) *millracev1.Value {
		return &millracev1.Value{Kind: &millracev1.Value_StringValue{StringValue: s}}
	}
	integer := func(n int64) *millracev1.Value {
		return &millracev1.Value{Kind: &millracev1.Value_IntValue{IntValue: n}}
	}
	input := func(n uint32) *millracev1.Value { return &millracev1.Value{Kind: &millracev1.Value_Input{Input: n}} }
	inSlab := func(dtype millracev1.DType, size int64, shape ...int64) device.Input {
		n := size
		for _, d := range shape {
			n *= d
		}
		f, err := b.alloc(uint64(n))
		if err != nil {
			tb.Fatal(err)
		}
		header, err := proto.Marshal(&millracev1.Value{Kind: &millracev1.Value_TensorValue{TensorValue: &millracev1.Tensor{
			Dtype: dtype, Shape: shape, Location: &millracev1.Tensor_Frame{},
		}}})
		if err != nil {
			tb.Fatal(err)
		}
		return device.Input{Header: header, Frames: []memory.Frame{f}}
	}
	calls := map[string]device.Call{"point": pointCall(tb, 3)}
	far := words("bench.point", nil, integer(2), integer(0),
		&millracev1.Value{Kind: &millracev1.Value_ListValue{ListValue: &millracev1.ListValue{Values: []*millracev1.Value{integer(0), integer(1)}}}},
		integer(1), integer(64<<10), input(0), input(1))
	far.Inputs = []device.Input{inSlab(millracev1.DType_DTYPE_UINT8, 1, 64<<10), inSlab(millracev1.DType_DTYPE_UINT8, 1, 64<<10)}
	calls["point64KiB"] = far
	three := words("array.map", nil, text("x0*2+x1*x2"), input(0), input(1), input(2))
	sum := words("array.reduce", map[string]*millracev1.Value{"axes": integer(1)}, input(0))
	joined := words("array.concat", nil, input(0), input(1), input(2))
	turned := words("array.transpose", nil, input(0))
	for _, call := range []*device.Call{&three, &sum, &joined, &turned} {
		for range 3 {
			call.Inputs = append(call.Inputs, inSlab(millracev1.DType_DTYPE_FLOAT32, 4, 64, 64))
		}
	}
	calls["map3"], calls["reduce"], calls["concat"], calls["transpose"] = three, sum, joined, turned
	calls["full"] = words("array.full", nil, integer(10000), integer(3))
	return calls
}

// BenchmarkCall measures the parts of a call separately. The last part includes the wait for the
// device.
func BenchmarkCall(b *testing.B) {
	o := Options{}
	if fake != nil {
		o = Options{Libraries: []string{nvrtcFolder()}, Python: "none"}
	}
	d := open(b, 64<<20, o)
	calls := d.smallCalls(b)
	first := d.next
	for _, name := range slices.Sorted(maps.Keys(calls)) {
		call := calls[name]
		b.Run(name, func(b *testing.B) {
			if p, err := d.Prepare(call); err != nil {
				b.Fatal(err)
			} else if _, err := p.Run(b.Context(), d.alloc); err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			var parts [3]time.Duration
			for b.Loop() {
				d.next = first
				at := time.Now()
				next := func(i int) {
					now := time.Now()
					parts[i] += now.Sub(at)
					at = now
				}
				p, err := d.Prepare(call)
				if err != nil {
					b.Fatal(err)
				}
				p.OutputBytes()
				next(0)
				s, err := p.(device.Starter).Start(b.Context(), d.alloc)
				if err != nil {
					b.Fatal(err)
				}
				next(1)
				for !s.Done() {
					at = time.Now()
				}
				if _, err := s.Finish(); err != nil {
					b.Fatal(err)
				}
				next(2)
			}
			for i, name := range []string{"prepare-ns/op", "start-ns/op", "finish-ns/op"} {
				b.ReportMetric(float64(parts[i])/float64(b.N), name)
			}
		})
	}
}
