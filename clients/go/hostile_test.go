package millrace

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/rawframe"
)

// A worker that writes beyond a frame gets an error, also if offset and length add up to a small
// number because their sum has more than 64 bits.
func TestBytesBeyondAFrameAreRefused(t *testing.T) {
	for _, c := range []struct {
		frame  uint32
		offset uint64
	}{{0, math.MaxUint64}, {0, math.MaxUint64 - 3}, {0, 6}, {0, 9}, {1, 0}, {math.MaxUint32, 0}} {
		var outgoing rawframe.Outgoing
		reader := newObjectReader(nil, 8)
		head := &millracev1.ObjectHead{Object: &millracev1.ObjectRef{TaskId: 7}, FrameBytes: []uint64{8}}
		m := &rawframe.Message{Head: head, Frame: c.frame, Offset: c.offset, Data: outgoing.Payload([]byte("four"))}
		if into, err := reader.claim(m); err == nil {
			t.Errorf("4 bytes at %d of frame %d got %d bytes of room", c.offset, c.frame, len(into))
		}
	}
}

func tensorOf(dtype DType, shape, strides []int64, offset uint64) *millracev1.Tensor {
	return &millracev1.Tensor{Dtype: millracev1.DType(dtype), Shape: shape, Strides: strides, OffsetBytes: offset, Location: &millracev1.Tensor_Frame{}}
}

// A header that describes more than its bytes is an error: no panic, and no memory for what is not
// there.
func TestTensorsBeyondTheirBytesAreRefused(t *testing.T) {
	ones := make([]int64, 1<<20)
	for i := range ones {
		ones[i] = 1
	}
	frames := [][]byte{make([]byte, 64)}
	for name, tensor := range map[string]*millracev1.Tensor{
		"wrapping size":             tensorOf(Float64, []int64{1 << 61}, nil, 0),
		"wrapping size and strides": tensorOf(Float64, []int64{1 << 61}, []int64{16}, 0),
		"wrapping end":              tensorOf(Uint8, []int64{1 << 62}, nil, 1<<62),
		"wrapping end of a few":     tensorOf(Uint8, []int64{2}, nil, math.MaxInt64),
		"offset of 2^64":            tensorOf(Uint8, []int64{2}, nil, math.MaxUint64),
		"offset alone":              tensorOf(Uint8, []int64{2}, nil, 63),
		"strided end":               tensorOf(Uint8, []int64{2}, []int64{2}, math.MaxInt64),
		"wrapping strides":          tensorOf(Uint8, []int64{3}, []int64{math.MaxInt64}, 0),
		"wrapping strides of two":   tensorOf(Uint8, []int64{2, 2}, []int64{math.MaxInt64, math.MinInt64 + 1}, 0),
		"smallest stride":           tensorOf(Uint8, []int64{2}, []int64{math.MinInt64}, 0),
		"before the frame":          tensorOf(Uint8, []int64{2}, []int64{-2}, 1),
		"huge, and outside":         tensorOf(Uint8, []int64{1 << 40}, []int64{2}, 0),
		"huge, of one byte":         tensorOf(Uint8, []int64{1 << 40}, []int64{0}, 0),
		"huge, of eight bytes":      tensorOf(Uint8, []int64{8, 8, 8, 8, 8, 8}, []int64{1, 1, 1, 1, 1, 1}, 0),
		"negative axis":             tensorOf(Uint8, []int64{-1}, nil, 0),
		"no type":                   tensorOf(99, []int64{1}, nil, 0),
		"fewer strides":             tensorOf(Uint8, []int64{2, 2}, []int64{2}, 0),
		"a million axes":            tensorOf(Uint8, ones, nil, 0),
		"another frame":             {Dtype: millracev1.DType(Uint8), Shape: []int64{1}, Location: &millracev1.Tensor_Frame{Frame: math.MaxUint32}},
		"no place":                  {Dtype: millracev1.DType(Uint8), Shape: []int64{1}},
		"no place and strides":      {Dtype: millracev1.DType(Uint8), Shape: []int64{2}, Strides: []int64{0}},
	} {
		t.Run(name, func(t *testing.T) {
			v, err := goValue(&millracev1.Value{Kind: &millracev1.Value_TensorValue{TensorValue: tensor}}, frames)
			if err == nil {
				t.Fatalf("%v", v)
			}
			if len(err.Error()) > 1000 {
				t.Errorf("an error of %d bytes", len(err.Error()))
			}
		})
	}
}

