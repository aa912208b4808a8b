package store_test

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/disk"
	"github.com/millrace/millrace/memory/host"
	"github.com/millrace/millrace/memory/ledger"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/objindex"
	"github.com/millrace/millrace/transfer/transfertest"
	"github.com/millrace/millrace/worker/store"
)

// faulty is a file that fails on demand.
type faulty struct {
	disk.File
	mu           sync.Mutex
	write, read  error // guarded by mu
	corruptReads bool  // guarded by mu
}

func (f *faulty) set(write, read error, corrupt bool) {
	f.mu.Lock()
	f.write, f.read, f.corruptReads = write, read, corrupt
	f.mu.Unlock()
}

func (f *faulty) WriteAt(p []byte, off int64) (int, error) {
	f.mu.Lock()
	err := f.write
	f.mu.Unlock()
	if err != nil {
		return 0, err
	}
	return f.File.WriteAt(p, off)
}

func (f *faulty) ReadAt(p []byte, off int64) (int, error) {
	f.mu.Lock()
	err, corrupt := f.read, f.corruptReads
	f.mu.Unlock()
	if err != nil {
		return 0, err
	}
	n, err := f.File.ReadAt(p, off)
	if corrupt && n > 0 {
		p[n/2] ^= 1
	}
	return n, err
}

// patience is how long tests wait for events that must happen.
const patience = 5 * time.Minute

type spilling struct {
	*store.Store
	file      *faulty
	directory string
	index     *objindex.Index
	wait      time.Duration // longest wait of put for room

	mu   sync.Mutex
	gone map[ledger.ObjectID]error // guarded by mu
}

// newSpilling returns a store of 4 MiB above a disk that can be made to fail.
func newSpilling(t *testing.T) *spilling {
	t.Helper()
	slab, err := host.NewSlab(4<<20, memory.Identity{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := slab.Close(); err != nil {
			t.Error(err)
		}
	})
	return newSpillingFrom(t, slab, patience)
}

// inBoth runs a test with a slab that the processor can address, and with one that it cannot.
func inBoth(t *testing.T, test func(t *testing.T, open func(*testing.T) *spilling)) {
	t.Helper()
	t.Run("host", func(t *testing.T) { test(t, newSpilling) })
	t.Run("device", func(t *testing.T) {
		test(t, func(t *testing.T) *spilling {
			t.Helper()
			far := transfertest.NewFar(t, 4<<20)
			t.Cleanup(func() {
				if n := far.Lent.Load(); n != 0 {
					t.Errorf("%d buffers were not given back", n)
				}
			})
			return newSpillingFrom(t, far, time.Second) // it has no readers
		})
	})
}

// newSpillingFrom returns a store on a slab. readers is how long it waits for readers of the index
// that do not finish.
func newSpillingFrom(t *testing.T, slab memory.Space, readers time.Duration) *spilling {
	t.Helper()
	s := &spilling{directory: t.TempDir(), wait: patience, gone: make(map[ledger.ObjectID]error)}
	tier, err := disk.Open(disk.Config{Directory: s.directory, SizeBytes: 64 << 20, Wrap: func(f disk.File) disk.File {
		s.file = &faulty{File: f}
		return s.file
	}})
	if err != nil {
		t.Fatal(err)
	}
	if s.Store, err = store.New(slab, slog.New(slog.DiscardHandler), tier); err != nil {
		t.Fatal(err)
	}
	if s.index, err = objindex.New(256, readers); err != nil {
		t.Fatal(err)
	}
	s.PublishTo(s.index)
	s.OnGone(func(id ledger.ObjectID, err error) {
		s.mu.Lock()
		s.gone[id] = err
		s.mu.Unlock()
	})
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		ticks := time.NewTicker(10 * time.Millisecond)
		defer ticks.Stop()
		for {
			select {
			case now := <-ticks.C:
				s.Tick(now)
			case <-stop:
				return
			}
		}
	}()
	t.Cleanup(func() {
		close(stop)
		<-stopped
		s.Close()
		if err := s.Check(); err != nil {
			t.Error(err)
		}
		if err := errors.Join(tier.Close(), s.index.Close()); err != nil {
			t.Error(err)
		}
		entries, err := os.ReadDir(s.directory)
		if err != nil || len(entries) > 0 {
			t.Errorf("left behind: %v, %v", entries, err)
		}
	})
	return s
}

