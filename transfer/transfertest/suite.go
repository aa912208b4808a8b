// Package transfertest is Test support: the conformance suite that each transfer path must pass,
// and the sources and sinks for it.
package transfertest

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/transfer"
)

// Patience is how long the suite waits for an event that must happen. It is long enough for a
// machine that is busy with all other tests.
const Patience = 5 * time.Minute

var huge = flag.Bool("transfertest.huge", false, "fetch an object of 1 GiB too")

// Harness makes a path for the suite, and sources for the path.
type Harness struct {
	// Serve makes a source reachable. It returns the peer to fetch from, and a function that ends
	// the source abruptly, also in the middle of its work.
	Serve func(t *testing.T, source transfer.Source) (peer transfer.Peer, kill func())
	// Path returns a path whose stall timeout is stall.
	Path func(t *testing.T, stall time.Duration) transfer.Path
	// CanStall says that the path has a peer process, which can be silent.
	CanStall bool
	// Objects, if set, makes an empty source in memory that the path can read. Serve then gets only
	// such sources.
	Objects func(t *testing.T) *Objects
	// Room, if set, returns the room in which fetches by a path must place objects.
	Room func(path transfer.Path) *Room
	// Batches says that the sinks are Batchers.
	Batches bool
	// Slow says that transfers take long, and connecting even longer, as between emulated hosts.
	// Large objects are then smaller, and silences longer.
	Slow bool
	// Piece is the most bytes that the path moves in one piece. If it is known, the objects of the
	// short tests are as large as several pieces, and no larger.
	Piece int
}

// large returns a size whose transfer takes a while.
func (h Harness) large(n int) int {
	switch {
	case h.Slow:
		return n / 8
	case h.short():
		return min(n, 2*h.Piece)
	}
	return n
}

func (h Harness) short() bool { return testing.Short() && h.Piece != 0 }

// silence returns a time without progress that must lead to a stall. A busy machine can still
// connect and answer within it.
func (h Harness) silence() time.Duration {
	if h.Slow {
		return 3 * time.Second
	}
	return 2 * time.Second
}

func (h Harness) objects(t *testing.T) *Objects {
	t.Helper()
	if h.Objects == nil {
		return NewObjects()
	}
	return h.Objects(t)
}

func (h Harness) sink(path transfer.Path) *Sink {
	if h.Room == nil {
		return NewSink()
	}
	return NewSinkIn(h.Room(path))
}

// to returns the sink in the form that the path gets.
func (h Harness) to(s *Sink) transfer.Sink {
	if h.Batches {
		return Batching{Sink: s, Most: 3}
	}
	return s
}

func random(seed uint64, n int) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), 1})
	_, _ = r.Read(b) // it never fails
	return b
}

func ref(task int) transfer.Ref { return transfer.Ref{Task: ids.TaskID(task), Generation: 1} }

// Run checks that a path keeps the guarantees of transfer.Path.
func (h Harness) Run(t *testing.T) {
	t.Helper()
	t.Run("sizes", h.sizes)
	t.Run("several chunks", h.chunks)
	t.Run("many small frames", h.manyFrames)
	t.Run("missing objects", h.missing)
	t.Run("items of lists", h.items)
	t.Run("refused places", h.refused)
	t.Run("places that do not fit", h.misplaced)
	t.Run("place sees the head", h.head)
	t.Run("concurrent both ways", h.concurrent)
	t.Run("cancel", h.cancel)
	t.Run("deadline", h.deadline)
	t.Run("source dies", h.dies)
	t.Run("peer that is not there", h.absent)
	t.Run("nothing to fetch", h.nothing)
	if h.CanStall {
		t.Run("stall", h.stall)
		t.Run("waiting for memory is no stall", h.waitsForMemory)
	}
}

// fetchAll fetches refs and compares them with the objects of the source.
func (h Harness) fetchAll(t *testing.T, path transfer.Path, peer transfer.Peer, objects *Objects, refs ...transfer.Ref) {
	t.Helper()
	sink := h.sink(path)
	if err := path.Fetch(t.Context(), peer, refs, h.to(sink)); err != nil {
		t.Error(err)
		return
	}
	for i, r := range refs {
		head, frames, done, err := sink.Result(i)
		want, _ := objects.Get(r)
		if !done || err != nil || head.Ref != r || len(frames) != len(want) {
			t.Errorf("%s: done %v, %v, %d frames of %d", r, done, err, len(frames), len(want))
			continue
		}
		for f := range want {
			if !bytes.Equal(frames[f], want[f]) {
				t.Errorf("%s: frame %d of %d bytes differs", r, f, len(want[f]))
			}
		}
	}
}

