package transfertest

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/transfer"
)

// Far is a memory.Staged space. It behaves like the memory of a device: its copies run in the
// background.
type Far struct {
	data []byte
	// Lent is the number of buffers in use.
	Lent atomic.Int64
	// Loads is the number of Load calls.
	Loads atomic.Int64
	// places, if not nil, has room for the largest number of buffers in use. Each of them occupies
	// a place.
	places chan struct{}
	// Break, once true, makes every copy fail.
	Break atomic.Bool
	// BreakAt, once set, makes copies from and to a range fail.
	BreakAt atomic.Pointer[memory.Frame]
	// idle are free buffers, for the next use.
	idle sync.Pool
}

var _ memory.Staged = (*Far)(nil)

// ErrBroken is the error of a broken Far.
var ErrBroken = errors.New("the test's device is lost")

// NewFar returns a space of n bytes. It takes memory only where it is written, and ends with the
// test.
func NewFar(tb testing.TB, n uint64) *Far {
	tb.Helper()
	data, err := unix.Mmap(-1, 0, int(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE|unix.MAP_NORESERVE)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := unix.Munmap(data); err != nil {
			tb.Error(err)
		}
	})
	return &Far{data: data}
}

// Limit sets the largest number of buffers in use, as a device limits them.
// REQUIRES: it is called before the first use.
func (f *Far) Limit(most int) { f.places = make(chan struct{}, most) }

// Size is part of memory.Space.
func (f *Far) Size() uint64 { return uint64(len(f.data)) }

// Identity is part of memory.Space.
func (f *Far) Identity() memory.Identity { return memory.Identity{} }

// Bytes is part of memory.Space. It returns nil.
func (f *Far) Bytes(off, n uint64) []byte {
	_ = f.data[off : off+n : off+n] // panics on a bad range, like other spaces
	return nil
}

// FD is part of memory.Space.
func (f *Far) FD() int { return -1 }

// broken reports whether a copy from or to a range fails.
func (f *Far) broken(off, n uint64) bool {
	at := f.BreakAt.Load()
	return f.Break.Load() || at != nil && off < at.End() && at.Offset < off+n
}

// ReadInto is part of memory.Reader.
func (f *Far) ReadInto(off uint64, p []byte) error {
	if f.broken(off, uint64(len(p))) {
		return ErrBroken
	}
	copy(p, f.data[off:off+uint64(len(p))])
	return nil
}

// WriteFrom is part of memory.Staged.
func (f *Far) WriteFrom(off uint64, p []byte) error {
	if f.broken(off, uint64(len(p))) {
		return ErrBroken
	}
	copy(f.data[off:off+uint64(len(p))], p)
	return nil
}

// Buffer is part of memory.Staged.
func (f *Far) Buffer() (memory.Buffer, error) {
	if f.places != nil {
		f.places <- struct{}{}
	}
	return f.lend(), nil
}

// TryBuffer is part of memory.Staged.
func (f *Far) TryBuffer() (memory.Buffer, error) {
	if f.places != nil {
		select {
		case f.places <- struct{}{}:
		default:
			return nil, nil //nolint:nilnil // no buffer is free, which is no error
		}
	}
	return f.lend(), nil
}

func (f *Far) lend() memory.Buffer {
	f.Lent.Add(1)
	if b, ok := f.idle.Get().(*farBuffer); ok {
		return b
	}
	return &farBuffer{far: f, data: make([]byte, memory.StageBytes)}
}

type farBuffer struct {
	far  *Far
	data []byte
	wait sync.WaitGroup
	err  error
}

// Bytes is part of memory.Buffer.
func (b *farBuffer) Bytes() []byte { return b.data }

// Load is part of memory.Buffer.
func (b *farBuffer) Load(pieces ...memory.Piece) {
	b.far.Loads.Add(1)
	b.begin(pieces, b.far.ReadInto)
}

// Store is part of memory.Buffer.
func (b *farBuffer) Store(pieces ...memory.Piece) { b.begin(pieces, b.far.WriteFrom) }

func (b *farBuffer) begin(pieces []memory.Piece, move func(uint64, []byte) error) {
	b.wait.Go(func() {
		for _, p := range pieces {
			if b.err == nil {
				b.err = move(p.Offset, b.data[p.At:p.At+p.Bytes])
			}
		}
	})
}

// Wait is part of memory.Buffer.
func (b *farBuffer) Wait() error {
	b.wait.Wait()
	return b.err
}

// Free is part of memory.Buffer. It changes the bytes, so that a use after Free fails the test.
func (b *farBuffer) Free() {
	b.wait.Wait()
	for i := 0; i < len(b.data); i += 64 << 10 {
		b.data[i] ^= 0xFF
	}
	b.err = nil
	b.far.Lent.Add(-1)
	b.far.idle.Put(b)
	if b.far.places != nil {
		<-b.far.places
	}
}

// content returns the bytes of a region: the memory itself, or a copy if the CPU cannot address it.
func content(r transfer.Region) []byte {
	far, ok := r.Space.(memory.Reader)
	if !ok || r.Frame.Bytes == 0 {
		return r.Bytes()
	}
	p := make([]byte, r.Frame.Bytes)
	if err := far.ReadInto(r.Frame.Offset, p); err != nil {
		panic(err) // only tests use it
	}
	return p
}