// Many small tensors with strides in one header do not get the memory that one large one does not
// get.
func TestStridedTensorsShareTheirRoom(t *testing.T) {
	frames := [][]byte{make([]byte, 1<<20)}
	list := func(n int) *millracev1.Value {
		values := make([]*millracev1.Value, n)
		for i := range values {
			values[i] = &millracev1.Value{Kind: &millracev1.Value_TensorValue{TensorValue: tensorOf(Uint8, []int64{1 << 10, 1 << 10}, []int64{1, 1 << 10}, 0)}}
		}
		return &millracev1.Value{Kind: &millracev1.Value_ListValue{ListValue: &millracev1.ListValue{Values: values}}}
	}
	if _, err := goValue(list(1), frames); err != nil {
		t.Errorf("one array in the order of its columns: %v", err)
	}
	if v, err := goValue(list(1000), frames); err == nil {
		t.Errorf("a frame of 1 MiB became %d arrays of 1 MiB", len(v.([]any)))
	}
}

// Tensors with strides are read element by element.
func TestStridedTensorsAreRead(t *testing.T) {
	frames := [][]byte{{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}}
	for name, c := range map[string]struct {
		tensor *millracev1.Tensor
		want   []byte
	}{
		"columns":       {tensorOf(Uint8, []int64{3, 4}, []int64{1, 3}, 0), []byte{0, 3, 6, 9, 1, 4, 7, 10, 2, 5, 8, 11}},
		"backwards":     {tensorOf(Uint8, []int64{4}, []int64{-1}, 3), []byte{3, 2, 1, 0}},
		"both ways":     {tensorOf(Uint8, []int64{2, 2}, []int64{6, -2}, 4), []byte{4, 2, 10, 8}},
		"broadcast":     {tensorOf(Uint8, []int64{2, 1, 2}, []int64{0, 1 << 60, 11}, 0), []byte{0, 11, 0, 11}},
		"axes of one":   {tensorOf(Uint8, []int64{1, 3, 1}, []int64{math.MinInt64, 1, math.MaxInt64}, 1), []byte{1, 2, 3}},
		"wide elements": {tensorOf(Int32, []int64{3}, []int64{-4}, 8), []byte{8, 9, 10, 11, 4, 5, 6, 7, 0, 1, 2, 3}},
		"nothing":       {tensorOf(Float64, []int64{0, 1 << 40}, nil, 1<<60), []byte{}},
		"a scalar":      {tensorOf(Int32, nil, nil, 4), []byte{4, 5, 6, 7}},
		"the last byte": {tensorOf(Uint8, []int64{1}, nil, 11), []byte{11}},
	} {
		t.Run(name, func(t *testing.T) {
			v, err := goValue(&millracev1.Value{Kind: &millracev1.Value_TensorValue{TensorValue: c.tensor}}, frames)
			if err != nil {
				t.Fatal(err)
			}
			if a := v.(Array); !bytes.Equal(a.Data, c.want) {
				t.Errorf("%s is %v, want %v", a, a.Data, c.want)
			}
		})
	}
}

// FuzzResult reads results of any content: it returns a value or an error, and no more memory than
// its bytes justify.
func FuzzResult(f *testing.F) {
	for _, v := range []*millracev1.Value{
		{Kind: &millracev1.Value_TensorValue{TensorValue: tensorOf(Float64, []int64{2, 2}, []int64{8, 16}, 0)}},
		{Kind: &millracev1.Value_TensorValue{TensorValue: tensorOf(Uint8, []int64{4}, []int64{-1}, 3)}},
		{Kind: &millracev1.Value_TensorValue{TensorValue: tensorOf(Float64, []int64{1 << 61}, nil, 0)}},
		{Kind: &millracev1.Value_TensorValue{TensorValue: tensorOf(Int32, nil, nil, 4)}},
		{Kind: &millracev1.Value_TensorValue{TensorValue: &millracev1.Tensor{
			Dtype: millracev1.DType(Bool), Shape: []int64{2}, Location: &millracev1.Tensor_InlineData{InlineData: []byte{0, 1}},
		}}},
		{Kind: &millracev1.Value_OpaqueValue{OpaqueValue: &millracev1.Opaque{Encoding: "pickle5", Frames: []uint32{0, 1}}}},
		{Kind: &millracev1.Value_ListValue{ListValue: &millracev1.ListValue{Values: []*millracev1.Value{
			{Kind: &millracev1.Value_IntValue{IntValue: -7}}, {Kind: &millracev1.Value_ComplexValue{}}, {Kind: &millracev1.Value_Input{Input: 1}},
		}}}},
		{Kind: &millracev1.Value_MapValue{MapValue: &millracev1.MapValue{Fields: map[string]*millracev1.Value{"a": {}}}}},
	} {
		header, err := proto.Marshal(v)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(header, make([]byte, 64))
	}
	f.Fuzz(func(t *testing.T, header, frame []byte) {
		v := new(millracev1.Value)
		if proto.Unmarshal(header, v) != nil {
			return
		}
		frames := [][]byte{frame[:len(frame)/2], frame[len(frame)/2:]}
		got, err := goValue(v, frames)
		if err != nil {
			return
		}
		if a, ok := got.(Array); ok {
			n, err := a.Len()
			if err != nil || n*a.DType.Size() != len(a.Data) || len(a.Data) > len(header)+len(frame)+strideRoom {
				t.Errorf("%s of %d elements and %d bytes: %v", a, n, len(a.Data), err)
			}
			_, _ = arrayElements(a)
		}
		// Some conversions fail, but none panics.
		_, _ = convert[int8]("key", got)
		_, _ = convert[[]float64]("key", got)
		_, _ = convert[map[string]any]("key", got)
		_, _ = convert[[]*string]("key", got)
		_, _ = convert[complex64]("key", got)
	})
}

