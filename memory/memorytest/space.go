// Package memorytest is Test support: the tests that every memory.Space must pass.
package memorytest

import (
	"bytes"
	"testing"

	"github.com/millrace/millrace/memory"
)

// Space runs the conformance tests. open makes a space of the given size and identity, and
// registers a cleanup that closes it.
func Space(t *testing.T, open func(t *testing.T, size uint64, id memory.Identity) memory.Space) {
	t.Helper()
	const size = 8 << 20
	id := memory.Identity{WorkerUUID: [16]byte{1, 2}, Incarnation: [16]byte{3}, Nonce: 1<<63 + 4}
	t.Run("says what it was made with", func(t *testing.T) {
		s := open(t, size, id)
		if s.Size() != size || s.Identity() != id {
			t.Errorf("got %d bytes and %+v, want %d and %+v", s.Size(), s.Identity(), size, id)
		}
	})
	t.Run("bytes are addressed in place and bounded", func(t *testing.T) {
		s := open(t, size, id)
		a := s.Bytes(memory.HeaderBytes, 100)
		if a == nil {
			t.Skip("the processor cannot address this memory")
		}
		if len(a) != 100 || cap(a) != 100 {
			t.Errorf("length %d and capacity %d, want 100", len(a), cap(a))
		}
		if !bytes.Equal(a, make([]byte, 100)) {
			t.Error("fresh memory is not zero")
		}
		copy(a, "written once")
		if got := s.Bytes(memory.HeaderBytes+8, 4); string(got) != "once" {
			t.Errorf("read %q through a second slice", got)
		}
		if n := len(s.Bytes(size, 0)); n != 0 {
			t.Errorf("the empty range at the end has %d bytes", n)
		}
		s.Bytes(size-1, 1)[0] = 7
	})
	for _, r := range []memory.Frame{{Offset: size, Bytes: 1}, {Offset: size - 1, Bytes: 2}, {Offset: 1, Bytes: 1<<64 - 1}, {Offset: 1 << 63, Bytes: 0}} {
		if r.Within(size) {
			t.Errorf("frame %+v counts as within %d bytes", r, size)
		}
		func() {
			s := open(t, size, id)
			if s.Bytes(0, 0) == nil {
				return
			}
			defer func() {
				if recover() == nil {
					t.Errorf("bytes %+v of a space of %d did not panic", r, size)
				}
			}()
			s.Bytes(r.Offset, r.Bytes)
		}()
	}
	t.Run("punched ranges read as zeros and the rest stays", func(t *testing.T) {
		s := open(t, size, id)
		p, ok := s.(memory.Puncher)
		if !ok {
			t.Skip("the space does not give pages back")
		}
		all := s.Bytes(memory.HeaderBytes, size-memory.HeaderBytes)
		for i := range all {
			all[i] = 0xA5
		}
		ranges := []memory.Frame{{Offset: 1 << 20, Bytes: 2 << 20}, {Offset: 5 << 20, Bytes: 1 << 20}}
		if err := p.Punch(ranges); err != nil {
			t.Fatal(err)
		}
		for i, b := range all {
			off := uint64(i) + memory.HeaderBytes
			want := byte(0xA5)
			for _, r := range ranges {
				if off >= r.Offset && off < r.End() {
					want = 0
				}
			}
			if b != want {
				t.Fatalf("byte %d is %#x, want %#x", off, b, want)
			}
		}
		if err := p.Punch([]memory.Frame{{Offset: size - 1, Bytes: 2}}); err == nil {
			t.Error("Punch accepted a range beyond the end")
		}
	})
}
