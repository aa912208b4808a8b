package stream

import (
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/gen/go/millrace/v1"
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

func TestTheSlowestRouteIsThatOfTheWorkersThatAreThere(t *testing.T) {
	route := func(peer string, rate float64, bytes uint64) schedapi.Route {
		return schedapi.Route{PeerName: peer, Path: schedapi.PathGRPC, BytesPerSecond: rate, Bytes: bytes}
	}
	worker := func(name string, state schedapi.WorkerState, routes ...schedapi.Route) *schedapi.Worker {
		w := &schedapi.Worker{Name: name, State: state}
		w.Routes = routes
		return w
	}
	if got := slowest([]*schedapi.Worker{worker("a", schedapi.WorkerActive, route("b", 1, 1))}); got != nil {
		t.Errorf("a route that has carried one byte is judged: %v", got)
	}
	got := slowest([]*schedapi.Worker{
		worker("a", schedapi.WorkerActive, route("b", 9e6, 1<<30), route("c", 1e6, 1<<20), route("d", 1, 1)),
		worker("b", schedapi.WorkerActive, route("a", 8e6, 1<<30)),
		worker("c", schedapi.WorkerLost, route("a", 5, 1<<30)),
	})
	if want := (slowRoute{"a", "c", "grpc", 1e6, 8e6}); got == nil || *got != want {
		t.Errorf("got %v, want %v", got, want)
	}
	many := worker("a", schedapi.WorkerActive)
	for i := range 3 * ratedRoutes {
		many.Routes = append(many.Routes, route("b", float64(1000+i), 1<<20))
	}
	if got := slowest([]*schedapi.Worker{many}); got.BytesPerSecond != 1000 || got.Median < 7000 || got.Median > 7300 {
		t.Errorf("got %v", got)
	}
}
