package ledger

import (
	"testing"
	"time"

	"github.com/millrace/millrace/memory"
)

// TestDroppedObjectDoesNotWaitForItsReservation: the input of a cancelled task is dropped when it
// arrives, while more inputs are on their way into the same reservation. Another attempt of the
// task may fetch the input again at once.
func TestDroppedObjectDoesNotWaitForItsReservation(t *testing.T) {
	l, err := New(Config{SizeBytes: mib, HeaderBytes: memory.HeaderBytes})
	if err != nil {
		t.Fatal(err)
	}
	reserve := func(id ReservationID) {
		t.Helper()
		if _, _, err := l.Reserve(epoch, Request{ID: id, Holder: task(9), Bytes: []uint64{4096, 4096}, Deadline: epoch.Add(time.Hour)}); err != nil {
			t.Fatal(err)
		}
	}
	fetch := func(id ReservationID) {
		t.Helper()
		if _, err := l.Allocate(id, obj(1), 4096); err != nil {
			t.Fatal(err)
		}
		if err := l.Seal(obj(1), nil); err != nil {
			t.Fatal(err)
		}
	}
	reserve(1)
	fetch(1)
	if _, err := l.Drop(obj(1)); err != nil {
		t.Fatal(err)
	}
	if o, ok := l.Lookup(obj(1)); ok {
		t.Fatalf("nobody needs it, and it is still %s", o.State)
	}
	reserve(2)
	fetch(2)
	// A pin outlives the drop. The reservation does not keep the object longer than the pin.
	pin := Pin{Reason: PinInput, Holder: task(9), Attempt: 1}
	if err := l.Pin(obj(1), pin); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Drop(obj(1)); err != nil {
		t.Fatal(err)
	}
	if _, ok := l.Lookup(obj(1)); !ok {
		t.Fatal("it is pinned, and gone")
	}
	if _, err := l.Unpin(obj(1), pin); err != nil {
		t.Fatal(err)
	}
	if _, ok := l.Lookup(obj(1)); ok {
		t.Error("its last pin ended, and it is still there")
	}
	for id := range ReservationID(2) {
		if _, err := l.Release(id + 1); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Check(); err != nil {
		t.Error(err)
	}
}