func (h Harness) sizes(t *testing.T) {
	objects := h.objects(t)
	peer, _ := h.Serve(t, objects)
	path := h.Path(t, Patience)
	var refs []transfer.Ref
	for i, n := range []int{0, 1, 3, 255, 1023, 1024, 1025, 16383, 16384, 16385, 1<<20 - 1, 1 << 20, 1<<20 + 1, 5<<20 + 7, h.large(32 << 20)} {
		backing := random(uint64(i), n+13)
		// The content begins at an odd address, and most sizes are not aligned either.
		objects.Put(ref(i+1), fmt.Sprint("header ", i), backing[13:])
		refs = append(refs, ref(i+1))
	}
	objects.Put(ref(100), "no frames")
	objects.Put(ref(101), "empty frames", nil, random(7, 10), nil, []byte{}, random(8, 2<<20), nil)
	objects.Put(ref(102), string(random(9, 3<<20)))
	refs = append(refs, ref(100), ref(101), ref(102))
	for _, r := range refs {
		h.fetchAll(t, path, peer, objects, r)
	}
	h.fetchAll(t, path, peer, objects, refs...)
	NoLeases(t, objects)
}

// chunks fetches objects that no path can transfer in one piece.
func (h Harness) chunks(t *testing.T) {
	sizes := []int{h.large(200<<20) + 5}
	if h.short() {
		sizes[0] = 3*h.Piece + 5
	}
	if *huge {
		sizes = append(sizes, 1<<30)
	}
	for i, n := range sizes {
		objects := h.objects(t)
		peer, _ := h.Serve(t, objects)
		backing := make([]byte, n)
		copy(backing, random(uint64(i), 1<<20))
		for at := 1 << 20; at < n; at *= 2 {
			copy(backing[at:], backing[:at])
		}
		for at := 0; at < n; at += 1 << 16 {
			backing[at] = byte(at >> 16) // otherwise two swapped chunks would look the same
		}
		objects.Put(ref(1), "x", backing, random(9, 11))
		h.fetchAll(t, h.Path(t, Patience), peer, objects, ref(1))
		NoLeases(t, objects)
	}
}

func (h Harness) manyFrames(t *testing.T) {
	objects := h.objects(t)
	peer, _ := h.Serve(t, objects)
	path := h.Path(t, Patience)
	var frames [][]byte
	for i := range 5000 {
		frames = append(frames, random(uint64(i), i%700))
	}
	objects.Put(ref(1), "many", frames...)
	var refs []transfer.Ref
	for i := range 3000 {
		objects.Put(ref(10+i), "small", random(uint64(i), 100))
		refs = append(refs, ref(10+i))
	}
	h.fetchAll(t, path, peer, objects, ref(1))
	h.fetchAll(t, path, peer, objects, refs...)
	NoLeases(t, objects)
}

func (h Harness) missing(t *testing.T) {
	objects := h.objects(t)
	objects.Put(ref(1), "a", random(1, 1000))
	objects.Put(ref(3), "c", random(3, 1000))
	peer, _ := h.Serve(t, objects)
	path := h.Path(t, Patience)
	sink := h.sink(path)
	wrong := transfer.Ref{Task: ids.TaskID(3), Generation: 2}
	if err := path.Fetch(t.Context(), peer, []transfer.Ref{ref(1), ref(2), wrong, ref(3)}, h.to(sink)); err != nil {
		t.Fatal(err)
	}
	for i, want := range []error{nil, transfer.ErrNotHere, transfer.ErrNotHere, nil} {
		if _, _, done, err := sink.Result(i); !done || !errors.Is(err, want) {
			t.Errorf("object %d: done %v, %v", i, done, err)
		}
	}
	NoLeases(t, objects)
}

// items fetches items of lists, which the source narrows: the path only has to name them. A shared
// object index has the whole list under the same task and generation.
func (h Harness) items(t *testing.T) {
	objects := h.objects(t)
	list, other := ref(1), ref(2)
	item := func(n ids.Item) transfer.Ref {
		return transfer.Ref{Task: list.Task, Generation: list.Generation, Item: n}
	}
	objects.Put(list, "the list", random(1, 1<<20), random(2, 3000))
	objects.Put(other, "another object", random(3, 100))
	objects.Put(item(1), "the first item", random(4, 1<<20))
	objects.Put(item(2), "the second item")
	objects.Put(item(1<<32-1), "the last item", random(5, 3000), nil, random(6, 9<<20))
	peer, _ := h.Serve(t, objects)
	path := h.Path(t, Patience)
	h.fetchAll(t, path, peer, objects, item(1))
	h.fetchAll(t, path, peer, objects, item(1<<32-1), list, item(1), other, item(2))
	sink := h.sink(path)
	if err := path.Fetch(t.Context(), peer, []transfer.Ref{item(3), list}, h.to(sink)); err != nil {
		t.Fatal(err)
	}
	for i, want := range []error{transfer.ErrNotHere, nil} {
		if _, _, done, err := sink.Result(i); !done || !errors.Is(err, want) {
			t.Errorf("object %d: done %v, %v", i, done, err)
		}
	}
	NoLeases(t, objects)
}

