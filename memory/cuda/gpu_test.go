//go:build cgo && linux

package cuda_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/cuda"
	"github.com/millrace/millrace/memory/host"
)

// The tests in this file run with any driver. With a real one they use sizes that show the
// properties of the hardware, and report rates.

func sized(onFake, onGPU uint64) uint64 {
	if fake != nil {
		return onFake
	}
	return onGPU
}

// otherDevice returns the device for a peer: another device if there is one.
func otherDevice() int { return len(driver.Devices()) - 1 }

func hostSlab(t *testing.T, bytes uint64) *host.Slab {
	t.Helper()
	s, err := host.NewSlab(bytes, identity)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closing(t, s) })
	return s
}

// tell records a measurement on a real GPU.
func tell(t *testing.T, name string, value float64, unit string) {
	t.Helper()
	if fake != nil {
		return
	}
	t.Logf("%-40s %10.2f %s", name, value, unit)
	file, err := os.OpenFile(os.Getenv(ratesEnv), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return // no file is wanted
	}
	defer closing(t, file)
	if _, err := fmt.Fprintf(file, "%-40s %10.2f %s\n", name, value, unit); err != nil {
		t.Error(err)
	}
}

func TestGPUDevicesAreDescribed(t *testing.T) {
	t.Logf("driver %s from %s", driver.Version(), driver.Library())
	for _, d := range driver.Devices() {
		t.Logf("%+v", d)
		if d.TotalBytes == 0 || d.PCIBusID == "" || d.Attributes.ComputeMajor == 0 {
			t.Errorf("incomplete: %+v", d)
		}
	}
	m, err := driver.PeerAccess()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("peer access: %v", m)
}

func TestGPUSlabHoldsWhatIsWritten(t *testing.T) {
	begin := time.Now()
	d := open(t, 0)
	tell(t, "primary context and streams", float64(time.Since(begin))/1e6, "ms")
	size := cuda.Size{Bytes: sized(8<<20, 0)} // 0 means the default
	begin = time.Now()
	s, err := d.NewSlab(cuda.SlabConfig{Size: size, Identity: identity})
	if err != nil {
		t.Fatal(err)
	}
	defer closing(t, s)
	tell(t, "slab", float64(s.Size())/(1<<30), "GiB")
	tell(t, "slab: allocate, header, export", float64(time.Since(begin))/1e6, "ms")
	page := make([]byte, memory.HeaderBytes)
	if err := s.ReadInto(0, page); err != nil {
		t.Fatal(err)
	}
	if h, err := memory.ParseHeader(page); err != nil || h.Identity != identity || h.SizeBytes != s.Size() {
		t.Errorf("header %+v, %v", h, err)
	}
	if s.Bytes(0, 1) != nil || s.FD() != -1 || s.Device() != d {
		t.Error("device memory seems to be addressable")
	}
	end := s.Size() - 5
	if err := s.WriteFrom(end, []byte("hello")); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 5)
	if err := s.ReadInto(end, got); err != nil || string(got) != "hello" {
		t.Errorf("read %q, %v", got, err)
	}
	for _, r := range []memory.Frame{{Offset: s.Size(), Bytes: 1}, {Offset: 1, Bytes: 1<<64 - 1}} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("a pointer to %+v did not panic", r)
				}
			}()
			s.Pointer(r.Offset, r.Bytes)
		}()
	}
}

// The buffer ids of two slabs of one process differ by a random number.
func TestGPUSlabsDifferInTheirBufferIDs(t *testing.T) {
	d := open(t, 0)
	seen := map[uint64]bool{}
	last := uint64(0)
	for range 3 {
		s := newSlab(t, d, 2<<20)
		id, err := s.BufferID()
		if err != nil {
			t.Fatal(err)
		}
		seen[id-last] = true
		last = id
	}
	if len(seen) < 2 {
		t.Errorf("the ids have the distances %v", seen)
	}
}