// A worker that announces more than the scheduler knows of gets no memory for it: an announced
// length alone must not end the process.
func TestAnnouncedFramesAreLimitedByTheObject(t *testing.T) {
	f := newFake(t)
	c := f.dial(t)
	future, err := c.Scatter(soon(t), []float64{1, 2, 3})
	if err != nil {
		t.Fatal(err)
	}
	for name, sizes := range map[string][]uint64{
		"more than any memory": {1 << 62}, "a frame of 2^64": {math.MaxUint64}, "a terabyte": {1 << 40}, "a wrapping sum": {math.MaxUint64, 25},
		"many frames": {1 << 26, 1 << 26, 1 << 26},
	} {
		t.Run(name, func(t *testing.T) {
			ref := &millracev1.ObjectRef{TaskId: future.TaskID()}
			f.mu.Lock()
			o := f.objects[ref.GetTaskId()]
			f.objects[ref.GetTaskId()] = &fakeObject{head: &millracev1.ObjectHead{Object: ref, Header: o.head.GetHeader(), FrameBytes: sizes}}
			f.mu.Unlock()
			for _, dst := range [][]byte{nil, make([]byte, 24)} {
				got := make([]Object, 1)
				if _, err := c.read(soon(t), "fake", []*millracev1.ObjectRef{ref}, []uint64{24}, got, dst); err == nil || got[0].Value != nil {
					t.Errorf("frames of %d bytes were read: %v", sizes, got[0].Value)
				}
			}
		})
	}
}

// Answers of a scheduler that have another length than the question are errors.
func TestAnswersOfAnotherLengthAreRefused(t *testing.T) {
	for _, more := range []int{-1, 1} {
		t.Run(fmt.Sprint(more), func(t *testing.T) {
			f := newFake(t)
			c := f.dial(t)
			ctx := soon(t)
			far, err := c.Submit(ctx, Native("far"), Args())
			if err != nil {
				t.Fatal(err)
			}
			if err := far.Wait(ctx); err != nil {
				t.Fatal(err)
			}
			never, err := c.Submit(ctx, Native("never"), Args())
			if err != nil {
				t.Fatal(err)
			}
			if err := c.Flush(ctx); err != nil {
				t.Fatal(err)
			}
			f.mu.Lock()
			f.answers = more
			f.mu.Unlock()
			_, fetched := c.fetchOnce(ctx, []*Future{far}, []int{0}, 0, make([]Object, 1), nil)
			_, leased := c.leaseObject(ctx, far.TaskID())
			_, held := c.HoldKeys(ctx, "a")
			for place, err := range map[string]error{
				"fetch": fetched, "leaseObject": leased, "hold": held, "replicate": c.Replicate(ctx, 1, far), "cancel": c.settleCancelled(ctx, []*Future{never}),
			} {
				if err == nil || !strings.Contains(err.Error(), "the scheduler answered") {
					t.Errorf("%s: %v", place, err)
				}
			}
		})
	}
}

// A state that a newer scheduler may have is shown by its number.
func TestUnknownStatesAreShown(t *testing.T) {
	f := Future{key: "k"}
	f.state.Store(99)
	if got := f.String(); got != "Future(k, 99)" {
		t.Error(got)
	}
}

// A fetch that is under way while the client closes ends with an error.
func TestAClosedPoolMakesNoConnection(t *testing.T) {
	c := new(Client)
	c.data.init(c)
	if err := c.data.close(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.data.conn("w:1"); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
}
