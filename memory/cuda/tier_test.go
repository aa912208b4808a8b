//go:build cgo && linux

package cuda_test

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/cuda"
	"github.com/millrace/millrace/memory/cuda/cudatest"
)

func newTier(t *testing.T, d *cuda.Device, bytes uint64, c cuda.TierConfig) *cuda.Tier {
	t.Helper()
	space := hostSlab(t, bytes+4<<20)
	pinned := make(chan error, 1)
	c.Pinned = func(err error) { pinned <- err }
	begin := time.Now()
	tier, err := d.NewTier(space, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closing(t, tier) })
	if err := <-pinned; err != nil {
		t.Fatal(err)
	}
	tell(t, "pin a tier in the background", float64(tier.Size())/(1<<30)/time.Since(begin).Seconds(), "GiB/s")
	return tier
}

func random(seed byte, n uint64) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{seed}).Read(b) // it never fails
	return b
}

// Pieces from anywhere in the slab are copied where the caller wants them, also across chunks that
// were pinned separately; many small ones by a kernel.
func TestGPUTierGathersPieces(t *testing.T) {
	d := open(t, 0)
	s := newSlab(t, d, 32<<20)
	tier := newTier(t, d, 16<<20, cuda.TierConfig{RegisterBytes: 1 << 20, StageBytes: 4 << 20})
	host, base := tier.Host()
	content := random(1, 20<<20)
	if err := s.WriteFrom(4096, content); err != nil {
		t.Fatal(err)
	}
	off := tier.Size() + 16
	few := []memory.Piece{{At: 3, Frame: memory.Frame{Offset: 9 << 20, Bytes: 1}}, {}, {At: 77, Frame: memory.Frame{Offset: 5000, Bytes: 3<<20 + 5}}}
	var many []memory.Piece
	for i := range uint64(900) {
		many = append(many, memory.Piece{At: 4096 * i, Frame: memory.Frame{Offset: 4096 + 7*4096*(i%600) + 16*(i%5), Bytes: 4000 - i}})
	}
	for name, pieces := range map[string][]memory.Piece{"few": few, "many": many, "none": nil} {
		if err := tier.Gather(off, s, pieces); err != nil {
			t.Fatal(err)
		}
		for i, p := range pieces {
			if p.Bytes > 0 && !bytes.Equal(host.Bytes(base+off+p.At, p.Bytes), content[p.Offset-4096:][:p.Bytes]) {
				t.Errorf("%s: other bytes in place of piece %d", name, i)
			}
		}
	}
	if tier.Gather(tier.Size(), s, []memory.Piece{{At: 4 << 20, Frame: memory.Frame{Offset: 4096, Bytes: 1}}}) == nil {
		t.Error("gathered to where nothing is")
	}
	if tier.Gather(0, host, few) == nil {
		t.Error("gathered from where the device does not copy")
	}
}

// A move crosses chunks that were pinned separately, and uses offsets of any alignment.
func TestGPUTierKeepsWhatIsSaved(t *testing.T) {
	d := open(t, 0)
	s := newSlab(t, d, 32<<20)
	tier := newTier(t, d, 16<<20, cuda.TierConfig{RegisterBytes: 3 << 20, StageBytes: 1 << 20})
	host, base := tier.Host()
	for i, n := range []uint64{1, 4096, 3<<20 + 17, 9 << 20} {
		content := random(byte(i), n)
		from, to := memory.Frame{Offset: 4096 + uint64(i)*256, Bytes: n}, memory.Frame{Offset: 16<<20 + 512, Bytes: n}
		off := uint64(i) * 4096
		if err := errors.Join(s.WriteFrom(from.Offset, content), tier.Save(off, s, from)); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(host.Bytes(base+off, n), content) {
			t.Errorf("%d bytes: other ones are in the tier", n)
		}
		back := make([]byte, n)
		if err := errors.Join(tier.Load(off, s, to), s.ReadInto(to.Offset, back)); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(back, content) {
			t.Errorf("%d bytes: other ones came back", n)
		}
	}
	if tier.Size()+1<<20 > host.Size()-base || tier.Save(tier.Size(), s, memory.Frame{Offset: 4096, Bytes: 1 << 20}) != nil {
		t.Error("what lies behind the tier cannot be used")
	}
	if tier.Save(1<<40, s, memory.Frame{Offset: 4096, Bytes: 1}) == nil || tier.Load(0, host, memory.Frame{Offset: 4096, Bytes: 1}) == nil {
		t.Error("moved to where nothing is")
	}
	sum, err := tier.Write(8192, []byte("by the processor"))
	p := make([]byte, 16)
	if err := errors.Join(err, tier.Read(8192, p, sum)); err != nil || string(p) != "by the processor" {
		t.Errorf("%q, %v", p, err)
	}
	if err := tier.Read(8192, p, sum+1); !errors.Is(err, memory.ErrChecksum) {
		t.Errorf("another checksum: %v", err)
	}
}

