//go:build cgo && linux

package cuda_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/cuda"
	"github.com/millrace/millrace/memory/cuda/cudatest"
)

func newRing(t *testing.T, s *cuda.Slab, slots int) *cuda.Ring {
	t.Helper()
	r, err := s.NewRing(slots)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closing(t, r) })
	return r
}

func takeSlot(t *testing.T, r *cuda.Ring) *cuda.RingSlot {
	t.Helper()
	x, err := r.Take(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// awaitWaiting returns when n calls of Take wait for a slot.
func awaitWaiting(r *cuda.Ring, n int) {
	for r.Waiting() != n {
		runtime.Gosched()
	}
}

// TestGPUARingIsProvedByItsHeader: a peer sees the ring as plain memory, with the identity of the
// slab on the first page, and the slots where their offsets say.
func TestGPUARingIsProvedByItsHeader(t *testing.T) {
	s := newSlab(t, open(t, 0), 32<<20)
	r := newRing(t, s, 3)
	all := r.Memory()
	header, err := memory.ParseHeader(all)
	if err != nil || header.Identity != s.Identity() || header.SizeBytes != uint64(len(all)) {
		t.Fatalf("the header of %d bytes: %+v, %v", len(all), header, err)
	}
	seen := map[uint64]bool{}
	for range 3 {
		x := takeSlot(t, r)
		defer x.Free()
		at := x.Offset()
		if at < memory.HeaderBytes || at%uint64(os.Getpagesize()) != 0 || at+memory.StageBytes > uint64(len(all)) || seen[at] {
			t.Errorf("a slot at %d of %d bytes", at, len(all))
		}
		seen[at] = true
		if b := x.Bytes(); len(b) != memory.StageBytes || &b[0] != &all[at] {
			t.Errorf("the slot at %d has %d bytes elsewhere", at, len(b))
		}
	}
}

// TestGPURingSlotsCarryPieces: pieces of all sizes and alignments come to a slot and back.
func TestGPURingSlotsCarryPieces(t *testing.T) {
	s := newSlab(t, open(t, 0), 32<<20)
	r := newRing(t, s, 2)
	content := random(3, memory.StageBytes)
	if err := s.WriteFrom(memory.HeaderBytes, content); err != nil {
		t.Fatal(err)
	}
	x, y := takeSlot(t, r), takeSlot(t, r)
	defer x.Free()
	defer y.Free()
	for _, count := range []uint64{1, 3, 64, 500} {
		// The pieces lie in the slot in the opposite order, with a gap of a byte between them.
		var pieces []memory.Piece
		size := (memory.StageBytes - 2*count) / count
		for i := range count {
			pieces = append(pieces, memory.Piece{
				At: (count - 1 - i) * (size + 1), Frame: memory.Frame{Offset: memory.HeaderBytes + i*size, Bytes: size},
			})
		}
		x.Load(pieces...)
		if err := x.Wait(); err != nil {
			t.Fatal(err)
		}
		for i, p := range pieces {
			from := p.Offset - memory.HeaderBytes
			if !bytes.Equal(x.Bytes()[p.At:p.At+p.Bytes], content[from:from+p.Bytes]) {
				t.Fatalf("piece %d of %d: other bytes are in the slot", i, count)
			}
		}
		copy(y.Bytes(), x.Bytes())
		for i := range pieces {
			pieces[i].Offset += 16 << 20
		}
		y.Store(pieces...)
		back := make([]byte, count*size)
		if err := errors.Join(y.Wait(), s.ReadInto(memory.HeaderBytes+16<<20, back)); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(back, content[:count*size]) {
			t.Errorf("%d pieces: other bytes came back", count)
		}
	}
}

// TestManySmallPiecesAreGathered: a launch takes the place of many copies where that is faster, and
// nowhere else.
func TestManySmallPiecesAreGathered(t *testing.T) {
	d := open(t, 0)
	s := newSlab(t, d, 32<<20)
	r := newRing(t, s, 1)
	if err := r.NoGather(); err != nil {
		t.Fatal(err)
	}
	content := random(5, 16<<20)
	if err := s.WriteFrom(memory.HeaderBytes, content); err != nil {
		t.Fatal(err)
	}
	slot := takeSlot(t, r)
	defer slot.Free()
	buffer, err := s.Buffer()
	if err != nil {
		t.Fatal(err)
	}
	defer buffer.Free()
	for name, x := range map[string]memory.Buffer{"a slot of a ring": slot, "a buffer of a slab": buffer} {
		t.Run(name, func(t *testing.T) { gathers(t, s, x, content) })
	}
}

func gathers(t *testing.T, s *cuda.Slab, x memory.Buffer, content []byte) {
	t.Helper()
	for _, c := range []struct {
		name         string
		count, bytes uint64
		every, shift uint64 // the distance of the frames, and the offset of the first one
		launches     uint64
	}{
		{name: "64 frames of 64 KiB", count: 64, bytes: 64 << 10, every: 128 << 10, launches: 1},
		{name: "1000 frames of 256 bytes", count: 1000, bytes: 256, every: 512, launches: 1},
		{name: "3000 unaligned frames of 100 bytes", count: 3000, bytes: 100, every: 301, shift: 1, launches: 1},
		{name: "adjacent frames", count: 64, bytes: 64 << 10, every: 64 << 10},
		{name: "large frames", count: 4, bytes: 1 << 20, every: 2 << 20},
		{name: "one frame", count: 1, bytes: 64 << 10, every: 64 << 10},
		{name: "two frames", count: 2, bytes: 4 << 10, every: 8 << 10},
		{name: "large unaligned frames", count: 16, bytes: 256 << 10, every: 300 << 10, shift: 3},
		{name: "more frames than a table has rows", count: 5000, bytes: 64, every: 128},
	} {
		var pieces []memory.Piece
		for i := range c.count {
			pieces = append(pieces, memory.Piece{
				At: i * c.bytes, Frame: memory.Frame{Offset: memory.HeaderBytes + c.shift + i*c.every, Bytes: c.bytes},
			})
		}
		clear(x.Bytes())
		before := fake.Launches.Load()
		x.Load(pieces...)
		if err := x.Wait(); err != nil {
			t.Fatal(err)
		}
		for i, p := range pieces {
			from := p.Offset - memory.HeaderBytes
			if !bytes.Equal(x.Bytes()[p.At:p.At+p.Bytes], content[from:from+p.Bytes]) {
				t.Fatalf("%s: other bytes of number %d are in the slot", c.name, i)
			}
		}
		if n := fake.Launches.Load() - before; n != c.launches {
			t.Errorf("%s: %d launches for a load", c.name, n)
		}
		zeros := make([]byte, len(content))
		if err := s.WriteFrom(memory.HeaderBytes, zeros); err != nil {
			t.Fatal(err)
		}
		x.Store(pieces...)
		back := make([]byte, len(content))
		if err := errors.Join(x.Wait(), s.ReadInto(memory.HeaderBytes, back), s.WriteFrom(memory.HeaderBytes, content)); err != nil {
			t.Fatal(err)
		}
		for _, p := range pieces {
			copy(zeros[p.Offset-memory.HeaderBytes:], x.Bytes()[p.At:p.At+p.Bytes])
		}
		if !bytes.Equal(back, zeros) {
			t.Errorf("%s: other bytes came back", c.name)
		}
		if n := fake.Launches.Load() - before; n != 2*c.launches {
			t.Errorf("%s: %d launches for a load and a store", c.name, n)
		}
		if launched := fake.Launched(before); len(launched) > 0 && launched[0].Grid[0] > 32 {
			t.Errorf("%s: a copy to the host has %d blocks", c.name, launched[0].Grid[0])
		}
	}
}

// TestARingWorksWithoutTheKernel: each piece is copied by itself, and the ring says why.
func TestARingWorksWithoutTheKernel(t *testing.T) {
	s := newSlab(t, open(t, 0), 16<<20)
	content := random(7, 8<<20)
	if err := s.WriteFrom(memory.HeaderBytes, content); err != nil {
		t.Fatal(err)
	}
	var pieces []memory.Piece
	for i := range uint64(64) {
		pieces = append(pieces, memory.Piece{At: i * 4096, Frame: memory.Frame{Offset: memory.HeaderBytes + i*8192, Bytes: 4096}})
	}
	for call, skip := range map[string]int{
		"cuModuleLoadData": 0, "cuModuleGetFunction": 0, "cuMemHostGetDevicePointer_v2": 0, "cuMemAlloc_v2": 0, "cuMemHostRegister_v2": 1,
	} {
		fake.Fail(call, cudatest.Unknown, skip, 1)
		r, err := s.NewRing(1)
		if err != nil {
			t.Errorf("%s: %v", call, err)
			continue
		}
		if err := r.NoGather(); err == nil || fake.Failing() {
			t.Errorf("%s failed and the kernel is there: %v", call, err)
		}
		before := fake.Launches.Load()
		x := takeSlot(t, r)
		x.Load(pieces...)
		if err := x.Wait(); err != nil || !bytes.Equal(x.Bytes()[63*4096:64*4096], content[63*8192:63*8192+4096]) || fake.Launches.Load() != before {
			t.Errorf("without %s: %v, or other bytes, or a launch", call, err)
		}
		x.Free()
		closing(t, r)
	}
}

// TestRingSlotsGoToTheFirstThatWaits: also when one that waits before it gives up.
func TestRingSlotsGoToTheFirstThatWaits(t *testing.T) {
	r := newRing(t, newSlab(t, open(t, 0), 4<<20), 1)
	x := takeSlot(t, r)
	ctx, giveUp := context.WithCancelCause(t.Context())
	order := make(chan int, 3)
	var group sync.WaitGroup
	for i := range 3 {
		group.Go(func() {
			with := t.Context()
			if i == 1 {
				with = ctx
			}
			x, err := r.Take(with)
			if i == 1 {
				if !errors.Is(err, context.Canceled) && !strings.Contains(err.Error(), "enough") {
					t.Errorf("the one that gives up: %v", err)
				}
				return
			}
			if err != nil {
				t.Error(err)
				return
			}
			order <- i
			x.Free()
		})
		awaitWaiting(r, i+1)
	}
	giveUp(errors.New("enough"))
	awaitWaiting(r, 2)
	x.Free()
	group.Wait()
	if first, second := <-order, <-order; first != 0 || second != 2 {
		t.Errorf("number %d before number %d", first, second)
	}
	if _, err := r.Take(ctx); err == nil || !strings.Contains(err.Error(), "enough") {
		t.Errorf("with a context that has ended: %v", err)
	}
	takeSlot(t, r).Free()
}

// TestARingServesManyAtOnce: no slot is lent twice, and a slot that comes as its caller gives up is
// not lost.
func TestARingServesManyAtOnce(t *testing.T) {
	s := newSlab(t, open(t, 0), 8<<20)
	r := newRing(t, s, 3)
	var group sync.WaitGroup
	for i := range 8 {
		group.Go(func() {
			for round := range 50 {
				ctx, cancel := context.WithCancel(t.Context())
				if (i+round)%4 == 0 {
					go cancel()
				}
				x, err := r.Take(ctx)
				if err == nil {
					copy(x.Bytes(), []byte{byte(i), byte(round)})
					piece := memory.Piece{Frame: memory.Frame{Offset: memory.HeaderBytes + uint64(i)*64, Bytes: 2}}
					x.Store(piece)
					err = x.Wait()
					clear(x.Bytes()[:2])
					x.Load(piece)
					if err = errors.Join(err, x.Wait()); err == nil && !bytes.Equal(x.Bytes()[:2], []byte{byte(i), byte(round)}) {
						t.Errorf("number %d, round %d: %v came back", i, round, x.Bytes()[:2])
					}
					x.Free()
				}
				cancel()
				if err != nil && !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	for range 3 {
		x := takeSlot(t, r)
		defer x.Free()
	}
}

// TestCopiesOfARingDoNotWaitForOthers: loads, stores and the copies of the device's own streams run
// at the same time, because each has a stream of its own.
func TestCopiesOfARingDoNotWaitForOthers(t *testing.T) {
	d := open(t, 0)
	handles := append(d.Streams(), newRing(t, newSlab(t, d, 8<<20), 1).Streams()...)
	slices.Sort(handles)
	if n := len(slices.Compact(slices.Clone(handles))); n != len(handles) {
		t.Errorf("only %d of %d streams are different", n, len(handles))
	}
}

func TestARingIsClosedWhenNothingIsLent(t *testing.T) {
	s := newSlab(t, open(t, 0), 4<<20)
	r, err := s.NewRing(2)
	if err != nil {
		t.Fatal(err)
	}
	x := takeSlot(t, r)
	if err := r.Close(); err == nil || !strings.Contains(err.Error(), "1 of its 2 slots are lent") {
		t.Errorf("closed with a slot lent: %v", err)
	}
	x.Free()
	closing(t, r)
	closing(t, r)
	if _, err := r.Take(t.Context()); !errors.Is(err, cuda.ErrClosed) {
		t.Errorf("a slot of a closed ring: %v", err)
	}
}

func TestEveryStepOfARingCanFailWithoutALeak(t *testing.T) {
	s := newSlab(t, open(t, 0), 4<<20)
	count := func() [5]int64 {
		return [5]int64{fake.Streams.Load(), fake.Events.Load(), fake.Registrations.Load(), fake.Allocations.Load(), fake.Modules.Load()}
	}
	before := count()
	if _, err := s.NewRing(0); err == nil {
		t.Error("a ring without slots")
	}
	for call, skip := range map[string]int{"cuMemHostRegister_v2": 0, "cuStreamCreateWithPriority": 1, "cuEventCreate": 1} {
		fake.Fail(call, cudatest.Unknown, skip, 1)
		if _, err := s.NewRing(2); err == nil || !strings.Contains(err.Error(), "a ring of 2 slots") {
			t.Errorf("%s failed and the ring did not: %v", call, err)
		}
		if after := count(); after != before {
			t.Errorf("%s: %v streams, events, registrations, allocations and modules are left, %v before", call, after, before)
		}
	}
	fake.Heal()
	r := newRing(t, s, 1)
	x := takeSlot(t, r)
	defer x.Free()
	piece := memory.Piece{Frame: memory.Frame{Offset: memory.HeaderBytes, Bytes: 10}}
	for _, call := range []string{"cuMemcpyDtoHAsync_v2", "cuEventRecord", "cuEventSynchronize"} {
		fake.Fail(call, cudatest.Unknown, 0, 1)
		x.Load(piece)
		if err := x.Wait(); err == nil {
			t.Errorf("%s failed and the load did not", call)
		}
		x.Load(piece)
		if err := x.Wait(); err != nil {
			t.Errorf("after %s: %v", call, err)
		}
	}
	var pieces []memory.Piece
	for i := range uint64(64) {
		pieces = append(pieces, memory.Piece{At: i * 64, Frame: memory.Frame{Offset: memory.HeaderBytes + i*128, Bytes: 64}})
	}
	fake.Fail("cuLaunchKernel", cudatest.Unknown, 0, 1)
	x.Store(pieces...)
	if err := x.Wait(); err == nil || !strings.Contains(err.Error(), "cuLaunchKernel of millrace_gather") {
		t.Errorf("a launch that fails: %v", err)
	}
}

// TestALostDeviceEndsTheWaitsForSlots: and the ring can still be closed.
func TestALostDeviceEndsTheWaitsForSlots(t *testing.T) {
	d := open(t, 0)
	r := newRing(t, newSlab(t, d, 4<<20), 1)
	x := takeSlot(t, r)
	waited := make(chan error)
	go func() {
		_, err := r.Take(t.Context())
		waited <- err
	}()
	awaitWaiting(r, 1)
	fake.StickyCode.Store(cudatest.IllegalAddress)
	fake.StickyPID.Store(uint64(os.Getpid()))
	x.Load(memory.Piece{Frame: memory.Frame{Offset: memory.HeaderBytes, Bytes: 10}})
	if err := x.Wait(); !errors.Is(err, cuda.ErrUnhealthy) {
		t.Errorf("a load: %v", err)
	}
	fake.Heal() // whichever result the driver now returns, the device stays lost
	if err := <-waited; !errors.Is(err, cuda.ErrUnhealthy) {
		t.Errorf("the wait for a slot: %v", err)
	}
	x.Free()
	if _, err := r.Take(t.Context()); !errors.Is(err, cuda.ErrUnhealthy) {
		t.Errorf("a slot afterwards: %v", err)
	}
}

// TestGPURingMovesAtTheSpeedOfTheLink: eight slots at a time, full of pieces of each size, by the
// method of the rule and by the copy engine alone.
func TestGPURingMovesAtTheSpeedOfTheLink(t *testing.T) {
	const slots = 8
	rounds := int(sized(2, 32))
	s := newSlab(t, open(t, 0), slots*12<<20+4<<20)
	r := newRing(t, s, slots)
	all := func(work func(x *cuda.RingSlot, i uint64)) error {
		errs := make([]error, slots)
		var group sync.WaitGroup
		for i := range uint64(slots) {
			group.Go(func() {
				x, err := r.Take(t.Context())
				if err != nil {
					errs[i] = err
					return
				}
				defer x.Free()
				for range rounds {
					work(x, i)
					errs[i] = errors.Join(errs[i], x.Wait())
				}
			})
		}
		group.Wait()
		return errors.Join(errs...)
	}
	for _, c := range []struct {
		name         string
		bytes, shift uint64
	}{
		{"4 MiB", 4 << 20, 0}, {"1 MiB", 1 << 20, 0}, {"256 KiB", 256 << 10, 0}, {"64 KiB", 64 << 10, 0}, {"64 KiB, apart by 4 modulo 16", 64 << 10, 4},
		{"64 KiB, apart by 1", 64 << 10, 1}, {"4 KiB", 4 << 10, 0}, {"4 KiB, apart by 4 modulo 16", 4 << 10, 4}, {"4 KiB, apart by 1", 4 << 10, 1},
	} {
		pieces := make([][]memory.Piece, slots)
		for i := range uint64(slots) {
			for at := uint64(0); at+c.bytes <= memory.StageBytes; at += c.bytes {
				pieces[i] = append(pieces[i], memory.Piece{
					At: at, Frame: memory.Frame{Offset: 4096 + i*12<<20 + 2*at + c.shift, Bytes: c.bytes},
				})
			}
		}
		n := float64(rounds * slots * memory.StageBytes)
		for _, how := range []string{"by the rule", "one by one"} {
			undo := func() {}
			if how == "one by one" {
				undo = r.OneByOne()
			}
			rate(t, "ring: load "+c.name+" "+how, n, func() error {
				return all(func(x *cuda.RingSlot, i uint64) { x.Load(pieces[i]...) })
			})
			rate(t, "ring: store "+c.name+" "+how, n, func() error {
				return all(func(x *cuda.RingSlot, i uint64) { x.Store(pieces[i]...) })
			})
			rate(t, "ring: half load, half store "+c.name+" "+how, n, func() error {
				return all(func(x *cuda.RingSlot, i uint64) {
					if i%2 == 0 {
						x.Load(pieces[i]...)
						return
					}
					x.Store(pieces[i]...)
				})
			})
			undo()
		}
	}
}
