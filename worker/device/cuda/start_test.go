//go:build cgo && linux

package cuda

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/millrace/millrace/worker/device"
	"github.com/millrace/millrace/worker/device/wire"
	"github.com/millrace/millrace/worker/ops"
)

func (b *bench) start(t *testing.T, call device.Call) device.Started {
	t.Helper()
	p, err := b.Prepare(call)
	if err != nil {
		t.Fatal(err)
	}
	s, err := p.(device.Starter).Start(t.Context(), b.alloc)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestGPUCallsAreStartedBehindEachOther checks that calls that are started together use separate
// memory, end in their order and have the results that Run returns. When all slots are taken, Start
// does not wait.
func TestGPUCallsAreStartedBehindEachOther(t *testing.T) {
	b := open(t, 64<<20, Options{})
	call := pointCall(t, 3)
	p, err := b.Prepare(call)
	if err != nil {
		t.Fatal(err)
	}
	want, err := p.Run(t.Context(), b.alloc)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		var calls []device.Started
		for range slotCount {
			s := b.start(t, call)
			if s == nil {
				t.Fatalf("%d calls are open, and there is no room", len(calls))
			}
			calls = append(calls, s)
		}
		if b.start(t, call) != nil {
			t.Errorf("%d calls are open, and one more was started", len(calls))
		}
		for i, s := range calls {
			got, err := s.Finish()
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got.Header, want.Header) {
				t.Errorf("call %d: %x, want %x", i, got.Header, want.Header)
			}
		}
	}
	back, err := wire.Arguments(device.Call{Arguments: firstInput, Inputs: []device.Input{{Header: want.Header}}}, b.slab, view)
	if err != nil {
		t.Fatal(err)
	}
	var pair [16]byte
	binary.LittleEndian.PutUint64(pair[:], 2)
	if x := back.Positional[0].(*ops.Tensor); !bytes.Equal(x.Data, pair[:]) {
		t.Errorf("the point is %x", x.Data)
	}
}

// firstInput is a serialised Arguments message whose only argument is the first input.
var firstInput = []byte{0x0a, 0x02, 0x50, 0x00}
