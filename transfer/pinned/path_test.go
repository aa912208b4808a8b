//go:build cgo && linux

package pinned_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/internal/leaktest"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/cuda"
	"github.com/millrace/millrace/memory/cuda/cudatest"
	"github.com/millrace/millrace/memory/host"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/borrow"
	"github.com/millrace/millrace/transfer/pinned"
	"github.com/millrace/millrace/transfer/transfertest"
)

var (
	fake   *cudatest.Fake // nil on a real GPU
	driver *cuda.Driver
	last   atomic.Uint64
)

func TestMain(m *testing.M) {
	if err := start(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if address := os.Getenv(stagingChild); address != "" {
		if err := stageUntilKilled(address); err != nil {
			fmt.Fprintln(os.Stderr, "child:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	code := m.Run()
	err := leaktest.Find()
	if fake != nil {
		if left := fake.Left(); left != "" {
			err = errors.Join(err, errors.New("left in the driver: "+left))
		}
		err = errors.Join(err, fake.Close())
	}
	if err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func start() (err error) {
	library := os.Getenv(stagingLibrary)
	if os.Getenv("MILLRACE_CUDA_REAL") == "" && library == "" {
		if fake, err = cudatest.Start(2, 4<<30); err != nil {
			return err
		}
		library = fake.Library
	}
	driver, err = cuda.Load(cuda.Config{Library: library})
	return err
}

func closing(tb testing.TB, c io.Closer) {
	tb.Helper()
	if err := c.Close(); err != nil {
		tb.Error(err)
	}
}

func identity() memory.Identity {
	return memory.Identity{WorkerUUID: [16]byte{1}, Incarnation: [16]byte{2}, Nonce: last.Add(1)}
}

func hostSlab(tb testing.TB, size uint64) *host.Slab {
	tb.Helper()
	s, err := host.NewSlab(size, identity())
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { closing(tb, s) })
	return s
}

// below returns objects in pinned memory.
func below(tb testing.TB, size uint64) *transfertest.Objects {
	tb.Helper()
	return transfertest.NewObjectsIn(transfertest.NewRoom(hostSlab(tb, size)))
}

// lend serves objects like the worker of a GPU, with the slab in other memory.
func lend(tb testing.TB, source transfer.Source, space memory.Space) (transfer.Peer, func()) {
	tb.Helper()
	peer := transfer.Peer{Worker: 7, Name: "source", Address: fmt.Sprintf("pinned-test-%d-%d", os.Getpid(), last.Add(1))}
	s, err := borrow.Listen(peer.Address, borrow.ServerConfig{
		Space: hostSlab(tb, 1<<20), Device: &borrow.Device{}, Host: &borrow.Host{Space: space, Source: nobody{}}, Source: source, Incarnation: "test",
	})
	if err != nil {
		tb.Fatal(err)
	}
	end := sync.OnceFunc(func() { closing(tb, s) })
	tb.Cleanup(end)
	return peer, end
}

// nobody is a source that must not be called: it would copy the objects before it lends them.
type nobody struct{}

func (nobody) Lease(transfer.Reader, []transfer.Ref, time.Duration) []transfer.Leased {
	panic("the mirror was asked")
}
func (nobody) Release([]transfer.LeaseID) []bool              { return nil }
func (nobody) Renew([]transfer.LeaseID, time.Duration) []bool { return nil }

type reader struct {
	path *pinned.Path
	room *transfertest.Room
}

func newReader(tb testing.TB, slabBytes uint64, stall time.Duration) reader {
	tb.Helper()
	d, err := driver.Open(0)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { closing(tb, d) })
	slab, err := d.NewSlab(cuda.SlabConfig{Size: cuda.Size{Bytes: slabBytes}, Identity: identity()})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { closing(tb, slab) })
	path, err := pinned.New(pinned.Config{
		Device: d, Slab: slab, StallTimeout: stall, LeaseTTL: transfertest.Patience, Worker: func() ids.WorkerID { return 3 },
	})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { closing(tb, path) })
	return reader{path, transfertest.NewRoom(slab)}
}

func TestGPUConformance(t *testing.T) {
	rooms := map[transfer.Path]*transfertest.Room{}
	transfertest.Harness{
		Serve: func(t *testing.T, source transfer.Source) (transfer.Peer, func()) {
			t.Helper()
			return lend(t, source, source.(*transfertest.Objects).Room().Space())
		},
		Path: func(t *testing.T, stall time.Duration) transfer.Path {
			t.Helper()
			r := newReader(t, 1<<30, stall)
			rooms[r.path] = r.room
			return r.path
		},
		CanStall: true,
		Objects: func(t *testing.T) *transfertest.Objects {
			t.Helper()
			return below(t, 1<<30)
		},
		Room: func(path transfer.Path) *transfertest.Room { return rooms[path] },
	}.Run(t)
}

func ref(i int) transfer.Ref { return transfer.Ref{Task: ids.TaskID(i + 1), Generation: 1} }

func pattern(n int) []byte {
	p := make([]byte, n)
	for i := range p {
		p[i] = byte(i*31 + i>>8 + i>>16)
	}
	return p
}

// fetch fetches objects of the given sizes and compares them.
func fetch(t *testing.T, r reader, objects *transfertest.Objects, sizes ...int) {
	t.Helper()
	peer, _ := lend(t, objects, objects.Room().Space())
	var refs []transfer.Ref
	for i, n := range sizes {
		objects.Put(ref(i), "x", pattern(n))
		refs = append(refs, ref(i))
	}
	sink := transfertest.NewSinkIn(r.room)
	if err := r.path.Fetch(t.Context(), peer, refs, sink); err != nil {
		t.Fatal(err)
	}
	for i, n := range sizes {
		if _, frames, done, err := sink.Result(i); !done || err != nil || !bytes.Equal(frames[0], pattern(n)) {
			t.Errorf("%d bytes: done %v, %v, or they differ", n, done, err)
		}
	}
	transfertest.NoLeases(t, objects)
}

// Parts are pinned when they are first read. No copy may cross the border between two parts: at 2
// MiB, and at each further 256 MiB.
func TestGPUBytesAreReadAcrossTheBordersOfWhatIsPinned(t *testing.T) {
	sizes := []int{4097, 3 << 20, 1 << 20, 150 << 20, 120 << 20, 0, 1}
	fetch(t, newReader(t, 600<<20, transfertest.Patience), below(t, 600<<20), sizes...)
	many := slices.Repeat([]int{5000}, 1500) // more than one post and more than one batch
	fetch(t, newReader(t, 64<<20, transfertest.Patience), below(t, 64<<20), many...)
}

// Memory that cannot be pinned is read all the same.
func TestMemoryThatCannotBePinnedIsReadAllTheSame(t *testing.T) {
	if fake == nil {
		return // a real GPU does not fail on demand
	}
	r := newReader(t, 64<<20, transfertest.Patience)
	fake.Fail("cuMemHostRegister", cudatest.OutOfMemory, 0, 1)
	defer fake.Heal()
	fetch(t, r, below(t, 64<<20), 1<<20, 20<<20)
}

// A worker without pinned memory, or without a GPU, says so.
func TestOthersHaveNoPinnedMemory(t *testing.T) {
	objects := below(t, 16<<20)
	peer := transfer.Peer{Worker: 7, Name: "source", Address: fmt.Sprintf("pinned-test-%d-%d", os.Getpid(), last.Add(1))}
	s, err := borrow.Listen(peer.Address, borrow.ServerConfig{Space: objects.Room().Space(), Source: objects, Incarnation: "test"})
	if err != nil {
		t.Fatal(err)
	}
	defer closing(t, s)
	r := newReader(t, 16<<20, transfertest.Patience)
	err = r.path.Fetch(t.Context(), peer, []transfer.Ref{ref(0)}, transfertest.NewSinkIn(r.room))
	if !errors.Is(err, transfer.ErrUnreachable) || !strings.Contains(err.Error(), "no pinned host memory") {
		t.Errorf("got %v", err)
	}
}

// An object on the GPU itself is refused on its own.
func TestObjectsOutsideOfPinnedMemoryAreLeftToOtherPaths(t *testing.T) {
	objects := below(t, 16<<20)
	objects.Put(ref(0), "x", pattern(100))
	peer, _ := lend(t, objects, hostSlab(t, 16<<20)) // other memory than that of the objects
	r := newReader(t, 16<<20, transfertest.Patience)
	sink := transfertest.NewSinkIn(r.room)
	if err := r.path.Fetch(t.Context(), peer, []transfer.Ref{ref(0), ref(5)}, sink); err != nil {
		t.Fatal(err)
	}
	if _, _, done, err := sink.Result(0); !done || !errors.Is(err, transfer.ErrUnreachable) {
		t.Errorf("what lies elsewhere: done %v, %v", done, err)
	}
	if _, _, done, err := sink.Result(1); !done || !errors.Is(err, transfer.ErrNotHere) {
		t.Errorf("what is not there: done %v, %v", done, err)
	}
}

// Compares the rate with that of a bare copy from memory that this process has pinned.
func TestGPUFigures(t *testing.T) {
	if fake != nil {
		return // its copies are made by the processor
	}
	const n = 1 << 30
	objects := below(t, 2<<30)
	objects.Put(ref(0), "x", pattern(n))
	objects.Put(ref(1), "x", pattern(64<<10))
	peer, _ := lend(t, objects, objects.Room().Space())
	r := newReader(t, 8<<30, transfertest.Patience)
	for i, o := range []int{0, 0, 0, 0, 1, 1, 1} {
		r.room.Reset()
		began := time.Now()
		if err := r.path.Fetch(t.Context(), peer, []transfer.Ref{ref(o)}, transfertest.NewSinkIn(r.room)); err != nil {
			t.Fatal(err)
		}
		what := fmt.Sprintf("pinned memory of a peer, fetch %d of %d bytes", i, map[int]int{0: n, 1: 64 << 10}[o])
		transfertest.Note(t, what, float64(time.Since(began))/1e3, "us")
	}
}