// Objects of 512 MiB and of 1 MiB are saved and loaded, several at a time, at the rate of the link.
func TestGPUTierMovesAtTheSpeedOfTheLink(t *testing.T) {
	d := open(t, 0)
	half := sized(16<<20, 4<<30)
	s := newSlab(t, d, 2*half+4<<20)
	tier := newTier(t, d, 2*half, cuda.TierConfig{})
	move := func(each uint64, off uint64, do func(off uint64, s memory.Space, f memory.Frame) error) error {
		var group sync.WaitGroup
		errs := make([]error, 4)
		for mover := range uint64(4) {
			group.Go(func() {
				for at := mover * each; at < half && errs[mover] == nil; at += 4 * each {
					errs[mover] = do(off+at, s, memory.Frame{Offset: 2<<20 + off + at, Bytes: each})
				}
			})
		}
		group.Wait()
		return errors.Join(errs...)
	}
	n := float64(half)
	for _, c := range []struct {
		name string
		each uint64
	}{{"512 MiB", sized(4<<20, 512<<20)}, {"64 MiB", sized(2<<20, 64<<20)}, {"1 MiB", sized(64<<10, 1<<20)}} {
		rate(t, "tier: save objects of "+c.name, n, func() error { return move(c.each, 0, tier.Save) })
		rate(t, "tier: load objects of "+c.name, n, func() error { return move(c.each, 0, tier.Load) })
		rate(t, "tier: both at once, each way, "+c.name, n, func() (err error) {
			var group sync.WaitGroup
			group.Go(func() { err = move(c.each, 0, tier.Save) })
			return errors.Join(move(c.each, half, tier.Load), func() error { group.Wait(); return err }())
		})
	}
}

func TestGPUStagingBuffersCarryPieces(t *testing.T) {
	d := open(t, 0)
	s := newSlab(t, d, sized(32<<20, 1<<30))
	n := sized(9<<20+5, 256<<20)
	content := random(1, n)
	in := memory.NewInflow(s)
	fill := func() error {
		for done := uint64(0); done < n; {
			room, err := in.Room(4096+done, n-done)
			if err != nil {
				return err
			}
			done += uint64(copy(room, content[done:]))
		}
		return in.Flush()
	}
	rate(t, "staged: copy into the device", float64(n), fill)
	back := make([]byte, 0, n)
	read := func() error {
		back = back[:0]
		out := memory.NewOutflow(s, []memory.Frame{{Offset: 4096, Bytes: n / 2}, {}, {Offset: 4096 + n/2, Bytes: n - n/2}}, 1<<20)
		defer out.Close()
		for {
			c, more, err := out.Next()
			if err != nil || !more {
				return err
			}
			back = append(back, c.Data...)
		}
	}
	rate(t, "staged: copy out of the device", float64(n), read)
	if !bytes.Equal(back, content) {
		t.Error("other bytes came back")
	}
	// More buffers than are pinned at one time: the slab pins more on demand.
	var lent []memory.Buffer
	for i := range 40 {
		b, err := s.Buffer()
		if err != nil {
			t.Fatal(err)
		}
		b.Load(memory.Piece{At: 10, Frame: memory.Frame{Offset: 4096 + uint64(i), Bytes: 1000}})
		lent = append(lent, b)
	}
	for i, b := range lent {
		if err := b.Wait(); err != nil || !bytes.Equal(b.Bytes()[10:1010], content[i:i+1000]) {
			t.Errorf("buffer %d: %v", i, err)
		}
		b.Free()
	}
}

