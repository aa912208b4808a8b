package store_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/internal/leaktest"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/host"
	"github.com/millrace/millrace/memory/ledger"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/worker/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(leaktest.Patient{M: m}) }

func newStore(t *testing.T, size uint64) *store.Store {
	t.Helper()
	slab, err := host.NewSlab(size, memory.Identity{})
	if err != nil {
		t.Fatal(err)
	}
	s, err := store.New(slab, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Check(); err != nil {
			t.Error(err)
		}
		s.Close()
		if err := slab.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func id(task, generation int) ledger.ObjectID {
	return ledger.ObjectID{Task: ids.TaskID(task), Generation: ids.Attempt(generation)}
}

var task = ledger.Holder{Kind: ledger.HolderTask, ID: 1}

// put stores an object with one frame.
func put(t *testing.T, s *store.Store, o ledger.ObjectID, content string) {
	t.Helper()
	r, err := s.ReserveWait(t.Context(), task, []uint64{uint64(len(content))}, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Release(r)
	frames, err := s.Allocate(r, o, uint64(len(content)))
	if err != nil {
		t.Fatal(err)
	}
	copy(s.View(frames[0]), content)
	if err := s.Seal(o, []byte("header")); err != nil {
		t.Fatal(err)
	}
}

// putSmall stores an object without frames.
func putSmall(t *testing.T, s *store.Store, o ledger.ObjectID, header []byte) {
	t.Helper()
	if err := s.PutSmall(o, header); err != nil {
		t.Fatal(err)
	}
}

func TestNewestGenerationIsFound(t *testing.T) {
	s := newStore(t, 1<<20)
	put(t, s, id(1, 1), "one")
	put(t, s, id(1, 3), "three")
	putSmall(t, s, id(2, 1), []byte("small"))
	putSmall(t, s, id(2, 2), []byte("smaller"))
	for _, c := range []struct {
		ask  ledger.ObjectID
		want ledger.ObjectID
	}{
		{id(1, 0), id(1, 3)}, {id(1, 1), id(1, 1)}, {id(1, 2), ledger.ObjectID{}},
		{id(2, 0), id(2, 2)}, {id(2, 1), id(2, 1)}, {id(3, 0), ledger.ObjectID{}},
	} {
		if o, ok := s.Lookup(c.ask); ok != (c.want != ledger.ObjectID{}) || ok && o.ID != c.want {
			t.Errorf("lookup of %s: %v, %v", c.ask, o.ID, ok)
		}
	}
	if got := s.Inventory(); len(got) != 4 || got[0].ID != id(1, 1) || got[3].ID != id(2, 2) || got[0].Bytes() != 9 {
		t.Errorf("inventory %v", got)
	}
	for _, o := range []ledger.ObjectID{id(1, 3), id(2, 2)} {
		if !s.Drop(o) || s.Drop(o) {
			t.Errorf("drop of %s", o)
		}
	}
	if _, ok := s.Lookup(id(2, 2)); ok {
		t.Error("a dropped object is found")
	}
}

func TestPinnedBytesStayWhenDropped(t *testing.T) {
	s := newStore(t, 1<<20)
	put(t, s, id(1, 1), "content")
	o, ok := s.Pin(id(1, 1), 7, 1)
	if !ok {
		t.Fatal("no pin")
	}
	// Another attempt of the same task has its own pin.
	if _, ok := s.Pin(id(1, 1), 7, 2); !ok {
		t.Fatal("no pin")
	}
	s.Drop(id(1, 1))
	s.Unpin(id(1, 1), 7, 2)
	if _, ok := s.Pin(id(1, 1), 8, 1); ok {
		t.Error("a dropped object can be pinned")
	}
	if string(s.View(o.Frames[0])) != "content" {
		t.Error("pinned bytes changed")
	}
	s.Unpin(id(1, 1), 7, 1)
	if books, _, _ := s.Stats(); books.HeldBytes != 0 {
		t.Errorf("%d bytes are held by nobody", books.HeldBytes)
	}
}

func TestReservationWaitsForRoom(t *testing.T) {
	s := newStore(t, 1<<20)
	put(t, s, id(1, 1), strings.Repeat("x", 700<<10))
	told := make(chan error, 1)
	r, granted, err := s.Reserve(task, []uint64{600 << 10}, time.Now().Add(time.Hour), func(err error) { told <- err })
	if granted || err != nil {
		t.Fatalf("granted %v, %v", granted, err)
	}
	s.Drop(id(1, 1))
	if err := <-told; err != nil {
		t.Error(err)
	}
	s.Release(r)
	// The first request can never be granted, and the second may not wait.
	if _, _, err := s.Reserve(task, []uint64{2 << 20}, time.Now().Add(time.Hour), nil); !errors.Is(err, ledger.ErrTooLarge) {
		t.Errorf("got %v", err)
	}
	put(t, s, id(2, 1), strings.Repeat("x", 700<<10))
	if _, err := s.ReserveWait(t.Context(), task, []uint64{600 << 10}, 0); !errors.Is(err, ledger.ErrNoRoom) {
		t.Errorf("got %v", err)
	}
}

func TestWaitEndsWithDeadlineContextOrClose(t *testing.T) {
	s := newStore(t, 1<<20)
	put(t, s, id(1, 1), strings.Repeat("x", 700<<10))
	told := make(chan error, 1)
	deadline := time.Now().Add(time.Hour)
	if _, granted, err := s.Reserve(task, []uint64{600 << 10}, deadline, func(err error) { told <- err }); granted || err != nil {
		t.Fatalf("granted %v, %v", granted, err)
	}
	s.Tick(deadline.Add(-time.Second))
	s.Tick(deadline)
	if err := <-told; !errors.Is(err, ledger.ErrNoRoom) || !strings.Contains(err.Error(), "t1/a1") {
		t.Errorf("got %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.ReserveWait(ctx, task, []uint64{600 << 10}, time.Hour); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if _, granted, err := s.Reserve(task, []uint64{600 << 10}, deadline, func(err error) { told <- err }); granted || err != nil {
		t.Fatalf("granted %v, %v", granted, err)
	}
	s.Close()
	if err := <-told; !errors.Is(err, ledger.ErrNoRoom) {
		t.Errorf("got %v", err)
	}
}

func TestReadLeases(t *testing.T) {
	s := newStore(t, 1<<20)
	source := s.Source()
	put(t, s, id(1, 1), "content")
	putSmall(t, s, id(2, 1), []byte("small"))
	l := source.Lease(transfer.Reader{Worker: 3}, []transfer.Ref{{Task: 1}, {Task: 2, Generation: 1}, {Task: 3}}, 0)
	if l[0].Err != nil || l[0].Head.Ref.Generation != 1 || !bytes.Equal(l[0].Regions[0].Bytes(), []byte("content")) {
		t.Errorf("got %+v", l[0])
	}
	if l[1].Err != nil || len(l[1].Regions) != 0 || string(l[1].Head.Header) != "small" {
		t.Errorf("got %+v", l[1])
	}
	if !errors.Is(l[2].Err, transfer.ErrNotHere) || l[2].Lease != 0 {
		t.Errorf("got %+v", l[2])
	}
	s.Drop(id(1, 1))
	if string(l[0].Regions[0].Bytes()) != "content" {
		t.Error("leased bytes changed")
	}
	if held := source.Release([]transfer.LeaseID{l[0].Lease, l[1].Lease, l[0].Lease, 12345}); !held[0] || !held[1] || held[2] || held[3] {
		t.Errorf("held %v", held)
	}
	put(t, s, id(4, 1), "content")
	short := source.Lease(transfer.Reader{}, []transfer.Ref{{Task: 4}}, time.Minute)
	s.Tick(time.Now().Add(time.Hour))
	if held := source.Release([]transfer.LeaseID{short[0].Lease}); held[0] {
		t.Error("a lease held beyond its end")
	}
}

func TestTrimGivesPagesBack(t *testing.T) {
	s := newStore(t, 64<<20)
	put(t, s, id(1, 1), strings.Repeat("x", 32<<20))
	s.Drop(id(1, 1))
	for range ledger.RememberedTrims + 1 { // the memory was in use since the first call
		s.Trim(1 << 20)
	}
	s.Close() // waits for the release of the pages
	if books, _, _ := s.Stats(); books.TrimmingBytes != 0 || books.FreeBytes < 63<<20 {
		t.Errorf("books %+v", books)
	}
}
