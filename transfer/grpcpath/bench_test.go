package grpcpath_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/transfertest"
)

// fixed is a sink that uses the same region again for each object.
type fixed struct{ region transfer.Region }

func (fixed) Capabilities() transfer.SinkCapabilities { return transfer.SinkCapabilities{} }

func (f fixed) Place(context.Context, int, transfer.Head) ([]transfer.Region, error) {
	return []transfer.Region{f.region}, nil
}
func (f fixed) Done(_ int, err error) {
	if err != nil {
		panic(err)
	}
}

func BenchmarkFetch(b *testing.B) {
	for _, size := range []int{64 << 10, 256 << 20} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			objects := transfertest.NewObjects()
			objects.Put(transfer.Ref{Task: 1, Generation: 1}, "h", make([]byte, size))
			peer, _ := serve(b, objects, objects)
			path := newPath(b, 0)
			sink := fixed{transfer.Region{Space: transfertest.Heap(make([]byte, size)), Frame: memory.Frame{Bytes: uint64(size)}}}
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				if err := path.Fetch(b.Context(), peer, []transfer.Ref{{Task: 1, Generation: 1}}, sink); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
