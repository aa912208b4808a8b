//go:build cgo && linux

package ipc_test

import (
	"fmt"
	"testing"

	"github.com/millrace/millrace/memory/cuda"
	"github.com/millrace/millrace/transfer"
)

// What a batch of a thousand objects takes that a peer shows: the smaller ones are so
// small that copying them counts for nothing.
func BenchmarkFetchOfAThousand(b *testing.B) {
	for _, bytes := range []uint64{256, 4 << 10} {
		b.Run(fmt.Sprint(bytes), func(b *testing.B) { fetchAThousand(b, bytes) })
	}
}

func fetchAThousand(b *testing.B, bytes uint64) {
	b.Helper()
	const count = 1000
	address := freeAddress()
	startChild(b, order{
		Device: otherDevice(), Size: cuda.Size{Bytes: 16 << 20}, Identity: newIdentity(), Address: address,
		Sets: []set{{Count: count, Bytes: bytes}},
	})
	peer := transfer.Peer{Worker: 7, Name: "source", Address: address}
	r := newReader(b, 16<<20, nil)
	refs := make([]transfer.Ref, count)
	for i := range refs {
		refs[i] = ref(i)
	}
	sink, err := newPlaces(r.room, count, bytes)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if err := r.path.Fetch(b.Context(), peer, refs, together{sink}); err != nil || sink.err != nil {
			b.Fatal(err, sink.err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/count, "ns/object")
}