// Three peers with four streams of two buffers each use 24 buffers, more than the 16 that are
// pinned first. None of them may be pageable.
func TestGPUManyStreamsHavePinnedBuffers(t *testing.T) {
	d := open(t, 0)
	s := newSlab(t, d, 8<<20)
	var lent []memory.Buffer
	take := func() {
		t.Helper()
		b, err := s.Buffer()
		if err != nil {
			t.Fatal(err)
		}
		lent = append(lent, b)
	}
	for range 24 {
		take()
	}
	if got := s.Staging(); got.Pinned < 24 || got.Pageable != 0 || got.Err != nil {
		t.Errorf("24 buffers: %+v", got)
	}
	for range 40 {
		take()
	}
	if got := s.Staging(); got.Pinned != 64 || got.Pageable != 0 {
		t.Errorf("64 buffers: %+v", got)
	}
	// All are lent: a caller that holds others gets none, and one without any waits.
	if b, err := s.TryBuffer(); b != nil || err != nil {
		t.Errorf("the 65th buffer: %v, %v", b, err)
	}
	waited := make(chan memory.Buffer)
	go func() {
		b, err := s.Buffer()
		if err != nil {
			t.Error(err)
		}
		waited <- b
	}()
	for _, b := range lent {
		b.Store(memory.Piece{At: 0, Frame: memory.Frame{Offset: 4096, Bytes: 100}})
		if err := b.Wait(); err != nil {
			t.Error(err)
		}
		b.Free()
	}
	b := <-waited
	b.Store(memory.Piece{At: 0, Frame: memory.Frame{Offset: 4096, Bytes: 100}})
	if err := b.Wait(); err != nil {
		t.Error(err)
	}
	b.Free()
	if b, err := s.TryBuffer(); err != nil || b == nil {
		t.Errorf("when all are back: %v, %v", b, err)
	} else {
		b.Free()
	}
	if got := s.Staging(); got.Pageable != 0 {
		t.Errorf("when all are back: %+v", got)
	}
}

// TestALostDeviceEndsTheWaitsForBuffers: as no buffer that is lent may come back.
func TestALostDeviceEndsTheWaitsForBuffers(t *testing.T) {
	d := open(t, 0)
	s := newSlab(t, d, 8<<20)
	var lent []memory.Buffer
	for range 64 {
		b, err := s.Buffer()
		if err != nil {
			t.Fatal(err)
		}
		lent = append(lent, b)
	}
	waited := make(chan error)
	go func() {
		_, err := s.Buffer()
		waited <- err
	}()
	fake.StickyCode.Store(cudatest.IllegalAddress)
	fake.StickyPID.Store(uint64(os.Getpid()))
	if err := d.Probe(); !errors.Is(err, cuda.ErrUnhealthy) {
		t.Errorf("the device: %v", err)
	}
	fake.Heal() // whichever result the driver now returns, the device stays lost
	if err := <-waited; !errors.Is(err, cuda.ErrUnhealthy) {
		t.Errorf("the wait for a buffer: %v", err)
	}
	for _, b := range lent {
		b.Free()
	}
}

// TestGPUParkedFlowsGoOn: flows that give their buffers back in the middle, at any place, carry the
// same bytes.
func TestGPUParkedFlowsGoOn(t *testing.T) {
	s := newSlab(t, open(t, 0), 32<<20)
	content := random(9, 11<<20)
	in := memory.NewInflow(s)
	defer in.Close()
	for done, round := uint64(0), uint64(0); done < uint64(len(content)); round++ {
		room, err := in.Room(4096+done, min(uint64(len(content))-done, 3<<20))
		if err != nil {
			t.Fatal(err)
		}
		// The first is filled, the second partly, the third not at all.
		n := uint64(copy(room, content[done:])) * (2 - round%3) / 2
		done += n
		if round%3 > 0 {
			in.Park(uint64(len(room)) - n)
			if in.Holds() {
				t.Fatal("a parked flow holds buffers")
			}
		} else if round%2 == 0 {
			in.Park(0)
		}
	}
	if err := in.Flush(); err != nil {
		t.Fatal(err)
	}
	for _, chunk := range []uint64{1 << 20, 4 << 20} {
		out := memory.NewOutflow(s, []memory.Frame{{Offset: 4096, Bytes: 5<<20 + 3}, {Offset: 4096 + 5<<20 + 3, Bytes: 6<<20 - 3}}, chunk)
		defer out.Close()
		var back []byte
		for i := 0; ; i++ {
			c, more, err := out.Next()
			if err != nil {
				t.Fatal(err)
			}
			if !more {
				break
			}
			back = append(back, c.Data...)
			if i%3 == 0 {
				out.Park()
			}
		}
		if !bytes.Equal(back, content) {
			t.Errorf("chunks of %d bytes: other bytes came back", chunk)
		}
	}
	// All buffers are back.
	for range 64 {
		b, err := s.TryBuffer()
		if err != nil || b == nil {
			t.Fatal("a buffer is lost", err)
		}
		defer b.Free()
	}
}