func (s *spilling) put(t *testing.T, task, bytes int) error {
	t.Helper()
	r, err := s.ReserveWait(t.Context(), ledger.Holder{Kind: ledger.HolderTask, ID: uint64(task)}, []uint64{uint64(bytes)}, s.wait)
	if err != nil {
		return err
	}
	defer s.Release(r)
	frames, err := s.Allocate(r, id(task, 1), uint64(bytes))
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, bytes)
	for i := range b {
		b[i] = byte(i*task + i>>8)
	}
	if far, ok := s.Space().(memory.Staged); !ok {
		copy(s.View(frames[0]), b)
	} else if err := far.WriteFrom(frames[0].Offset, b); err != nil {
		t.Fatal(err)
	}
	return s.Seal(id(task, 1), []byte("header"))
}

// settle waits until no bytes are on their way to the disk.
func (s *spilling) settle(t *testing.T) {
	t.Helper()
	for limit := time.Now().Add(patience); s.Tiers()[0].LeavingBytes > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatalf("tiers %+v", s.Tiers())
		}
	}
}

// load brings an object into the slab and checks its bytes.
func (s *spilling) load(t *testing.T, task int) error {
	t.Helper()
	told := make(chan store.ReservationResult, 4)
	q := store.Request{Holder: ledger.Holder{Kind: ledger.HolderTask, ID: 1000}, Inputs: []ledger.ObjectID{id(task, 1)}, Deadline: time.Now().Add(patience)}
	r, progress, err := s.Acquire(q, func(x store.ReservationResult) { told <- x })
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
			progress = ledger.Ready
		}
	}
	o, ok := s.Held(id(task, 1))
	if !ok || !o.InSlab {
		t.Fatalf("object %d was loaded and is not there: %+v, %v", task, o, ok)
	}
	bytes, err := s.Copies(o.Frames)
	if err != nil {
		t.Fatal(err)
	}
	for i, b := range bytes[0] {
		if b != byte(i*task+i>>8) {
			t.Fatalf("byte %d of object %d changed", i, task)
		}
	}
	return nil
}

func TestObjectsGoToDiskAndComeBack(t *testing.T) {
	inBoth(t, func(t *testing.T, open func(*testing.T) *spilling) {
		t.Helper()
		s := open(t)
		for task := range 40 {
			if err := s.put(t, task+1, 600_000+task); err != nil {
				t.Fatal(err)
			}
		}
		for task := range 40 {
			if err := s.load(t, task+1); err != nil {
				t.Fatal(err)
			}
		}
		tiers := s.Tiers()
		if tiers[1].OutBytes < 18_000_000 || tiers[1].InBytes < 18_000_000 {
			t.Errorf("tiers %+v", tiers)
		}
		// All memory is free again when no object is needed, also on disk.
		for task := range 40 {
			if !s.Drop(id(task+1, 1)) {
				t.Errorf("object %d was not here", task+1)
			}
		}
		s.Close()
		if tiers := s.Tiers(); tiers[0].HeldBytes != 0 {
			t.Errorf("tiers %+v", tiers)
		}
	})
}

// A full or broken disk fails the spill: the objects in the slab stay, requests for room get the
// reason of the failure, and spilling works again when the disk does.
func TestBrokenDiskFailsTheSpillNotTheWorker(t *testing.T) {
	inBoth(t, func(t *testing.T, open func(*testing.T) *spilling) {
		t.Helper()
		for _, cause := range []error{unix.ENOSPC, unix.EIO} {
			t.Run(cause.Error(), func(t *testing.T) {
				s := open(t)
				s.file.set(cause, nil, false)
				s.wait = 200 * time.Millisecond
				n := 1
				refused := s.put(t, n, 1_000_000)
				// The first wait may have ended before the disk has failed.
				for limit := time.Now().Add(patience); refused == nil || !strings.Contains(refused.Error(), cause.Error()) && time.Now().Before(limit); {
					if refused == nil {
						n++
					}
					refused = s.put(t, n, 1_000_000)
				}
				s.wait = patience
				if !errors.Is(refused, ledger.ErrNoRoom) || !strings.Contains(refused.Error(), cause.Error()) || !strings.Contains(refused.Error(), "largest holders: t") {
					t.Fatalf("object %d: %v", n, refused)
				}
				for task := range n - 1 {
					if err := s.load(t, task+1); err != nil {
						t.Fatal(err)
					}
				}
				if tier := s.Tiers()[1]; !errors.Is(tier.Failed, cause) {
					t.Errorf("the tier: %+v", tier)
				}
				s.file.set(nil, nil, false)
				s.Tick(time.Now().Add(time.Hour))
				for task := n; task < n+10; task++ {
					if err := s.put(t, task, 1_000_000); err != nil {
						t.Fatal(err)
					}
				}
				if tier := s.Tiers()[1]; tier.Failed != nil {
					t.Errorf("the tier: %+v", tier)
				}
			})
		}
	})
}

