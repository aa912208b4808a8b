//go:build cgo && linux

package ipc_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/millrace/millrace/memory/cuda"
	"github.com/millrace/millrace/transfer"
)

const benchCount = 1000

// benchBatch returns a thousand objects on another process's index, and places for them. mixed:
// both the requested order and the order of the places are random.
func benchBatch(b *testing.B, bytes uint64, mixed bool) (r *reader, c *child, peer transfer.Peer, refs []transfer.Ref, sink *places) {
	b.Helper()
	address := freeAddress()
	c = startChild(b, order{
		Device: otherDevice(), Size: cuda.Size{Bytes: 16 << 20}, Identity: newIdentity(), Address: address,
		Sets: []set{{Count: benchCount, Bytes: bytes}},
	})
	peer = transfer.Peer{Worker: 7, Name: "source", Address: address}
	r = newReader(b, 16<<20, nil)
	for i := range benchCount {
		refs = append(refs, ref(i))
	}
	sink, err := newPlaces(r.room, benchCount, bytes)
	if err != nil {
		b.Fatal(err)
	}
	if mixed {
		mix := rand.New(rand.NewPCG(1, 2))
		mix.Shuffle(benchCount, func(i, j int) { refs[i], refs[j] = refs[j], refs[i] })
		mix.Shuffle(benchCount, func(i, j int) { sink.regions[i], sink.regions[j] = sink.regions[j], sink.regions[i] })
	}
	return r, c, peer, refs, sink
}

// Measures a batch of a thousand objects in a peer's object index, so small that the copy itself
// takes hardly any time.
func BenchmarkFetchOfAThousand(b *testing.B) {
	for _, bytes := range []uint64{256, 4 << 10} {
		b.Run(fmt.Sprint(bytes), func(b *testing.B) {
			r, _, peer, refs, sink := benchBatch(b, bytes, false)
			b.ReportAllocs()
			for b.Loop() {
				if err := r.path.Fetch(b.Context(), peer, refs, together{sink}); err != nil || sink.err != nil {
					b.Fatal(err, sink.err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/benchCount, "ns/object")
		})
	}
}

// Measures only the lookups and the placing. written: before each round the lender rewrites the
// lines of its index, so that they are in the lender's processor cache.
func BenchmarkLookAtAThousand(b *testing.B) {
	for _, mixed := range []bool{false, true} {
		for _, written := range []bool{false, true} {
			b.Run(fmt.Sprintf("mixed=%v/written=%v", mixed, written), func(b *testing.B) {
				r, c, peer, refs, sink := benchBatch(b, 4<<10, mixed)
				b.ReportAllocs()
				for b.Loop() {
					if written {
						b.StopTimer()
						c.tell(b, order{Rewrite: benchCount, Bytes: 4 << 10})
						c.hear(b)
						b.StartTimer()
					}
					if err := r.path.Look(b.Context(), peer, refs, together{sink}); err != nil || sink.err != nil {
						b.Fatal(err, sink.err)
					}
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/benchCount, "ns/object")
			})
		}
	}
}
