package store_test

import (
	"testing"
	"time"

	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/worker/store"
)

// A spare becomes the memory of an object that it fits. There is no spare if memory is short or a
// request waits for it.
func TestSparesAreHadOfWhatNobodyNeeds(t *testing.T) {
	const part = 1 << 20
	s := newStore(t, 8*part)
	spare := s.Spare(part)
	if spare.Reservation == 0 || spare.Frame.Bytes != part {
		t.Fatalf("%+v", spare)
	}
	if n := len(s.Inventory()); n != 0 {
		t.Errorf("%d objects are there", n)
	}
	if err := s.Adopt(spare, id(1, 1), task); err != nil {
		t.Fatal(err)
	}
	if err := s.Seal(id(1, 1), []byte("head")); err != nil {
		t.Fatal(err)
	}
	s.Release(spare.Reservation)
	if o, ok := s.Lookup(id(1, 1)); !ok || len(o.Frames) != 1 || o.Frames[0] != (memory.Frame{Offset: spare.Frame.Offset, Bytes: part}) {
		t.Errorf("%+v, %v", o, ok)
	}
	if err := s.Adopt(spare, id(2, 1), task); err == nil {
		t.Error("a spare was used twice")
	}
	// An unused spare leaves nothing behind.
	before, _, _ := s.Stats()
	s.Release(s.Spare(part).Reservation)
	if after, _, _ := s.Stats(); after != before {
		t.Errorf("books %+v, before %+v", after, before)
	}
	s.Release(store.Spare{}.Reservation)
	// A quarter of the slab stays free.
	half, _, err := s.Reserve(task, []uint64{4 * part}, time.Time{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if x := s.Spare(part); x.Reservation != 0 {
		t.Error("a spare was had of the last quarter")
	}
	decided := make(chan error, 1)
	waiting, granted, err := s.Reserve(task, []uint64{6 * part}, time.Now().Add(time.Hour), func(err error) { decided <- err })
	if granted || err != nil {
		t.Fatal(granted, err)
	}
	if x := s.Spare(256); x.Reservation != 0 {
		t.Error("a spare was had while somebody waits")
	}
	s.Release(half)
	if err := <-decided; err != nil {
		t.Fatal(err)
	}
	s.Release(waiting)
	if err := s.Check(); err != nil {
		t.Error(err)
	}
}
