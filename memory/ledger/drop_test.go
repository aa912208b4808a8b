package ledger

import (
	"errors"
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

// TestDroppedObjectIsRestored: a running task still uses an object that was dropped. Another one
// wants it: its bytes are here, and stay when the first task has ended.
func TestDroppedObjectIsRestored(t *testing.T) {
	x := newTester(t, mib)
	x.make(1, 1000)
	pin := Pin{Reason: PinInput, Holder: task(9), Attempt: 1}
	if err := x.l.Restore(obj(1)); !errors.Is(err, ErrState) {
		t.Errorf("it was not dropped: %v", err)
	}
	x.l.Copied(obj(1))
	if err := x.l.Pin(obj(1), pin); err != nil {
		t.Fatal(err)
	}
	out, err := x.l.Drop(obj(1))
	if err != nil {
		t.Fatal(err)
	}
	x.effects(out)
	if err := x.l.Restore(obj(1)); err != nil {
		t.Fatal(err)
	}
	x.unpin(obj(1), pin)
	x.check()
	if o, ok := x.l.Lookup(obj(1)); !ok || o.State != Sealed {
		t.Errorf("it is %s, here: %v", o.State, ok)
	}
	if err := x.l.Restore(obj(2)); !errors.Is(err, ErrUnknown) {
		t.Errorf("it is not here: %v", err)
	}
}
