package store_test

import (
	"errors"
	"testing"

	"github.com/millrace/millrace/memory/ledger"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/worker/store"
)

// After Forget every number is free, even if a reader still leases the bytes of an object.
func TestForgottenObjectsLeaveTheirNumbers(t *testing.T) {
	s := newStore(t, 1<<20)
	put(t, s, id(3, 1), "old")
	putSmall(t, s, id(4, 1), []byte{8, 0})
	if err := s.PutWritten(id(5, 1), []byte{8, 0}); err != nil {
		t.Fatal(err)
	}
	leased := s.Source().Lease(transfer.Reader{}, []transfer.Ref{{Task: 3, Generation: 1}}, 0)
	if leased[0].Err != nil {
		t.Fatal(leased[0].Err)
	}
	s.Forget()
	if n := len(s.Inventory()); n != 0 || s.Here(id(5, 1)) || s.Here(id(3, 1)) {
		t.Errorf("%d objects are left", n)
	}
	put(t, s, id(3, 1), "new")
	if old := string(s.View(leased[0].Regions[0].Frame)); old != "old" {
		t.Errorf("a reader's bytes became %q", old)
	}
	if held := s.Source().Release([]transfer.LeaseID{leased[0].Lease}); !held[0] {
		t.Error("the lease did not hold")
	}
	if o, ok := s.Lookup(id(3, 1)); !ok || string(s.View(o.Frames[0])) != "new" {
		t.Errorf("found is %v, %v", o, ok)
	}
	s.Drop(id(3, 1))
	if books, n, _ := s.Stats(); books.HeldBytes != 0 || n != 0 {
		t.Errorf("%d bytes and %d small objects are still held", books.HeldBytes, n)
	}
}

func TestWrittenObjectsAreFoundOnceAccepted(t *testing.T) {
	s := newStore(t, 1<<20)
	r, err := s.ReserveWait(t.Context(), task, []uint64{100}, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Allocate(r, id(1, 1), 100); err != nil {
		t.Fatal(err)
	}
	if err := s.SealWritten(id(1, 1), []byte("header")); err != nil {
		t.Fatal(err)
	}
	s.Release(r)
	if err := s.PutWritten(id(2, 1), []byte("small")); err != nil {
		t.Fatal(err)
	}
	if err := s.PutWritten(id(2, 1), []byte("again")); !errors.Is(err, ledger.ErrDuplicate) {
		t.Errorf("written twice: %v", err)
	}
	for _, o := range []ledger.ObjectID{id(1, 1), id(2, 1)} {
		for _, ask := range []ledger.ObjectID{o, {Task: o.Task}} {
			if _, ok := s.Lookup(ask); ok {
				t.Errorf("%v is found before it is accepted", ask)
			}
		}
		if l := s.Source().Lease(transfer.Reader{}, []transfer.Ref{{Task: o.Task, Generation: 1}}, 0); !errors.Is(l[0].Err, transfer.ErrNotHere) {
			t.Errorf("%v is read before it is accepted: %v", o, l[0].Err)
		}
		if got, _ := s.Admit(9, 1, 1, []ledger.ObjectID{o}, false, false, nil); got[0].ID == o {
			t.Errorf("%v is an input before it is accepted", o)
		}
		if n := len(s.Inventory()); n != int(o.Task)-1 {
			t.Errorf("%d objects in the inventory", n)
		}
		s.Accept(o)
		for _, ask := range []ledger.ObjectID{o, {Task: o.Task}} {
			if _, ok := s.Lookup(ask); !ok {
				t.Errorf("%v is not found once it is accepted", ask)
			}
		}
	}
	s.Drop(id(1, 1))
	s.Accept(id(1, 1)) // too late
	if _, ok := s.Lookup(id(1, 1)); ok {
		t.Error("a dropped object is found")
	}
}

// Large headers count against the worker's memory limit.
func TestLargeHeadersCount(t *testing.T) {
	s := newStore(t, 4<<20)
	free := func() uint64 {
		books, _, _ := s.Stats()
		return books.FreeBytes
	}
	all, large := free(), make([]byte, 1<<20)
	n := 0
	for ; ; n++ {
		if err := s.PutSmall(id(n+1, 1), large); errors.Is(err, ledger.ErrNoRoom) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if got := free(); got > all-uint64(n+1)<<20 {
			t.Errorf("%d bytes are free beside %d headers", got, n+1)
		}
	}
	if n != 3 { // the slab itself needs some of the 4 MiB
		t.Errorf("%d headers of 1 MiB found room in 4 MiB", n)
	}
	if o, ok := s.Lookup(id(1, 1)); !ok || o.Bytes() != uint64(len(large)) || len(o.Frames) != 0 {
		t.Errorf("found %v, %v", o, ok)
	}
	putSmall(t, s, id(1, 1), large) // it is here already and stays unchanged
	s.Drop(id(2, 1))
	putSmall(t, s, id(9, 1), large)
	s.Forget()
	if got := free(); got != all {
		t.Errorf("%d bytes are free, and were %d before", got, all)
	}
	if err := s.PutSmall(id(1, 1), make([]byte, store.MaxHeader+1)); err == nil {
		t.Error("a header that no reader could be sent was taken")
	}
}