func (h Harness) refused(t *testing.T) {
	objects := h.objects(t)
	for i := range 3 {
		objects.Put(ref(i), "x", random(uint64(i), 3<<20))
	}
	peer, _ := h.Serve(t, objects)
	full := errors.New("no room")
	path := h.Path(t, Patience)
	sink := h.sink(path)
	sink.PlaceHook = func(_ context.Context, index int, _ transfer.Head) error {
		if index == 1 {
			return full
		}
		return nil
	}
	if err := path.Fetch(t.Context(), peer, []transfer.Ref{ref(0), ref(1), ref(2)}, h.to(sink)); err != nil {
		t.Fatal(err)
	}
	for i, want := range []error{nil, full, nil} {
		if _, _, done, err := sink.Result(i); !done || !errors.Is(err, want) {
			t.Errorf("object %d: done %v, %v", i, done, err)
		}
	}
	if _, frames, _, _ := sink.Result(2); !bytes.Equal(frames[0], random(2, 3<<20)) {
		t.Error("the object behind the refused one differs")
	}
	NoLeases(t, objects)
}

// misplaced fetches into places that do not fit the frames. Such an object fails, and the path
// still works.
func (h Harness) misplaced(t *testing.T) {
	objects := h.objects(t)
	objects.Put(ref(1), "x", random(1, 1000), random(2, 70<<10), random(3, 500))
	peer, _ := h.Serve(t, objects)
	path := h.Path(t, Patience)
	sized := func(regions []transfer.Region, more int) []transfer.Region {
		regions[1].Frame.Bytes += uint64(more)
		return regions
	}
	for name, misplace := range map[string]func([]transfer.Region) []transfer.Region{
		"no region":           func([]transfer.Region) []transfer.Region { return nil },
		"a region too few":    func(r []transfer.Region) []transfer.Region { return r[:2] },
		"a region too many":   func(r []transfer.Region) []transfer.Region { return append(r, r[2]) },
		"a region too short":  func(r []transfer.Region) []transfer.Region { return sized(r, -1) },
		"a region too long":   func(r []transfer.Region) []transfer.Region { return sized(r, 1) },
		"regions in disorder": func(r []transfer.Region) []transfer.Region { r[0], r[1] = r[1], r[0]; return r },
	} {
		sink := h.sink(path)
		sink.Misplace = misplace
		err := path.Fetch(t.Context(), peer, []transfer.Ref{ref(1)}, h.to(sink))
		if _, _, done, failed := sink.Result(0); err == nil && (!done || failed == nil) {
			t.Errorf("%s: fetched without an error; done %v", name, done)
		}
		h.fetchAll(t, path, peer, objects, ref(1))
	}
	NoLeases(t, objects)
}

func (h Harness) head(t *testing.T) {
	objects := h.objects(t)
	objects.Put(ref(1), "the header", random(1, 10), random(2, 20))
	peer, _ := h.Serve(t, objects)
	path := h.Path(t, Patience)
	sink := h.sink(path)
	if err := path.Fetch(t.Context(), peer, []transfer.Ref{ref(1)}, h.to(sink)); err != nil {
		t.Fatal(err)
	}
	if head, _, _, _ := sink.Result(0); string(head.Header) != "the header" || head.Bytes() != 30 || len(head.FrameBytes) != 2 {
		t.Errorf("head %+v", head)
	}
}

func (h Harness) concurrent(t *testing.T) {
	type side struct {
		objects *Objects
		peer    transfer.Peer
		path    transfer.Path
	}
	var sides [2]side
	for i := range sides {
		s := &sides[i]
		s.objects = h.objects(t)
		for task := range 40 {
			s.objects.Put(ref(task), "x", random(uint64(100*i+task), 100<<10), random(uint64(task), 17))
		}
		s.peer, _ = h.Serve(t, s.objects)
		s.path = h.Path(t, Patience)
	}
	var wait sync.WaitGroup
	for i := range sides {
		for g := range 4 {
			wait.Go(func() {
				for n := range 10 {
					h.fetchAll(t, sides[1-i].path, sides[i].peer, sides[i].objects, ref(10*g+n), ref((10*g+n+1)%40))
				}
			})
		}
	}
	wait.Wait()
	for i := range sides {
		NoLeases(t, sides[i].objects)
	}
}