func TestGPUSlabOfAnotherProcess(t *testing.T) {
	size := sized(16<<20, 4<<30)
	c := startChild(t)
	a := c.ask(t, order{Do: "slab", Device: otherDevice(), Size: cuda.Size{Bytes: size}, Identity: identity, Fill: 0xA5})
	d := open(t, 0)
	s := newSlab(t, d, size)
	for name, lie := range map[string]func(*cuda.Export){
		"nonce":       func(e *cuda.Export) { e.Identity.Nonce++ },
		"incarnation": func(e *cuda.Export) { e.Identity.Incarnation[0]++ },
		"size":        func(e *cuda.Export) { e.SizeBytes -= 4096 },
	} {
		e := a.Export
		lie(&e)
		if _, err := d.OpenPeer(e); !errors.Is(err, cuda.ErrIdentity) {
			t.Errorf("another %s: %v", name, err)
		}
	}
	begin := time.Now()
	p, err := d.OpenPeer(a.Export)
	if err != nil {
		t.Fatal(err)
	}
	tell(t, "map a peer and read its nonce", float64(time.Since(begin))/1e6, "ms")
	if _, err := d.OpenPeer(a.Export); err == nil || !strings.Contains(err.Error(), "mapped already") {
		t.Errorf("opened twice: %v", err)
	}
	in := d.Stream(cuda.In)
	n := size - memory.HeaderBytes
	whole := cuda.OnDevice(s.Pointer(memory.HeaderBytes, n), p.Pointer(memory.HeaderBytes, n), n)
	if err := errors.Join(in.Copy([]cuda.Copy{whole}, nil), in.Sync()); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 4096)
	for _, off := range []uint64{memory.HeaderBytes, size / 2, size - 4096} {
		if err := s.ReadInto(off, got); err != nil || !bytes.Equal(got, bytes.Repeat([]byte{0xA5}, 4096)) {
			t.Errorf("at %d: %x..., %v", off, got[:8], err)
		}
	}
	for _, chunk := range []uint64{64 << 10, 1 << 20, 16 << 20, 64 << 20, 256 << 20} {
		if chunk > n {
			break
		}
		var copies []cuda.Copy
		for off := uint64(memory.HeaderBytes); off+chunk <= size && len(copies) < 256; off += chunk {
			copies = append(copies, cuda.OnDevice(s.Pointer(off, chunk), p.Pointer(off, chunk), chunk))
		}
		rate(t, fmt.Sprintf("device to device, %d KiB copies", chunk>>10), float64(uint64(len(copies))*chunk), func() error {
			return errors.Join(in.Copy(copies, nil), in.Sync())
		})
	}
	closing(t, p)
	p, err = d.OpenPeer(a.Export)
	if err != nil {
		t.Fatalf("open again: %v", err)
	}
	closing(t, p)
}

// rate runs f twice and reports the rate of the second run, in GB/s.
func rate(t *testing.T, name string, bytes float64, f func() error) {
	t.Helper()
	var took time.Duration
	for range 2 {
		begin := time.Now()
		if err := f(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		took = time.Since(begin)
	}
	tell(t, name, bytes/float64(took), "GB/s")
}

// A worker whose slab takes most of the device dies and is started again. There is no room until
// the peer that mapped the old slab has unmapped it.
func TestGPUASlabOfTheDeadIsFreedByUnmapping(t *testing.T) {
	size := cuda.Size{Fraction: 0.6}
	device := otherDevice()
	first := startChild(t)
	a := first.ask(t, order{Do: "slab", Device: device, Size: size, Identity: identity, Fill: 7})
	d := open(t, 0)
	p, err := d.OpenPeer(a.Export)
	if err != nil {
		t.Fatal(err)
	}
	first.kill()
	// The bytes of the dead process can still be read.
	s := newSlab(t, d, 4<<20)
	in := d.Stream(cuda.In)
	if !p.Acquire() {
		t.Fatal("a dead peer cannot be acquired")
	}
	if err := errors.Join(in.Copy([]cuda.Copy{cuda.OnDevice(s.Pointer(1<<20, 4096), p.Pointer(1<<20, 4096), 4096)}, nil), in.Sync()); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 4096)
	if err := s.ReadInto(1<<20, got); err != nil || got[0] != 7 || got[4095] != 7 {
		t.Errorf("rescued %d and %d, %v", got[0], got[4095], err)
	}

	second := startChild(t)
	next := identity
	next.Incarnation[0]++
	second.tell(t, order{Do: "await", Device: device, Size: size, Identity: next, Fill: 8})
	if a := second.hear(t); !a.Again {
		t.Fatalf("there was room while the dead slab was mapped: %+v", a)
	}
	begin := time.Now()
	p.Retire(func(err error) {
		if err != nil {
			t.Error(err)
		}
	})
	p.Release()
	tell(t, "unmap the slab of a dead process", float64(time.Since(begin))/1e6, "ms")
	b := second.hear(t)
	if b.Error != "" || b.Refused == 0 {
		t.Fatalf("after %d refusals: %s", b.Refused, b.Error)
	}
	tell(t, "unmap to the next slab", float64(time.Since(begin))/1e6, "ms")
	if p, err = d.OpenPeer(b.Export); err != nil {
		t.Fatal(err)
	}
	closing(t, p)
}