// Objects that cannot be read back, or differ from the bytes written, are lost and reported as
// lost.
func TestUnreadableObjectsAreLost(t *testing.T) {
	inBoth(t, func(t *testing.T, open func(*testing.T) *spilling) {
		t.Helper()
		for name, c := range map[string]struct {
			err     error
			corrupt bool
			want    error
		}{"EIO": {unix.EIO, false, unix.EIO}, "corrupted": {nil, true, memory.ErrChecksum}} {
			t.Run(name, func(t *testing.T) {
				s := open(t)
				for task := range 10 {
					if err := s.put(t, task+1, 1_000_000); err != nil {
						t.Fatal(err)
					}
				}
				s.file.set(nil, c.err, c.corrupt)
				lost := 0
				for task := range 10 {
					if err := s.load(t, task+1); err != nil {
						if !errors.Is(err, c.want) {
							t.Fatal(err)
						}
						lost++
						s.mu.Lock()
						said := s.gone[id(task+1, 1)]
						s.mu.Unlock()
						if !errors.Is(said, c.want) {
							t.Errorf("nobody was told that %d is lost: %v", task+1, said)
						}
						if _, ok := s.Lookup(id(task+1, 1)); ok {
							t.Errorf("object %d is lost and found", task+1)
						}
					}
				}
				if lost == 0 || lost == 10 {
					t.Errorf("%d of 10 are lost", lost)
				}
			})
		}
	})
}

// Readers get spilled objects from the disk, but never the last byte of a corrupted one.
func TestLeasedObjectsAreReadFromDisk(t *testing.T) {
	s := newSpilling(t)
	for task := range 10 {
		if err := s.put(t, task+1, 1_000_000); err != nil {
			t.Fatal(err)
		}
	}
	source := s.Source()
	read := func(task int) (spilled bool, err error) {
		l := source.Lease(transfer.Reader{Worker: 2}, []transfer.Ref{{Task: id(task, 1).Task}}, patience)
		if l[0].Err != nil {
			return false, l[0].Err
		}
		defer source.Release([]transfer.LeaseID{l[0].Lease})
		region := l[0].Regions[0]
		from, ok := region.Space.(memory.Reader)
		if !ok {
			return false, nil
		}
		if region.Space.FD() != -1 || region.Bytes() != nil {
			t.Errorf("object %d can be addressed", task)
		}
		p := make([]byte, region.Frame.Bytes)
		for off := 0; off < len(p) && err == nil; off += 100_000 {
			err = from.ReadInto(region.Frame.Offset+uint64(off), p[off:min(len(p), off+100_000)])
		}
		for i, b := range p {
			if err == nil && b != byte(i*task+i>>8) {
				t.Fatalf("byte %d of object %d changed", i, task)
			}
		}
		return true, err
	}
	var spilled []int
	for task := range 10 {
		on, err := read(task + 1)
		if err != nil {
			t.Error(err)
		}
		if on {
			spilled = append(spilled, task+1)
		}
	}
	if len(spilled) == 0 {
		t.Fatal("nothing was spilled")
	}
	s.file.set(nil, nil, true)
	if _, err := read(spilled[0]); !errors.Is(err, memory.ErrChecksum) {
		t.Errorf("got %v", err)
	}
	if _, err := read(spilled[0]); !errors.Is(err, transfer.ErrNotHere) {
		t.Errorf("a lost object can be leased: %v", err)
	}
}

// Concurrent use leaves nothing behind.
func TestConcurrentUseOfSpilledObjects(t *testing.T) {
	s := newSpilling(t)
	var wait sync.WaitGroup
	for g := range 6 {
		wait.Go(func() {
			for i := range 12 {
				task := g*100 + i + 1
				r, err := s.ReserveWait(t.Context(), ledger.Holder{Kind: ledger.HolderTask, ID: uint64(task)}, []uint64{300_000}, patience)
				if err != nil {
					t.Error(err)
					return
				}
				frames, err := s.Allocate(r, id(task, 1), 300_000)
				if err != nil {
					t.Error(err)
					return
				}
				b := s.View(frames[0])
				for i := range b {
					b[i] = byte(i*task + i>>8)
				}
				if err := s.Seal(id(task, 1), []byte("header")); err != nil {
					t.Error(err)
				}
				s.Release(r)
				if i >= 4 {
					if err := s.load(t, task-4); err != nil {
						t.Error(err)
					}
					s.Drop(id(task-4, 1))
				}
			}
		})
	}
	wait.Wait()
	for _, o := range s.Inventory() {
		s.Drop(o.ID)
	}
	// Close discards queued writes; here they must be finished.
	s.settle(t)
	s.Close()
	names, err := filepath.Glob(filepath.Join(s.directory, "data"))
	if err != nil || len(names) != 1 {
		t.Errorf("files %v, %v", names, err)
	}
	if tiers := s.Tiers(); tiers[0].HeldBytes != 0 {
		t.Errorf("tiers %+v", tiers)
	}
}
