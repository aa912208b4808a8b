//go:build cgo && linux

package store_test

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/cuda"
	"github.com/millrace/millrace/memory/cuda/cudatest"
	"github.com/millrace/millrace/memory/disk"
	"github.com/millrace/millrace/memory/host"
	"github.com/millrace/millrace/memory/ledger"
	"github.com/millrace/millrace/worker/store"
)

// The tests named TestGPU run on a fake driver, or with MILLRACE_CUDA_REAL on the driver of the
// machine: then with sizes that show the hardware's behaviour, and they report rates.

// onDevice is a store on a GPU with pinned memory and a disk below.
type onDevice struct {
	*store.Store
	gpu  *cuda.Device
	slab *cuda.Slab
	tier *cuda.Tier
	real bool
}

// fakeGPU is the emulation of one GPU with 256 MiB. A process can load only one driver, so repeated
// tests (-count) share it.
var fakeGPU = sync.OnceValues(func() (*cudatest.Fake, error) { return cudatest.Start(1, 256<<20) })

func newOnDevice(t *testing.T, chunk uint64, slabChunks, pinnedChunks uint64) *onDevice {
	t.Helper()
	s := &onDevice{real: os.Getenv("MILLRACE_CUDA_REAL") != ""}
	library := ""
	if !s.real {
		fake, err := fakeGPU()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if left := fake.Left(); left != "" {
				t.Errorf("left in the driver: %s", left)
			}
		})
		library = fake.Library
	}
	driver, err := cuda.Load(cuda.Config{Library: library})
	if err != nil {
		t.Fatal(err)
	}
	closing := func(c interface{ Close() error }) {
		t.Cleanup(func() {
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	if s.gpu, err = driver.Open(0); err != nil {
		t.Fatal(err)
	}
	closing(s.gpu)
	if s.slab, err = s.gpu.NewSlab(cuda.SlabConfig{Size: cuda.Size{Bytes: slabChunks*chunk + 4<<20}}); err != nil {
		t.Fatal(err)
	}
	closing(s.slab)
	space, err := host.NewSlab(pinnedChunks*chunk+4<<20, memory.Identity{})
	if err != nil {
		t.Fatal(err)
	}
	closing(space)
	pinned := make(chan error, 1)
	if s.tier, err = s.gpu.NewTier(space, cuda.TierConfig{Pinned: func(err error) { pinned <- err }}); err != nil {
		t.Fatal(err)
	}
	closing(s.tier)
	if err := <-pinned; err != nil {
		t.Fatal(err)
	}
	file, err := disk.Open(disk.Config{Directory: t.TempDir(), SizeBytes: 1 << 30})
	if err != nil {
		t.Fatal(err)
	}
	closing(file)
	if s.Store, err = store.New(s.slab, slog.New(slog.DiscardHandler), s.tier, file); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func (s *onDevice) tell(t *testing.T, name string, value float64, unit string) {
	t.Helper()
	if !s.real {
		return
	}
	t.Logf("%-40s %10.2f %s", name, value, unit)
	file, err := os.OpenFile(os.Getenv("MILLRACE_RATES"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return // rates were not requested
	}
	_, err = fmt.Fprintf(file, "%-40s %10.2f %s\n", name, value, unit)
	if err = errors.Join(err, file.Close()); err != nil {
		t.Error(err)
	}
}

func chunkID(i uint64) ledger.ObjectID {
	return ledger.ObjectID{Task: ids.TaskID(i + 1), Generation: 1}
}

// create makes an object whose bytes are derived from its number.
func (s *onDevice) create(t *testing.T, i, bytes uint64) error {
	t.Helper()
	r, err := s.ReserveWait(t.Context(), ledger.Holder{Kind: ledger.HolderTask, ID: i}, []uint64{bytes}, patience)
	if err != nil {
		return err
	}
	defer s.Release(r)
	frames, err := s.Allocate(r, chunkID(i), bytes)
	if err != nil {
		return err
	}
	stream := s.gpu.Stream(cuda.Compute)
	if err := errors.Join(stream.Memset(s.slab.Pointer(frames[0].Offset, bytes), byte(i+1), bytes), stream.Sync()); err != nil {
		return err
	}
	return s.Seal(chunkID(i), []byte("header"))
}

// use brings an object back and checks some of its bytes.
func (s *onDevice) use(t *testing.T, i, bytes uint64) error {
	t.Helper()
	told := make(chan store.ReservationResult, 2)
	r, progress, err := s.Acquire(store.Request{
		Holder: ledger.Holder{Kind: ledger.HolderTask, ID: 1000 + i}, Inputs: []ledger.ObjectID{chunkID(i)}, Deadline: time.Now().Add(patience),
	}, func(x store.ReservationResult) { told <- x })
	if err != nil {
		return err
	}
	defer s.Release(r)
	for progress != ledger.Ready {
		x := <-told
		if x.Err != nil {
			return x.Err
		}
		if x.Ready {
			break
		}
	}
	o, ok := s.Held(chunkID(i))
	if !ok || !o.InSlab {
		return fmt.Errorf("chunk %d is not in the slab", i)
	}
	p := make([]byte, 8)
	for _, at := range []uint64{0, bytes / 2, bytes - 8} {
		if err := s.slab.ReadInto(o.Frames[0].Offset+at, p); err != nil {
			return err
		}
		for _, b := range p {
			if b != byte(i+1) {
				return fmt.Errorf("chunk %d has %d at %d", i, b, at)
			}
		}
	}
	return nil
}

// three calls a function for each number, three at a time.
func three(n uint64, do func(i uint64) error) error {
	var group sync.WaitGroup
	errs := make([]error, n)
	slots := make(chan struct{}, 3)
	for i := range n {
		slots <- struct{}{}
		group.Go(func() {
			errs[i] = do(i)
			<-slots
		})
	}
	group.Wait()
	return errors.Join(errs...)
}

// Objects of three times the size of the slab are created, read twice and replaced; on a GPU in
// chunks of 512 MiB with a slab of 4 GiB. The bytes read are those that were written.
func TestGPUStoreStreamsThreeTimesItsSlab(t *testing.T) {
	chunk := uint64(1 << 20)
	if os.Getenv("MILLRACE_CUDA_REAL") != "" {
		chunk = 512 << 20
	}
	const n = 24
	s := newOnDevice(t, chunk, 8, 2*n)
	timed := func(name string, moved uint64, do func() error) {
		before := s.Tiers()
		begin := time.Now()
		if err := do(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		took := time.Since(begin)
		after := s.Tiers()
		out, in := after[1].OutBytes-before[1].OutBytes, after[1].InBytes-before[1].InBytes
		s.tell(t, name, took.Seconds(), "s")
		s.tell(t, name+": spilled", float64(out)/float64(took), "GB/s")
		s.tell(t, name+": brought back", float64(in)/float64(took), "GB/s")
		if out+in < moved*chunk/2 {
			t.Errorf("%s: only %d bytes went out and %d came back, of %d chunks", name, out, in, moved)
		}
	}
	timed("create 12.9 GB with 4.3 GB of memory", n-8, func() error {
		return three(n, func(i uint64) error { return s.create(t, i, chunk) })
	})
	for range 2 {
		timed("scan 12.9 GB with 4.3 GB of memory", n-8, func() error {
			return three(n, func(i uint64) error { return s.use(t, i, chunk) })
		})
	}
	// Each step reads an old chunk and makes a new one, so both directions are in use.
	timed("replace 12.9 GB chunk by chunk", n, func() error {
		return three(n, func(i uint64) error {
			if err := s.use(t, i, chunk); err != nil {
				return err
			}
			s.Drop(chunkID(i))
			return s.create(t, n+i, chunk)
		})
	})
	if err := s.Check(); err != nil {
		t.Error(err)
	}
}
