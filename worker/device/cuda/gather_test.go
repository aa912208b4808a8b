//go:build cgo && linux

package cuda

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/millrace/millrace/worker/ops"
)

// TestGPUJoinsManyPieces checks that one kernel joins many pieces of any size that lie on the
// device, at a peer or in the CPU's memory.
func TestGPUJoinsManyPieces(t *testing.T) {
	b := open(t, 64<<20, Options{})
	far := b.elsewhere(t, 32<<20)
	var xs []any
	var want []byte
	for i := range 300 {
		x := counting(t, ops.Uint8, int64(1+i*i%70_001))
		for k := range x.Data {
			x.Data[k] ^= byte(i)
		}
		want = append(want, x.Data...)
		switch i % 5 {
		case 0, 1:
			xs = append(xs, b.onDevice(t, x))
		case 2, 3:
			xs = append(xs, far.put(t, x))
		default:
			if len(x.Data) > 1000 { // inputs in headers are small, too
				x = b.onDevice(t, x)
			}
			xs = append(xs, x)
		}
	}
	for _, pieces := range [][2]int{{0, 300}, {0, 5}, {103, 107}, {110, 112}} {
		from := 0
		for _, x := range xs[:pieces[0]] {
			from += int(x.(*ops.Tensor).Len())
		}
		some := xs[pieces[0]:pieces[1]]
		got, err := b.call(t.Context(), "array.concat", ops.Args{Positional: some})
		if err != nil {
			t.Fatal(err)
		}
		x := resultOnHost(t, got).(*ops.Tensor)
		if !bytes.Equal(x.Data[x.Offset:][:x.Bytes()], want[from:][:x.Bytes()]) {
			t.Errorf("pieces %v: other bytes", pieces)
		}
		list, err := b.call(t.Context(), "core.list", ops.Args{Positional: some})
		if err != nil {
			t.Fatal(err)
		}
		for i, v := range list.([]any) {
			x := resultOnHost(t, v).(*ops.Tensor)
			if !bytes.Equal(x.Data[x.Offset:][:x.Bytes()], want[from:][:x.Bytes()]) {
				t.Errorf("copies of pieces %v: piece %d has other bytes", pieces, i)
			}
			from += int(x.Bytes())
		}
	}
}

func TestFewOrLargePiecesAreCopiedOneByOne(t *testing.T) {
	b := onFake(t)
	small, large := b.onDevice(t, tensor(t, "uint8", 5000)), b.onDevice(t, tensor(t, "uint8", 5<<20))
	for want, xs := range map[string][]any{
		"": {small, small, small}, "gather": {small, small, small, small}, " ": {large, large, large, large},
	} {
		launches, _ := b.launchesOf(t, "array.concat", nil, xs...)
		if got := kernelNames(launches); got != want && got+" " != want {
			t.Errorf("%d pieces launch %q", len(xs), got)
		}
	}
}

func TestGPURatesOfConcat(t *testing.T) {
	onGPU(t)
	b := open(t, 4<<30, Options{})
	for _, c := range []struct{ count, bytes int64 }{{4, 64 << 10}, {100, 64 << 10}, {1000, 64 << 10}, {1000, 4 << 10}, {64, 1 << 20}, {16, 4 << 20}, {4, 64 << 20}} {
		x := b.onDevice(t, counting(t, ops.Uint8, c.bytes))
		xs := make([]any, c.count)
		for i := range xs {
			xs[i] = x
		}
		best := time.Hour
		for range 10 {
			began := time.Now()
			if _, err := b.call(t.Context(), "array.concat", ops.Args{Positional: xs}); err != nil {
				t.Fatal(err)
			}
			best = min(best, time.Since(began))
			b.reset()
		}
		tell(t, fmt.Sprintf("concat of %d x %d KiB", c.count, c.bytes>>10), float64(best)/1e3, "us")
	}
}
