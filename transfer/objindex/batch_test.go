package objindex_test

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/objindex"
)

// FindAll returns the same results as Find for each key alone, for any order of keys and with any
// other keys among them.
func TestManyAreFoundAsEachAloneIs(t *testing.T) {
	b := newIndex(t, 1<<10, 0)
	_, v := connect(t, b)
	r := rand.New(rand.NewPCG(1, 2))
	const count = 700
	for n := 1; n <= count; n++ {
		frames := make([]memory.Frame, n%3)
		for i := range frames {
			frames[i] = frame(n + i)
		}
		if n%50 == 0 {
			frames = []memory.Frame{{Offset: size, Bytes: 1}} // beyond the memory: must be refused
		}
		b.Publish(ref(n), bytes.Repeat([]byte{byte(n)}, n%70), frames)
	}
	for n := 1; n <= count; n += 17 {
		b.Unpublish(ref(n))
	}
	for n := count + 1; n < count+40; n++ { // reuse the entries of the hidden objects
		b.Publish(ref(n), nil, []memory.Frame{frame(n)})
	}
	b.PublishArriving(ref(count+50), nil, []memory.Frame{frame(3)})
	var keys []transfer.Ref
	for n := 1; n < count+60; n++ {
		keys = append(keys, ref(n))
		if n%13 == 0 {
			keys = append(keys, transfer.Ref{Task: ids.TaskID(n), Generation: 2}, transfer.Ref{Task: ids.TaskID(n)}, transfer.Ref{Generation: 1})
		}
	}
	for name, shuffle := range map[string]func(){
		"in order": func() {}, "backwards": func() { slices.Reverse(keys) },
		"anyhow": func() { r.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] }) },
		"in runs": func() {
			slices.SortStableFunc(keys, func(a, b transfer.Ref) int { return int(a.Task%100/20) - int(b.Task%100/20) })
		},
	} {
		shuffle()
		g := pin(t, v)
		var alone, together objindex.Found
		alone.Begin(len(keys))
		together.Begin(len(keys))
		heads := make([]transfer.Head, len(keys))
		var frames []memory.Frame
		got, want := uint64(0), uint64(0)
		for first := 0; first < len(keys); first += 100 {
			last := min(first+100, len(keys))
			some, sum := g.FindAll(keys[first:last], size, &together, heads[first:last])
			got, frames = got+sum.Bytes, append(frames, some...)
		}
		for i, k := range keys {
			o, ok := g.Find(k, size, &alone)
			if h := heads[i]; ok != (h.Ref == k) || !ok && h.Ref != (transfer.Ref{}) {
				t.Fatalf("%s: %s: found %v, together %v", name, k, ok, h.Ref)
			}
			its := frames[:len(o.Frames)]
			frames = frames[len(o.Frames):]
			if h := heads[i]; ok && (!bytes.Equal(h.Header, o.Header) || !slices.Equal(h.FrameBytes, o.Sizes) || !slices.Equal(its, o.Frames)) {
				t.Fatalf("%s: %s: %+v with %v, alone %+v", name, k, h, its, o)
			}
			if ok {
				want += heads[i].Bytes()
			}
		}
		if got != want {
			t.Errorf("%s: %d bytes, want %d", name, got, want)
		}
		g.End(got)
	}
}

// The index is large and a single fetch is small. So keys that a benchmark repeats are in the
// processor's cache; the keys that a worker looks up are not. The benchmark measures both.
func BenchmarkFindAll(b *testing.B) {
	const shown, count = 30_000, 1000
	on := newIndex(b, 0, 0)
	_, v := connect(b, on)
	for n := range shown {
		on.Publish(ref(n+1), make([]byte, 12), []memory.Frame{{Offset: frame(n).Offset, Bytes: 4}})
	}
	keys := make([]transfer.Ref, shown)
	find := func(keys []transfer.Ref) func(b *testing.B) {
		return func(b *testing.B) {
			b.Helper()
			var found objindex.Found
			var heads [128]transfer.Head
			b.ReportAllocs()
			for n := 0; b.Loop(); n++ {
				g, _ := v.Pin()
				found.Begin(count)
				left := keys[n*count%len(keys):][:count]
				for len(left) > 0 {
					some := left[:min(len(left), len(heads))]
					g.FindAll(some, size, &found, heads[:len(some)])
					left = left[len(some):]
				}
				g.End(1)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/count, "ns/object")
		}
	}
	for n := range keys {
		keys[n] = ref(n + 1)
	}
	b.Run("the same, in order", find(keys[:count]))
	b.Run("others, in order", find(keys))
	r := rand.New(rand.NewPCG(1, 2))
	r.Shuffle(shown, func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
	b.Run("the same, far apart", find(keys[:count]))
	b.Run("others, far apart", find(keys))
	slices.SortFunc(keys, func(a, b transfer.Ref) int { return int(a.Task) - int(b.Task) })
	r.Shuffle(count, func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
	b.Run("the same, anyhow", find(keys[:count]))
}
