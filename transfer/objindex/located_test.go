package objindex

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/transfer"
)

// newReader returns an index of the given capacity with one reader. Both end with the test.
func newReader(t *testing.T, entries int) (*Index, *Reader) {
	t.Helper()
	b, err := New(entries, 0)
	if err != nil {
		t.Fatal(err)
	}
	slots, err := b.NewReaderSlots()
	if err != nil {
		t.Fatal(err)
	}
	v, err := Open(b.File(), slots.File())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(v.Close(), slots.Close(), b.Close()); err != nil {
			t.Error(err)
		}
	})
	return b, v
}

// The lender changes the index after the entries of a batch were located and before they are read.
// An object must be found exactly if and as it is published when the entries are read.
func TestEntriesThatChangeAfterTheyWereLocated(t *testing.T) {
	const size, count = 1 << 20, 24
	key := func(n int) transfer.Ref { return transfer.Ref{Task: ids.TaskID(n), Generation: 1} }
	place := func(n, times int) []memory.Frame {
		return []memory.Frame{{Offset: uint64(n) * 4096, Bytes: uint64(times) + 1}}
	}
	changes := map[string]func(b *Index, n int){
		"nothing":     func(*Index, int) {},
		"unpublished": func(b *Index, n int) { b.Unpublish(key(n)) },
		"published again, elsewhere": func(b *Index, n int) {
			b.Unpublish(key(n))
			b.Publish(key(n), []byte("other"), place(n, 9))
		},
		"another one in its entry": func(b *Index, n int) {
			b.Unpublish(key(n))
			b.Publish(key(n+100), nil, place(n+100, 1))
		},
		"its next generation in its entry": func(b *Index, n int) {
			b.Unpublish(key(n))
			b.Publish(transfer.Ref{Task: key(n).Task, Generation: 2}, nil, place(n, 3))
		},
		"it arrives once more": func(b *Index, n int) {
			b.Unpublish(key(n))
			b.PublishArriving(key(n), nil, place(n, 4))
		},
		"two in each other's entry": func(b *Index, n int) {
			b.Unpublish(key(n))
			b.Unpublish(key(n%count + 1))
			b.Publish(key(n), []byte("one"), place(n, 5))
			b.Publish(key(n%count+1), []byte("two"), place(n, 6))
		},
		"with two frames": func(b *Index, n int) {
			b.Unpublish(key(n))
			b.Publish(key(n), nil, append(place(n, 7), place(n, 8)...))
		},
		"with none": func(b *Index, n int) {
			b.Unpublish(key(n))
			b.Publish(key(n), []byte("a small one"), nil)
		},
		"beyond the memory": func(b *Index, n int) {
			b.Unpublish(key(n))
			b.Publish(key(n), nil, []memory.Frame{{Offset: size, Bytes: 1}})
		},
	}
	for name, change := range changes {
		for _, inOrder := range []bool{true, false} {
			for at := 1; at <= count; at += 5 {
				t.Run(fmt.Sprint(name, " ", inOrder, " ", at), func(t *testing.T) {
					b, v := newReader(t, 64)
					var keys []transfer.Ref
					for i := range count {
						b.Publish(key(i+1), []byte("the header"), place(i+1, 0))
						if inOrder {
							keys = append(keys, key(i+1))
						} else {
							keys = append(keys, key(i*7%count+1))
						}
					}
					// One key that is not published yet.
					keys = append(keys, key(at+100))
					g, _ := v.Pin()
					var found, alone Found
					found.Begin(len(keys))
					alone.Begin(len(keys))
					entries := make([]uint64, len(keys))
					v.locate(keys, entries)
					change(b, at)
					heads := make([]transfer.Head, len(keys))
					var sum Sum
					v.readLocated(keys, entries, size, &found, heads, &sum)
					frames := found.frames
					for i, k := range keys {
						o, ok := g.Find(k, size, &alone)
						if k.Task > 100 && heads[i].Ref != k {
							continue // it was published after the search for its entry
						}
						if h := heads[i]; ok != (h.Ref == k) || ok && (string(h.Header) != string(o.Header) || len(h.FrameBytes) != len(o.Frames)) {
							t.Fatalf("%s: %+v, alone %v, %+v", k, h, ok, o)
						}
						if !ok {
							continue
						}
						sum.Objects--
						if len(o.Frames) == 1 {
							sum.Single--
						}
						for j, frame := range o.Frames {
							sum.Bytes -= frame.Bytes
							if frames[0] != frame || heads[i].FrameBytes[j] != frame.Bytes {
								t.Fatalf("%s: %v, %+v, alone %+v", k, frames[0], heads[i], o)
							}
							frames = frames[1:]
						}
					}
					if sum != (Sum{}) || len(frames) != 0 {
						t.Errorf("%+v and %d frames more than were found", sum, len(frames))
					}
					if !g.End(0) {
						t.Error("it did not hold")
					}
				})
			}
		}
	}
}

