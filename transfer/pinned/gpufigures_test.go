//go:build cgo && linux

package pinned_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/millrace/millrace/memory/cuda"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/transfertest"
)

// TestGPUStagedFigures compares fetches between GPUs that do not reach each other with bare copies
// to and from pinned memory, which are the two legs of such a fetch. On the fake driver the sizes
// are small, and only the bytes count.
func TestGPUStagedFigures(t *testing.T) {
	slabBytes, mirrorBytes, moved, times := uint64(256<<20), uint64(64<<20), uint64(32<<20), 2
	shapes := []struct{ count, bytes int }{{1, 1 << 20}, {1, 9 << 20}, {70, 64 << 10}}
	if fake == nil {
		slabBytes, mirrorBytes, moved, times = 1<<30, 256<<20, 4<<30, 12
		shapes = []struct{ count, bytes int }{{1, 1 << 20}, {1, 64 << 20}, {1, 256 << 20}, {1000, 64 << 10}}
	}
	apart(t)
	s := onGPU(t, slabBytes, mirrorBytes)
	legs := legsOf(t, slabBytes, moved)
	r := newReader(t, slabBytes, transfertest.Patience)
	peer, _ := s.serve(t, s.config())
	first := 1
	for _, x := range shapes {
		var refs []transfer.Ref
		for i := range x.count {
			refs = append(refs, ref(first+i))
			s.objects.Put(ref(first+i), "x", pattern(x.bytes))
		}
		first += x.count
		var took []time.Duration
		for i := range times + 1 {
			r.room.Reset()
			sink := transfertest.NewSinkIn(r.room)
			began := time.Now()
			if err := r.path.Fetch(t.Context(), peer, refs, sink); err != nil {
				t.Fatal(err)
			}
			if i > 0 { // the first one pins and maps memory
				took = append(took, time.Since(began))
			}
			for n := range refs[:len(refs)*(i/times)] { // once
				compare(t, sink, n, pattern(x.bytes))
			}
		}
		slices.Sort(took)
		rate := float64(x.count*x.bytes) / took[len(took)/2].Seconds()
		name := fmt.Sprintf("staged on one host: %d x %d KiB", x.count, x.bytes>>10)
		transfertest.Note(t, name, rate/1e9, "GB/s")
		transfertest.Note(t, name+", beside the slower leg", rate/min(legs.Load, legs.Store), "x")
	}
}

// legsOf measures the copies between a slab of its own and pinned memory.
func legsOf(t *testing.T, slabBytes, moved uint64) transfertest.Legs {
	t.Helper()
	d, err := driver.Open(0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { closing(t, d) }()
	slab, err := d.NewSlab(cuda.SlabConfig{Size: cuda.Size{Bytes: slabBytes}, Identity: identity()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { closing(t, slab) }()
	legs, err := transfertest.MeasureLegs(t.Context(), slab, moved)
	if err != nil {
		t.Fatal(err)
	}
	transfertest.Note(t, "one GPU's slab to pinned memory", legs.Load/1e9, "GB/s")
	transfertest.Note(t, "pinned memory to one GPU's slab", legs.Store/1e9, "GB/s")
	return legs
}
