package grpcpath_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/grpcpath"
	"github.com/millrace/millrace/transfer/transfertest"
)

// BenchmarkFetchOfSeveral fetches eight objects of 32 MiB, by one connection and by several: from
// host memory to host memory, and between spaces that the processor cannot address.
func BenchmarkFetchOfSeveral(b *testing.B) {
	const count, size = 8, 32 << 20
	room := map[string]func() *transfertest.Room{
		"host": func() *transfertest.Room {
			return transfertest.NewRoom(transfertest.Heap(make([]byte, count*size+4096)))
		},
		"staged": func() *transfertest.Room { return transfertest.NewRoom(transfertest.NewFar(b, count*size+4096)) },
	}
	for _, kind := range []string{"host", "staged"} {
		objects := transfertest.NewObjectsIn(room[kind]())
		var refs []transfer.Ref
		for i := range count {
			refs = append(refs, transfer.Ref{Task: ids.TaskID(i + 1), Generation: 1})
			objects.Put(refs[i], "h", make([]byte, size))
		}
		peer, _ := serve(b, objects, nil)
		to := room[kind]()
		for _, streams := range []int{1, 2, 4} {
			b.Run(fmt.Sprint(kind, "/", streams), func(b *testing.B) {
				path := grpcpath.New(grpcpath.Config{StallTimeout: transfertest.Patience, Streams: streams})
				defer path.Close()
				b.SetBytes(count * size)
				for b.Loop() {
					to.Reset()
					if err := path.Fetch(b.Context(), peer, refs, transfertest.NewSinkIn(to)); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

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

// BenchmarkFetchOfMany fetches a thousand objects of 64 KiB by one connection: from host memory to
// host memory, and between spaces that the processor cannot address.
func BenchmarkFetchOfMany(b *testing.B) {
	const count, size = 1000, 64 << 10
	room := map[string]func() *transfertest.Room{
		"host": func() *transfertest.Room {
			space := transfertest.Heap(make([]byte, count*size+4096))
			return transfertest.NewRoom(&space)
		},
		"staged": func() *transfertest.Room { return transfertest.NewRoom(transfertest.NewFar(b, count*size+4096)) },
	}
	for _, kind := range []string{"host", "staged"} {
		objects := transfertest.NewObjectsIn(room[kind]())
		var refs []transfer.Ref
		for i := range count {
			refs = append(refs, transfer.Ref{Task: ids.TaskID(i + 1), Generation: 1})
			objects.Put(refs[i], "h", make([]byte, size))
		}
		peer, _ := serve(b, objects, nil)
		to := room[kind]()
		b.Run(kind, func(b *testing.B) {
			path := grpcpath.New(grpcpath.Config{StallTimeout: transfertest.Patience, Streams: 1})
			defer path.Close()
			b.SetBytes(count * size)
			for b.Loop() {
				to.Reset()
				if err := path.Fetch(b.Context(), peer, refs, transfertest.Batching{Sink: transfertest.NewSinkIn(to)}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