// A process is killed while its slab is mapped here, and a new process gets the same pid, addresses
// and buffer ids. The new slab must not be confused with the old mapping, and no read may return
// bytes of the dead process.
func TestGPUSlabOfTheDeadIsNotTakenForItsSuccessors(t *testing.T) {
	d, size := open(t, 0), sized(4<<20, 1<<30)
	s, in, got := newSlab(t, d, 4<<20), d.Stream(cuda.In), make([]byte, 4096)
	read := func(p *cuda.Peer) byte {
		t.Helper()
		if !p.Acquire() {
			t.Fatal("it is being unmapped")
		}
		defer p.Release()
		at := memory.Frame{Offset: size / 2, Bytes: 4096}
		whole := cuda.OnDevice(s.Pointer(1<<20, at.Bytes), p.Pointer(at.Offset, at.Bytes), at.Bytes)
		if err := errors.Join(in.Copy([]cuda.Copy{whole}, nil), in.Sync(), s.ReadInto(1<<20, got)); err != nil {
			t.Fatal(err)
		}
		return got[0]
	}
	for name, throwaways := range map[string]int{"as it is": 0, "without a random buffer id": 1} {
		t.Run(name, func(t *testing.T) {
			o := order{Do: "slab", Device: otherDevice(), Size: cuda.Size{Bytes: size}, Identity: identity, Fill: 1, Throwaways: throwaways}
			filled := func(c *child) cuda.Export {
				t.Helper()
				o.Identity.Nonce++
				return c.ask(t, o).Export
			}
			c, _ := startChildAgain(t, nil)
			export := filled(c)
			p, err := d.OpenPeer(export)
			if err != nil {
				t.Fatal(err)
			}
			for o.Fill = 2; o.Fill < 6; o.Fill++ {
				c.kill()
				next, same := startChildAgain(t, c)
				before := export
				export, c = filled(next), next
				n, err := d.OpenPeer(export)
				t.Logf("the same pid: %v, the same handle: %v; mapping it beside the dead one: %v", same, export.Handle == before.Handle, err)
				if err != nil && !errors.Is(err, cuda.ErrIdentity) {
					t.Fatal(err)
				}
				if got := read(p); got != o.Fill-1 {
					t.Errorf("the dead one's slab has %d, not %d", got, o.Fill-1)
				}
				p.Retire(func(err error) {
					if err != nil {
						t.Error(err)
					}
				})
				if n == nil {
					if n, err = d.OpenPeer(export); err != nil {
						t.Fatalf("when nothing of the dead one is mapped: %v", err)
					}
				}
				if got := read(n); got != o.Fill {
					t.Errorf("the next one's slab has %d, not %d", got, o.Fill)
				}
				p = n
			}
			closing(t, p)
		})
	}
}

