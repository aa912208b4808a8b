package grpcpath_test

import (
	"fmt"
	"net"
	"testing"

	"google.golang.org/grpc"

	"context"
	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/rawframe"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/grpcpath"
	"github.com/millrace/millrace/transfer/transfertest"
)

func serve(tb testing.TB, objects transfer.Source, receiver transfer.Receiver) transfer.Peer {
	tb.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	server := grpc.NewServer(rawframe.ServerOptions()...)
	millracev1.RegisterDataServiceServer(server, &grpcpath.Server{Source: objects, Receiver: receiver, Incarnation: "test"})
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	tb.Cleanup(func() {
		server.Stop()
		if err := <-done; err != nil {
			tb.Error(err)
		}
	})
	return transfer.Peer{Worker: 1, Name: "peer", Address: listener.Addr().String()}
}

// fixed is a sink that reuses one region.
type fixed struct{ region transfer.Region }

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
			peer := serve(b, objects, objects)
			path := grpcpath.New(grpcpath.Config{})
			defer path.Close()
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
