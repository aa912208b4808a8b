package ledger

import (
	"slices"
	"testing"
	"time"
)

func TestTrimPunchesFreeTouchedChunksInOneBatch(t *testing.T) {
	x := newTester(t, 64*mib)
	x.make(1, 8*mib)
	x.make(2, 8*mib)
	if out := x.l.Trim(0); len(out) != 0 {
		t.Fatalf("memory in use was to be punched: %v", out)
	}
	out, err := x.l.Drop(obj(2))
	if err != nil {
		t.Fatal(err)
	}
	x.effects(out)
	for range RememberedTrims {
		if out := x.l.Trim(8 * mib); len(out) != 0 {
			t.Fatalf("trimmed below what was to be kept: %v", out)
		}
	}
	out = x.l.Trim(7 * mib)
	if len(out) != 1 || x.l.Stats().TrimmingBytes != 5*mib {
		t.Fatalf("got %v, %d withheld, want down to half of what is kept", out, x.l.Stats().TrimmingBytes)
	}
	// The withheld range is not allocated. A request that needs it waits for it.
	id, granted := x.reserve(task(3), time.Minute, 54*mib)
	if granted {
		t.Fatal("memory was given out while its pages are being punched")
	}
	if out := x.l.Punched(true); !slices.Equal(out, []Effect{Granted{Reservation: id}}) {
		t.Fatalf("got %v", out)
	}
	x.queue = nil
	x.granted = []ReservationID{id}
	x.check()
	x.release(id)
	if out := x.l.Trim(0); len(out) != 1 || x.l.Stats().TrimmingBytes != 3*mib {
		t.Fatalf("second trim: %v, %d withheld, want what is still touched", out, x.l.Stats().TrimmingBytes)
	}
	x.effects(x.l.Punched(false))
	if out := x.l.Trim(0); len(out) != 1 {
		t.Fatal("a punch that went wrong was taken as done")
	}
}

func TestTrimKeepsWhatWasInUse(t *testing.T) {
	x := newTester(t, 64*mib)
	for n := range 5 {
		x.make(n+1, 8*mib)
		out, err := x.l.Drop(obj(n + 1))
		if err != nil {
			t.Fatal(err)
		}
		x.effects(out)
		if out := x.l.Trim(4 * mib); len(out) != 0 {
			t.Fatalf("the next one, of the same size, needs new pages: %v", out)
		}
	}
	for range RememberedTrims - 1 {
		if out := x.l.Trim(4 * mib); len(out) != 0 {
			t.Fatalf("the next wave needs new pages: %v", out)
		}
	}
	if out := x.l.Trim(4 * mib); len(out) != 1 || x.l.Stats().TrimmingBytes != 6*mib {
		t.Errorf("got %v, %d withheld, want down to half of what is kept when nobody needs them", out, x.l.Stats().TrimmingBytes)
	}
}
