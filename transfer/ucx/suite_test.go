//go:build cgo && linux

package ucx_test

import (
	"context"
	"slices"
	"testing"
	"time"

	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/grpcpath"
	"github.com/millrace/millrace/transfer/transfertest"
	"github.com/millrace/millrace/transfer/ucx"
)

// slabBytes is larger than the memory that any test uses. Hosts with RDMA devices lock all of it.
var slabBytes uint64 = 3 << 30

// reader is the reading side, in the test's process.
type reader struct {
	context *ucx.Context
	path    *ucx.Path
	room    *transfertest.Room
	// lie, if set, changes the description that is sent to peers.
	lie func(*endpoint)
}

func newReader(tb testing.TB, tls string, stall time.Duration) *reader {
	tb.Helper()
	return newReaderAt(tb, pair{tls: tls}, stall)
}

// newReaderAt makes the reader of a pair.
func newReaderAt(tb testing.TB, p pair, stall time.Duration) *reader {
	tb.Helper()
	room := transfertest.NewRoom(newSpace(tb, p.reader))
	c, err := ucx.Open(at(p.reader, ucx.Config{Library: library(tb), TLS: p.tls, NetDevices: netDevices(), Space: room.Space()}))
	if err != nil {
		tb.Fatal(err)
	}
	wire := grpcpath.New(grpcpath.Config{StallTimeout: stall})
	r := &reader{context: c, room: room}
	r.path = ucx.NewPath(c, ucx.PathConfig{
		Connect: func(ctx context.Context, peer transfer.Peer, request *workerv1.ConnectRequest) (*workerv1.ConnectResponse, error) {
			if r.lie != nil && request.GetReader() != nil {
				r.lie(request.GetReader())
			}
			return wire.Connect(ctx, peer, request)
		},
		StallTimeout: stall,
	})
	tb.Cleanup(func() {
		for _, err := range []error{r.path.Close(), c.Close(), wire.Close()} {
			if err != nil {
				tb.Error(err)
			}
		}
	})
	return r
}

func newObjects(tb testing.TB) *transfertest.Objects {
	tb.Helper()
	return transfertest.NewObjectsIn(transfertest.NewRoom(newSlab(tb, slabBytes)))
}

// transports are the connections of host memory: the one of a pair on one host, and the one between
// hosts without RDMA.
var transports = map[string]string{"cma": "posix,cma,self", "tcp": "tcp,self"}

func TestConformance(t *testing.T) {
	eachPair(t, allPlaces, func(t *testing.T, p pair) {
		t.Helper()
		rooms := map[transfer.Path]*transfertest.Room{}
		transfertest.Harness{
			Serve: func(t *testing.T, source transfer.Source) (transfer.Peer, func()) {
				t.Helper()
				c := startChild(t, p.order(), source.(*transfertest.Objects))
				return c.peer, c.kill
			},
			Path: func(t *testing.T, stall time.Duration) transfer.Path {
				t.Helper()
				r := newReaderAt(t, p, stall)
				rooms[r.path] = r.room
				return r.path
			},
			CanStall: p.source == p.reader && p.source != onOpenGPU,
			Slow:     elsewhere != nil,
			Objects:  func(t *testing.T) *transfertest.Objects { t.Helper(); return newObjects(t) },
			Room:     func(path transfer.Path) *transfertest.Room { return rooms[path] },
		}.Run(t)
	})
}

func TestConnectionIsProvedAndDescribed(t *testing.T) {
	eachPair(t, allPlaces, func(t *testing.T, p pair) {
		t.Helper()
		c := startChild(t, p.order(), newObjects(t))
		r := newReaderAt(t, p, transfertest.Patience)
		connection, err := r.path.Connect(t.Context(), c.peer)
		if err != nil {
			t.Fatal(err)
		}
		t.Log(connection)
		byMessage := p.tls == transports["tcp"]
		if transports[connection.Transport] != p.tls || connection.Emulated != byMessage || byMessage && connection.Why == "" ||
			connection.BytesPerSecond <= 0 || connection.Latency <= 0 {
			t.Errorf("%s, of %v", connection, connection.Transports)
		}
		if again, open := r.path.Connection(c.peer.Address); !open || again.Transport != connection.Transport {
			t.Errorf("%s is described as %s, open %v", connection, again, open)
		}
		if _, open := r.path.Connection("nobody:1"); open {
			t.Error("a connection that was never opened is described")
		}
		if want := p.staged(); !slices.Contains(want, connection.Staged) {
			t.Errorf("staged at %q, expected one of %q", connection.Staged, want)
		}
	})
}

// staged returns the ends at which a connection of the pair may be staged. If it can be direct at
// the source on a GPU, the faster way is kept, which can be the staged one. A reader on an open GPU
// knows the direct way only.
func (p pair) staged() []string {
	direct := map[[2]bool]string{{false, true}: "reader", {true, false}: "source", {true, true}: "both"}
	ends := []string{direct[[2]bool{p.source == onGPU, p.reader == onGPU}]}
	if p.source == onOpenGPU && p.reader != onOpenGPU {
		ends = append(ends, direct[[2]bool{p.source != onHost, p.reader != onHost}])
	}
	return ends
}

func idOf(task int) ids.TaskID { return ids.TaskID(task) }
