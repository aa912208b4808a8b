package store_test

import (
	"testing"

	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/ledger"
	"github.com/millrace/millrace/transfer/objindex"
)

// arrivals is an object that is fetched again and again.
type arrivals struct {
	*spilling
	t      *testing.T
	reader *objindex.Reader
	r      ledger.ReservationID
}

const arrivingBytes = 128 << 10

func newArrivals(t *testing.T) *arrivals {
	t.Helper()
	s := newSpilling(t)
	a := &arrivals{spilling: s, t: t, reader: s.connect(t)}
	var err error
	if a.r, err = s.ReserveWait(t.Context(), ledger.Holder{Kind: ledger.HolderTask, ID: 9}, []uint64{arrivingBytes}, patience); err != nil {
		t.Fatal(err)
	}
	return a
}

// begin allocates the object anew and publishes it as arriving.
func (a *arrivals) begin() memory.Frame {
	a.t.Helper()
	a.Rebuild(a.r, id(1, 1))
	frames, err := a.Allocate(a.r, id(1, 1), arrivingBytes)
	if err != nil {
		a.t.Fatal(err)
	}
	if !a.PublishArriving(id(1, 1), []byte("head")) || a.PublishArriving(id(1, 1), []byte("head")) {
		a.t.Fatal("it is not published, or twice")
	}
	return frames[0]
}

func (a *arrivals) follow() (objindex.ReadGuard, objindex.Watch, bool) {
	a.t.Helper()
	g, ok := a.reader.Pin()
	if !ok {
		a.t.Fatal("no slot")
	}
	_, w, ok := g.FindArriving(refAt(1), a.Space().Size(), &objindex.Found{})
	return g, w, ok
}

func TestArrivingObjectsAreReadUntilTheyAreSealed(t *testing.T) {
	a := newArrivals(t)
	if a.PublishArriving(id(1, 1), nil) {
		t.Error("what is not being built is published")
	}
	a.begin()
	g, w, ok := a.follow()
	if !ok {
		t.Fatal("it is not found")
	}
	a.SetProgress(id(1, 1), 100_000)
	if n, whole, ok := w.Progress(); n != 100_000 || whole || !ok {
		t.Errorf("%d bytes, whole %v, ok %v", n, whole, ok)
	}
	if err := a.Seal(id(1, 1), []byte("head")); err != nil {
		t.Fatal(err)
	}
	a.Unpublish(id(1, 1)) // without effect on a sealed object
	if _, whole, ok := w.Progress(); !whole || !ok {
		t.Errorf("sealed, it is whole %v, ok %v", whole, ok)
	}
	// The object may be freed now, but its memory waits for the reader.
	a.Release(a.r)
	a.Drop(id(1, 1))
	if books, _, _ := a.Stats(); books.HeldBytes < arrivingBytes {
		t.Errorf("what is read counts as free: %+v", books)
	}
	if _, _, ok := w.Progress(); ok || !g.End(0) {
		t.Error("it is still published, or was not protected")
	}
	a.empties(t)
}

// A reader of an arriving object notices if the fetch fails, even if the object is built again. Its
// memory is not written again before the reader has ended its read.
func TestFailedFetchesAreNotRead(t *testing.T) {
	a := newArrivals(t)
	for name, end := range map[string]func(){
		"it failed":                 func() { a.Unpublish(id(1, 1)) },
		"it began anew":             func() { a.begin() },
		"it failed and came anyway": func() { a.Unpublish(id(1, 1)); a.begin(); a.SetProgress(id(1, 1), arrivingBytes) },
	} {
		before := a.begin()
		g, w, ok := a.follow()
		if !ok {
			t.Fatal(name, "it is not found")
		}
		a.SetProgress(id(1, 1), arrivingBytes)
		end()
		if _, _, ok := w.Progress(); ok {
			t.Error(name, "and nobody is told")
		}
		if now := a.begin(); now == before {
			t.Error(name, "and is written where somebody reads")
		}
		if !g.End(0) {
			t.Error(name, "it was not protected")
		}
	}
	g, w, _ := a.follow()
	a.Release(a.r)
	if _, _, ok := w.Progress(); ok || !g.End(0) {
		t.Error("what was given back is still published, or was not protected")
	}
	if _, _, ok := a.follow(); ok {
		t.Error("what was given back is found")
	}
	a.empties(t)
}