// An index that is three quarters full refuses at most 1 % of new objects.
func TestAnIndexThreeQuartersFullHasRoom(t *testing.T) {
	const entries, shown = 1 << 12, 1 << 12 * 3 / 4
	b, err := New(entries, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}()
	full := 0
	// The removed keys and the added keys differ.
	for n := range 8 * entries {
		if n >= shown {
			b.Unpublish(transfer.Ref{Task: ids.TaskID(n - shown + 1), Generation: 1})
		}
		if !b.Publish(transfer.Ref{Task: ids.TaskID(n + 1), Generation: 1}, nil, nil) {
			full++
		}
	}
	t.Logf("%d of %d had no room", full, 8*entries)
	if full > 8*entries/100 {
		t.Errorf("%d of %d had no room, with %d of %d published", full, 8*entries, shown, entries)
	}
}

// A free entry has no task, but it still has the generation of its last object. A key with task 0
// must not match it, also when its entry was located before it became free.
func TestNoObjectIsFoundInAFreeEntry(t *testing.T) {
	b, v := newReader(t, 64)
	k := []transfer.Ref{{Task: 1, Generation: 1}}
	b.Publish(k[0], nil, []memory.Frame{{Bytes: 8}})
	entries := make([]uint64, 1)
	v.locate(k, entries)
	b.Unpublish(k[0])
	k[0].Task = 0
	g, _ := v.Pin()
	defer g.End(0)
	var f Found
	f.Begin(1)
	heads := make([]transfer.Head, 1)
	var sum Sum
	v.readLocated(k, entries, 8, &f, heads, &sum)
	if _, alone := g.Find(k[0], 8, &f); alone || sum.Objects != 0 || heads[0].Ref != (transfer.Ref{}) {
		t.Errorf("found %+v, %+v; alone %v", sum, heads[0], alone)
	}
}

// Identical objects with short headers share one copy of size and header; different objects never
// do, also in lines that were reused.
func TestOnlyEqualHeadersAreShared(t *testing.T) {
	b, v := newReader(t, 256)
	long := strings.Repeat("0123456789", 6)
	headers := []string{
		"", "", "a", "a", "b", "12345678", "123456789", "123456789", "1234567890123456", "1234567890123456", "1234567890123457",
		long, long, long[:59] + "x", long, long[:17], long[:17], long[:24], long[:25], "a", "a",
	}
	// Old contents of the lines must not matter.
	for n := range headers {
		b.Publish(transfer.Ref{Task: ids.TaskID(n + 1), Generation: 7}, []byte(strings.Repeat(string(rune('A'+n)), 40)), []memory.Frame{{Bytes: 9}})
		b.Unpublish(transfer.Ref{Task: ids.TaskID(n + 1), Generation: 7})
	}
	var keys []transfer.Ref
	for n, header := range headers {
		keys = append(keys, transfer.Ref{Task: ids.TaskID(n + 1), Generation: 1})
		b.Publish(keys[n], []byte(header), []memory.Frame{{Offset: uint64(n), Bytes: 8}})
	}
	g, _ := v.Pin()
	defer g.End(0)
	var f Found
	f.Begin(len(keys))
	heads := make([]transfer.Head, len(keys))
	frames, sum := g.FindAll(keys, 1<<20, &f, heads)
	if sum.Objects != len(keys) || sum.Single != len(keys) {
		t.Fatalf("%+v", sum)
	}
	for n, h := range heads {
		if string(h.Header) != headers[n] || len(h.FrameBytes) != 1 || h.FrameBytes[0] != 8 || frames[n] != (memory.Frame{Offset: uint64(n), Bytes: 8}) {
			t.Errorf("number %d: %+v at %+v", n, h, frames[n])
		}
		if n == 0 {
			continue
		}
		if shared := &h.FrameBytes[0] == &heads[n-1].FrameBytes[0]; shared != (headers[n] == headers[n-1] && len(headers[n]) <= lineHeader) {
			t.Errorf("number %d, %q behind %q: shared %v", n, headers[n], headers[n-1], shared)
		}
		if cap(h.Header) != len(h.Header) || cap(h.FrameBytes) != 1 {
			t.Errorf("number %d: who appends to it writes into another one's", n)
		}
	}
}
