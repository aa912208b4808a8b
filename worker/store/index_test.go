package store_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/host"
	"github.com/millrace/millrace/memory/ledger"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/objindex"
)

// mapped returns the slab as another process maps it.
func mapped(t *testing.T, slab memory.Space) []byte {
	t.Helper()
	data, err := unix.Mmap(slab.FD(), 0, int(slab.Size()), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Munmap(data); err != nil {
			t.Error(err)
		}
	})
	return data
}

func (s *spilling) connect(t *testing.T) *objindex.Reader {
	t.Helper()
	slots, err := s.index.NewReaderSlots()
	if err != nil {
		t.Fatal(err)
	}
	v, err := objindex.Open(s.index.File(), slots.File())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := slots.Close(); err != nil {
			t.Error(err)
		}
		if err := v.Close(); err != nil {
			t.Error(err)
		}
	})
	return v
}

func refAt(task int) transfer.Ref {
	i := id(task, 1)
	return transfer.Ref{Task: i.Task, Generation: i.Generation}
}

// empties drops all objects and waits until no memory is held.
func (s *spilling) empties(t *testing.T) {
	t.Helper()
	for _, o := range s.Inventory() {
		s.Drop(o.ID)
	}
	for limit := time.Now().Add(patience); ; {
		books, _, _ := s.Stats()
		if books.HeldBytes == 0 {
			return
		}
		if time.Now().After(limit) {
			t.Fatalf("%+v", books)
		}
		<-time.After(time.Millisecond)
	}
}

// Objects leave the slab, come back and are freed while many readers read them through the shared
// object index. Every read that counts as valid has the right bytes.
func TestReadersOfTheIndexUnderEviction(t *testing.T) {
	const bytes = 200_000
	slab, err := host.NewSlab(4<<20, memory.Identity{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := slab.Close(); err != nil {
			t.Error(err)
		}
	})
	s := newSpillingFrom(t, slab, 50*time.Millisecond)
	data := mapped(t, slab)
	var newest, delivered, discarded atomic.Uint64
	stop := make(chan struct{})
	var readers, writers sync.WaitGroup
	for range 3 {
		v := s.connect(t)
		readers.Go(func() {
			var found objindex.Found
			seen := make([]byte, bytes)
			for {
				select {
				case <-stop:
					return
				default:
				}
				for back := range 12 {
					task := int(newest.Load()) - back
					if task < 1 {
						continue
					}
					g, ok := v.Pin()
					if !ok {
						t.Error("no slot")
						return
					}
					found.Begin(1)
					o, ok := g.Find(refAt(task), slab.Size(), &found)
					if ok {
						copy(seen, data[o.Frames[0].Offset:])
					}
					switch held := g.End(0); {
					case !held:
						discarded.Add(1)
					case ok:
						delivered.Add(1)
						for i, b := range seen {
							if b != byte(i*task+i>>8) {
								t.Errorf("byte %d of object %d is not its own", i, task)
								return
							}
						}
					}
				}
			}
		})
	}
	limit := time.Now().Add(patience)
	var next atomic.Uint64
	for range 2 {
		writers.Go(func() {
			var mine []int
			for delivered.Load() < 300 || next.Load() < 100 {
				task := int(next.Add(1))
				if err := s.put(t, task, bytes); err != nil {
					t.Error(err)
					return
				}
				newest.Store(uint64(task))
				mine = append(mine, task)
				if n := len(mine); n%3 == 0 {
					if err := s.load(t, mine[n/2]); err != nil {
						t.Error(err)
					}
				}
				if len(mine) > 20 {
					s.Drop(id(mine[0], 1))
					mine = mine[1:]
				}
				if time.Now().After(limit) {
					t.Errorf("%d objects, %d delivered", task, delivered.Load())
					return
				}
			}
		})
	}
	writers.Wait()
	close(stop)
	readers.Wait()
	s.empties(t)
	t.Logf("%d objects, %d delivered, %d discarded, %d revoked", next.Load(), delivered.Load(), discarded.Load(), s.index.Revoked())
}

// A reader that does not finish delays requests for its memory only for a limited time, and its
// read becomes invalid.
func TestAReaderThatDoesNotGoOnIsNotWaitedForLong(t *testing.T) {
	slab, err := host.NewSlab(4<<20, memory.Identity{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := slab.Close(); err != nil {
			t.Error(err)
		}
	})
	s := newSpillingFrom(t, slab, 2*time.Second) // long enough for the checks that follow
	v := s.connect(t)
	const half = 1 << 20
	for n := 1; n <= 2; n++ {
		if err := s.put(t, n, half); err != nil {
			t.Fatal(err)
		}
	}
	read := func(task int) (objindex.ReadGuard, bool) {
		g, _ := v.Pin()
		var found objindex.Found
		_, ok := g.Find(refAt(task), s.Space().Size(), &found)
		return g, ok
	}
	slow, ok := read(1)
	if !ok {
		t.Fatal("object 1 is not in the index")
	}
	s.Drop(id(1, 1))
	if books, _, _ := s.Stats(); books.HeldBytes < 2*half {
		t.Errorf("what is read counts as free: %+v", books)
	}
	if g, ok := read(1); ok || !g.End(0) {
		t.Error("an object that was dropped is found")
	}
	r, err := s.ReserveWait(t.Context(), ledger.Holder{Kind: ledger.HolderTask, ID: 3}, []uint64{2 * half}, patience)
	if err != nil {
		t.Fatal(err)
	}
	s.Release(r)
	s.empties(t)
	if slow.End(0) {
		t.Error("what was overwritten counts as held")
	}
	if s.index.Revoked() != 1 {
		t.Errorf("%d readers were revoked", s.index.Revoked())
	}
}

// An object that left the slab is not found in the index. It is found again after it has come back
// and was leased.
func TestReloadedObjectsAreShownAgain(t *testing.T) {
	s := newSpilling(t)
	v := s.connect(t)
	published := func(task int) bool {
		g, _ := v.Pin()
		defer g.End(0)
		var found objindex.Found
		_, ok := g.Find(refAt(task), s.Space().Size(), &found)
		return ok
	}
	const count = 8
	for n := 1; n <= count; n++ {
		if err := s.put(t, n, 1<<20-8192); err != nil {
			t.Fatal(err)
		}
	}
	s.settle(t)
	for n := 1; n <= count; n++ {
		if o, ok := s.Lookup(id(n, 1)); !ok || o.InSlab != published(n) {
			t.Errorf("object %d: in the slab %v, published %v", n, o.InSlab, published(n))
		}
	}
	if published(1) {
		t.Fatal("nothing left the slab")
	}
	if err := s.load(t, 1); err != nil {
		t.Fatal(err)
	}
	leased := s.Source().Lease(transfer.Reader{Worker: 2}, []transfer.Ref{refAt(1)}, patience)
	if o, _ := s.Lookup(id(1, 1)); o.InSlab && !published(1) {
		t.Error("it came back, was lent and is not published")
	}
	s.Source().Release([]transfer.LeaseID{leased[0].Lease})
	s.empties(t)
}
