package objindex_test

import (
	"slices"
	"testing"

	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/transfer/objindex"
)

func follow(tb testing.TB, g objindex.ReadGuard, task int) (objindex.Object, objindex.Watch) {
	tb.Helper()
	o, w, ok := g.FindArriving(ref(task), size, &objindex.Found{})
	if !ok {
		tb.Fatalf("object %d is not found", task)
	}
	return o, w
}

func wantProgress(tb testing.TB, w objindex.Watch, bytes uint64, whole, ok bool) {
	tb.Helper()
	if n, is, still := w.Progress(); still != ok || is != whole || ok && !whole && n != bytes {
		tb.Errorf("%d bytes, whole %v, ok %v; want %d, %v, %v", n, is, still, bytes, whole, ok)
	}
}

func TestArrivingObjectsAreReadUntilTheyAreWhole(t *testing.T) {
	b := newIndex(t, 16, 0)
	_, v := connect(t, b)
	frames := []memory.Frame{{Offset: 256, Bytes: 1000}, {Offset: 4096, Bytes: 500}}
	if b.Complete(ref(1)) || !b.PublishArriving(ref(1), []byte("head"), frames) {
		t.Fatal("it is not published")
	}
	g := pin(t, v)
	defer g.End(0)
	if _, ok := g.Find(ref(1), size, &objindex.Found{}); ok {
		t.Error("what arrives is found as if it were here")
	}
	o, w := follow(t, g, 1)
	if string(o.Header) != "head" || !slices.Equal(o.Frames, frames) {
		t.Errorf("%+v", o)
	}
	wantProgress(t, w, 0, false, true)
	b.SetProgress(ref(1), 700)
	b.SetProgress(ref(1), 300) // the progress never decreases
	wantProgress(t, w, 700, false, true)
	if !b.Complete(ref(1)) {
		t.Error("it is not in the index")
	}
	b.SetProgress(ref(1), 1500)
	wantProgress(t, w, 0, true, true)
	if _, ok := g.Find(ref(1), size, &objindex.Found{}); !ok {
		t.Error("what is whole is not found")
	}
	_, again := follow(t, g, 1)
	wantProgress(t, again, 0, true, true)
}

// A fetch that failed and began anew is a different object to its followers, no matter at which
// place and with how much progress.
func TestAnUnpublishedObjectIsNeverWholeForItsFollowers(t *testing.T) {
	b := newIndex(t, 16, 0)
	_, v := connect(t, b)
	frames := []memory.Frame{{Offset: 256, Bytes: 1000}}
	for name, again := range map[string]func() bool{
		"unpublished":       func() bool { return true },
		"arriving":          func() bool { return b.PublishArriving(ref(1), nil, frames) },
		"whole":             func() bool { return b.Publish(ref(1), nil, frames) },
		"another object":    func() bool { return b.Publish(ref(2), nil, frames) },
		"arrived and whole": func() bool { return b.PublishArriving(ref(1), nil, frames) && b.Complete(ref(1)) },
	} {
		b.PublishArriving(ref(1), nil, frames)
		g := pin(t, v)
		_, w := follow(t, g, 1)
		b.SetProgress(ref(1), 1000)
		b.Unpublish(ref(1))
		wantProgress(t, w, 0, false, false)
		if !again() {
			t.Fatal(name)
		}
		wantProgress(t, w, 0, false, false)
		b.Unpublish(ref(1))
		b.Unpublish(ref(2))
		if !g.End(0) {
			t.Error(name, "it did not hold")
		}
	}
}
