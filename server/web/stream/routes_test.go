package stream

import (
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/rpc"
	"github.com/millrace/millrace/server/schedapi"
)

// A row of routes is the JSON of the worker's message, with its number and routes alone.
func TestRowsOfRoutesAreMessages(t *testing.T) {
	list := []schedapi.Route{
		{Peer: 2, PeerName: "host-1", Path: schedapi.PathUCX, State: schedapi.RouteOpen, BytesPerSecond: 1.5e9, Latency: 12_345 * time.Nanosecond,
			Bytes: 1 << 60, Succeeded: 7, Failed: 1, Transport: "rc_mlx5", Staged: "both", ConnectBytesPerSecond: 2e-7, ConnectionReason: `no "peer" access`},
		{Peer: 3, PeerName: "höst", Path: schedapi.PathGRPC, State: schedapi.RouteOpen, Reason: "line\nbreak"},
		{},
	}
	for n := range len(list) + 1 {
		w := &schedapi.Worker{ID: 9, Name: "w", Slots: 4}
		w.Routes = list[:n]
		var got pb.Worker
		if err := protojson.Unmarshal(appendRoutes(nil, w.ID, w.Routes), &got); err != nil {
			t.Fatal(err)
		}
		if want := (&pb.Worker{WorkerId: 9, Routes: rpc.Rows{}.Worker(w).Routes}); !proto.Equal(&got, want) {
			t.Errorf("got %v\nwant %v", &got, want)
		}
	}
}

// Bytes by path are summed over all workers. A list of routes that has not changed is not read
// again, and the sums of a worker that has left go with it.
func TestRoutesAreSummedByPath(t *testing.T) {
	worker := func(id ids.WorkerID, routes ...schedapi.Route) *schedapi.Worker {
		w := &schedapi.Worker{ID: id}
		w.Routes = routes
		return w
	}
	a := worker(1, schedapi.Route{Path: schedapi.PathUCX, Bytes: 1}, schedapi.Route{Path: schedapi.PathGRPC, Bytes: 10}, schedapi.Route{Path: 99, Bytes: 5})
	b := worker(2, schedapi.Route{Path: schedapi.PathUCX, Bytes: 100})
	var sums routeSums
	want := func(ucx, grpc uint64, workers ...*schedapi.Worker) {
		t.Helper()
		got := sums.of(workers)
		if got[schedapi.PathUCX] != ucx || got[schedapi.PathGRPC] != grpc {
			t.Errorf("%v, want %d by UCX and %d by gRPC", got, ucx, grpc)
		}
	}
	want(101, 10, a, b)
	a.Routes[0].Bytes = 7 // in place: the loop makes a new list instead
	want(101, 10, a, b)
	a.Routes = []schedapi.Route{{Path: schedapi.PathUCX, Bytes: 2}}
	want(102, 0, a, b)
	want(100, 0, b)
	want(0, 0)
}