// TestAFailedCopyOfAParkedFlowIsReported: by the next call, as nobody waits for it before.
func TestAFailedCopyOfAParkedFlowIsReported(t *testing.T) {
	s := newSlab(t, open(t, 0), 32<<20)
	in := memory.NewInflow(s)
	defer in.Close()
	if _, err := in.Room(4096, 100); err != nil {
		t.Fatal(err)
	}
	fake.Fail("cuEventSynchronize", cudatest.Unknown, 0, 1)
	in.Park(0)
	if _, err := in.Room(4196, 100); err == nil || in.Holds() {
		t.Errorf("the next bytes: %v", err)
	}
	if err := in.Flush(); err == nil {
		t.Error("the failed copy was not reported")
	}
	out := memory.NewOutflow(s, []memory.Frame{{Offset: 4096, Bytes: 12 << 20}}, 4<<20)
	defer out.Close()
	if _, _, err := out.Next(); err != nil {
		t.Fatal(err)
	}
	fake.Fail("cuEventSynchronize", cudatest.Unknown, 0, 1)
	out.Park()
	if _, _, err := out.Next(); err == nil {
		t.Error("the failed copy of an outflow was not reported")
	}
}

// A short lack of memory to pin must not make all later copies slow.
func TestBuffersArePinnedWhenThatCanBe(t *testing.T) {
	if fake == nil {
		t.Skip("faults are made by the driver without a GPU")
	}
	d := open(t, 0)
	s := newSlab(t, d, 8<<20)
	fake.NoRegistration.Store(1)
	for range 2 {
		b, err := s.Buffer()
		if err != nil {
			t.Fatal(err)
		}
		b.Free()
	}
	if got := s.Staging(); got.Pinned != 0 || got.Pageable != 2 || got.Err == nil {
		t.Errorf("without registration: %+v", got)
	}
	fake.Heal()
	for s.Staging().Pinned == 0 {
		b, err := s.Buffer()
		if err != nil {
			t.Fatal(err)
		}
		b.Free()
	}
	if got := s.Staging(); got.Err != nil {
		t.Errorf("with it: %+v", got)
	}
}

// A failure is reported, and leaves nothing behind.
func TestTierSaysWhatFails(t *testing.T) {
	if fake == nil {
		t.Skip("faults are made by the driver without a GPU")
	}
	d := open(t, 0)
	s := newSlab(t, d, 8<<20)
	tier := newTier(t, d, 4<<20, cuda.TierConfig{})
	for _, call := range []string{"cuEventCreate", "cuMemcpyDtoHAsync_v2", "cuEventRecord"} {
		fake.Fail(call, cudatest.OutOfMemory, 0, 1)
		if err := tier.Save(0, s, memory.Frame{Offset: 4096, Bytes: 4096}); err == nil || !strings.Contains(err.Error(), "OUT_OF_MEMORY") {
			t.Errorf("%s: %v", call, err)
		}
		fake.Heal()
		if err := tier.Save(0, s, memory.Frame{Offset: 4096, Bytes: 4096}); err != nil {
			t.Errorf("after %s: %v", call, err)
		}
	}
	fake.Fail("cuMemHostRegister_v2", cudatest.OutOfMemory, 1, 1) // the first one is for the tables of Gather
	told := make(chan error, 1)
	another, err := d.NewTier(hostSlab(t, 8<<20), cuda.TierConfig{Pinned: func(err error) { told <- err }})
	if err != nil {
		t.Fatal(err)
	}
	if err := <-told; !errors.Is(err, cuda.ErrOutOfMemory) {
		t.Errorf("told: %v", err)
	}
	// For some time it fails at once. Then it succeeds, because memory can be pinned again.
	for tries := 0; ; tries++ {
		err := another.Save(0, s, memory.Frame{Offset: 4096, Bytes: 4096})
		if err == nil {
			break
		}
		if !errors.Is(err, cuda.ErrOutOfMemory) || tries > 1e8 {
			t.Fatalf("after %d tries: %v", tries, err)
		}
	}
	closing(t, another)
	if _, err := d.NewTier(s, cuda.TierConfig{}); err == nil {
		t.Error("a tier of memory of the device")
	}
}

func TestTierIsPinnedAheadOfItsUse(t *testing.T) {
	d := open(t, 0)
	told := make(chan error, 1)
	tier, err := d.NewTier(hostSlab(t, 18<<20), cuda.TierConfig{AheadBytes: 4 << 20, RegisterBytes: 2 << 20, Pinned: func(err error) { told <- err }})
	if err != nil {
		t.Fatal(err)
	}
	s := newSlab(t, d, 8<<20)
	// A chunk that is used is pinned before its turn.
	if err := tier.Save(14<<20, s, memory.Frame{Offset: 4096, Bytes: 4096}); err != nil {
		t.Error(err)
	}
	if err := <-told; err != nil {
		t.Errorf("the rest: %v", err)
	}
	closing(t, tier)
}