func TestGPUPinnedCopies(t *testing.T) {
	d := open(t, 0)
	bytesOf := sized(16<<20, 4<<30)
	space := hostSlab(t, 2*bytesOf)
	begin := time.Now()
	pinned, err := d.Register(space, cuda.RegisterConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer closing(t, pinned)
	tell(t, "pin host memory", float64(2*bytesOf)/(1<<30)/time.Since(begin).Seconds(), "GiB/s")
	s := newSlab(t, d, 2*bytesOf)
	up, down := d.Stream(cuda.In), d.Stream(cuda.Out)
	source := space.Bytes(memory.HeaderBytes, bytesOf-memory.HeaderBytes)
	for i := 0; i < len(source); i += 4093 {
		source[i] = byte(i)
	}
	chunk := sized(1<<20, 64<<20)
	var in, out []cuda.Copy
	for off := uint64(0); off < bytesOf; off += chunk {
		in = append(in, cuda.ToDevice(s.Pointer(bytesOf+off, chunk), pinned.Address(off, chunk), chunk))
		out = append(out, cuda.ToHost(pinned.Address(bytesOf+off, chunk), s.Pointer(bytesOf+off, chunk), chunk))
	}
	if err := errors.Join(up.Copy(in, nil), up.Sync(), down.Copy(out, nil), down.Sync()); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(source, space.Bytes(bytesOf+memory.HeaderBytes, bytesOf-memory.HeaderBytes)) {
		t.Error("what came back is not what went in")
	}
	n := float64(bytesOf)
	rate(t, "host to device", n, func() error { return errors.Join(up.Copy(in, nil), up.Sync()) })
	rate(t, "device to host", n, func() error { return errors.Join(down.Copy(out, nil), down.Sync()) })
	rate(t, "both at once, each way", n, func() error {
		return errors.Join(up.Copy(in, nil), down.Copy(out, nil), up.Sync(), down.Sync())
	})
}

// readOnly is a mapping of a host slab that cannot be written to.
type readOnly struct {
	*host.Slab
	data []byte
}

func (r readOnly) Bytes(off, n uint64) []byte { return r.data[off : off+n : off+n] }

// A peer's host memory is copied directly to our device, from a mapping that is read-only.
func TestGPUHostMemoryOfAPeer(t *testing.T) {
	d := open(t, 0)
	n := sized(4<<20, 1<<30)
	theirs := hostSlab(t, n)
	copy(theirs.Bytes(n-5, 5), "hello")
	data, err := unix.Mmap(theirs.FD(), 0, int(n), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(data) }()
	view := readOnly{theirs, data}
	if _, err := d.Register(view, cuda.RegisterConfig{}); err == nil {
		t.Error("registered for writing")
	}
	pinned, err := d.Register(view, cuda.RegisterConfig{ReadOnly: true})
	if !d.Info().Attributes.ReadOnlyRegistration {
		if err == nil || !strings.Contains(err.Error(), "cannot; copy by way of") {
			t.Errorf("got %v", err)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	defer closing(t, pinned)
	s := newSlab(t, d, n)
	in := d.Stream(cuda.In)
	rate(t, "a peer's host memory to device", float64(n), func() error {
		return errors.Join(in.Copy([]cuda.Copy{cuda.ToDevice(s.Pointer(0, n), pinned.Address(0, n), n)}, nil), in.Sync())
	})
	got := make([]byte, 5)
	if err := s.ReadInto(n-5, got); err != nil || string(got) != "hello" {
		t.Errorf("read %q, %v", got, err)
	}
}

// All operations run at the same time, from several goroutines.
func TestGPUConcurrentUse(t *testing.T) {
	d := open(t, 0)
	s := newSlab(t, d, 32<<20)
	var group sync.WaitGroup
	const workers, rounds = 8, 20
	errs := make([]error, workers)
	for i := range workers {
		group.Go(func() {
			errs[i] = func() error {
				stream, err := d.NewStream(cuda.In)
				if err != nil {
					return err
				}
				at, got := uint64(1+i)<<20, make([]byte, 512<<10)
				for r := range rounds {
					fill := byte(i*rounds + r)
					from, to := s.Pointer(at, 512<<10), s.Pointer(at+512<<10, 512<<10)
					err := errors.Join(stream.Memset(from, fill, 512<<10), stream.Copy([]cuda.Copy{cuda.OnDevice(to, from, 512<<10)}, nil))
					if err != nil {
						return err
					}
					if err := stream.Sync(); err != nil {
						return err
					}
					if err := s.ReadInto(at+512<<10, got); err != nil || got[0] != fill || got[len(got)-1] != fill {
						return fmt.Errorf("worker %d, round %d: read %d, %d: %w", i, r, got[0], got[len(got)-1], err)
					}
				}
				return stream.Close()
			}()
		})
	}
	group.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// The costs of the calls that are made for every object.
func TestGPUCallCosts(t *testing.T) {
	d := open(t, 0)
	s := newSlab(t, d, 4<<20)
	e, err := d.NewEvent()
	if err != nil {
		t.Fatal(err)
	}
	defer closing(t, e)
	stream := d.Stream(cuda.Compute)
	times := int(sized(10, 2000))
	cost := func(name string, f func() error) {
		begin := time.Now()
		for range times {
			if err := f(); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		tell(t, name, float64(time.Since(begin))/1e3/float64(times), "us")
	}
	small := []cuda.Copy{cuda.OnDevice(s.Pointer(1<<20, 8), s.Pointer(2<<20, 8), 8)}
	cost("copy of 8 bytes and event, submitted", func() error { return stream.Copy(small, e) })
	if err := stream.Sync(); err != nil {
		t.Fatal(err)
	}
	cost("event query", func() error { _, err := e.Query(); return err })
	p := make([]byte, 4096)
	cost("read of 4 KiB", func() error { return s.ReadInto(0, p) })
}
