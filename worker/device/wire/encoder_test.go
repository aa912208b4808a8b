package wire

import (
	"bytes"
	"errors"
	"testing"

	"pgregory.net/rapid"

	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/worker/device"
	"github.com/millrace/millrace/worker/ops"
)

var errFull = errors.New("full")

// encoderOf returns an encoder and its first tensors, which have a frame each.
func encoderOf(frames int) (*Encoder, []*ops.Tensor) {
	var next uint64
	alloc := func(bytes uint64) (memory.Frame, error) {
		if next >= 1<<20 {
			return memory.Frame{}, errFull
		}
		next += bytes
		return memory.Frame{Offset: next, Bytes: bytes}, nil
	}
	e := NewEncoder(nil, alloc, placed, func(memory.Frame, []byte) error { return nil })
	tensors := make([]*ops.Tensor, frames)
	for i := range tensors {
		tensors[i], _ = e.Frame(ops.Float32, []int64{4, 5})
	}
	return &e, tensors
}

func TestTensorsAreEncodedAsTheirMessages(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		frames := rapid.IntRange(0, 3).Draw(rt, "frames")
		dtype := ops.DType(rapid.IntRange(int(ops.Bool), int(ops.Complex128)).Draw(rt, "dtype"))
		x := &ops.Tensor{
			DType: dtype, Shape: rapid.SliceOfN(rapid.Int64Range(0, 300), 0, 4).Draw(rt, "shape"), Offset: rapid.SampledFrom([]int64{0, 16, 1000}).Draw(rt, "offset"),
			Data: make([]byte, rapid.SampledFrom([]int{0, 1, 16, 127, 128, 1000, InlineBytes, InlineBytes + 1}).Draw(rt, "bytes")),
		}
		x.Strides = ops.ContiguousStrides(dtype, x.Shape)
		for i := range x.Strides {
			x.Strides[i] *= rapid.SampledFrom([]int64{1, 1, 1, 0, -1, 70000}).Draw(rt, "times")
		}
		which := rapid.IntRange(0, 3).Draw(rt, "which")
		results := make([]device.Result, 2)
		for i := range results {
			e, tensors := encoderOf(frames)
			value := x
			if which < frames {
				value = tensors[which]
			}
			var err error
			if i == 0 {
				results[0], err = e.Result(value)
			} else {
				results[1].Header, err = e.byMessage(value)
				results[1].Frames = e.frames
			}
			if err != nil {
				rt.Fatal(err)
			}
		}
		if !bytes.Equal(results[0].Header, results[1].Header) || len(results[0].Frames) != len(results[1].Frames) {
			rt.Errorf("%+v: %x, %d frames; as a message %x, %d", x, results[0].Header, len(results[0].Frames), results[1].Header, len(results[1].Frames))
		}
	})
}

func TestAResultThatDoesNotFitIsAnError(t *testing.T) {
	e := NewEncoder(nil, func(uint64) (memory.Frame, error) { return memory.Frame{}, errFull }, placed, nil)
	x, err := ops.NewTensor(ops.Uint8, []int64{InlineBytes + 1})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.Result(x); !errors.Is(err, errFull) {
		t.Errorf("%v", err)
	}
}