// large makes a source with objects whose transfer takes a while.
func large(t *testing.T, h Harness) (*Objects, []transfer.Ref, transfer.Peer, func()) {
	t.Helper()
	objects := h.objects(t)
	var refs []transfer.Ref
	shared := random(1, h.large(32<<20))
	for i := range 8 {
		objects.Put(ref(i), "x", shared)
		refs = append(refs, ref(i))
	}
	peer, kill := h.Serve(t, objects)
	return objects, refs, peer, kill
}

// interrupted fetches, and calls interrupt when the second object is placed. It returns the error
// of Fetch. It checks that every object delivered as valid has the right bytes.
func (h Harness) interrupted(ctx context.Context, t *testing.T, path transfer.Path, peer transfer.Peer, refs []transfer.Ref, interrupt func()) error {
	t.Helper()
	sink := h.sink(path)
	sink.PlaceHook = func(_ context.Context, index int, _ transfer.Head) error {
		if index == 1 {
			interrupt()
		}
		return nil
	}
	ended := make(chan error, 1)
	go func() { ended <- path.Fetch(ctx, peer, refs, h.to(sink)) }()
	var err error
	select {
	case err = <-ended:
	case <-time.After(Patience):
		t.Fatal("the fetch did not end")
	}
	want := random(1, h.large(32<<20))
	for i := range refs {
		if _, frames, done, err := sink.Result(i); done && err == nil && !bytes.Equal(frames[0], want) {
			t.Errorf("object %d was delivered as valid and is not", i)
		}
	}
	return err
}

func (h Harness) cancel(t *testing.T) {
	objects, refs, peer, _ := large(t, h)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if err := h.interrupted(ctx, t, h.Path(t, Patience), peer, refs, cancel); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	NoLeases(t, objects)
}

func (h Harness) deadline(t *testing.T) {
	objects, refs, peer, _ := large(t, h)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	err := h.interrupted(ctx, t, h.Path(t, Patience), peer, refs, func() { <-ctx.Done() })
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	NoLeases(t, objects)
}

func (h Harness) dies(t *testing.T) {
	_, refs, peer, kill := large(t, h)
	path := h.Path(t, Patience)
	if err := h.interrupted(t.Context(), t, path, peer, refs, kill); !errors.Is(err, transfer.ErrPeerLost) {
		t.Errorf("got %v", err)
	}
	// The peer remains unreachable.
	if err := path.Fetch(t.Context(), peer, refs, NewSink()); !errors.Is(err, transfer.ErrPeerLost) {
		t.Errorf("again: %v", err)
	}
}

func (h Harness) absent(t *testing.T) {
	err := h.Path(t, Patience).Fetch(t.Context(), transfer.Peer{Worker: 9, Name: "nobody", Address: "127.0.0.1:1"}, []transfer.Ref{ref(1)}, NewSink())
	if !errors.Is(err, transfer.ErrPeerLost) || !bytes.Contains([]byte(err.Error()), []byte("nobody")) {
		t.Errorf("got %v", err)
	}
}

func (h Harness) nothing(t *testing.T) {
	peer, _ := h.Serve(t, h.objects(t))
	if err := h.Path(t, Patience).Fetch(t.Context(), peer, nil, NewSink()); err != nil {
		t.Error(err)
	}
}

func (h Harness) stall(t *testing.T) {
	objects := h.objects(t)
	objects.Put(ref(1), "x", random(1, 100))
	resume := objects.Stall()
	peer, _ := h.Serve(t, objects)
	defer resume()
	path := h.Path(t, h.silence())
	t.Parallel() // the test only waits
	err := path.Fetch(t.Context(), peer, []transfer.Ref{ref(1)}, NewSink())
	if !errors.Is(err, transfer.ErrStalled) {
		t.Errorf("got %v", err)
	}
}

func (h Harness) waitsForMemory(t *testing.T) {
	objects := h.objects(t)
	objects.Put(ref(1), "x", random(1, 100))
	peer, _ := h.Serve(t, objects)
	stall := h.silence()
	path := h.Path(t, stall)
	t.Parallel() // the test only waits
	// If the wait counted, each fetch would stall. On a busy machine, one may stall otherwise.
	for limit := time.Now().Add(Patience); ; {
		sink := h.sink(path)
		sink.PlaceHook = func(ctx context.Context, _ int, _ transfer.Head) error {
			select {
			case <-time.After(stall + stall/2): // the memory comes late
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		err := path.Fetch(t.Context(), peer, []transfer.Ref{ref(1)}, h.to(sink))
		if errors.Is(err, transfer.ErrStalled) && time.Now().Before(limit) {
			continue
		}
		if err != nil {
			t.Error(err)
		}
		if _, _, done, err := sink.Result(0); !done || err != nil {
			t.Errorf("done %v, %v", done, err)
		}
		return
	}
}
