package peers

import (
	"log/slog"
	"testing"

	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/flow"
)

// oneRoute is a path with a route to one address.
type oneRoute struct {
	transfer.Path
	address string
}

func (p oneRoute) Capabilities() transfer.Capabilities { return transfer.Capabilities{} }

func (p oneRoute) Routes() []flow.Route { return []flow.Route{{Peer: p.address, Path: "grpc"}} }

func (oneRoute) Forget(string) {}

// A worker that was started again at the address of a dead one has the route to that address, while
// the dead one is still named because of its memory.
func TestRoutesNameTheLastWorkerAtAnAddress(t *testing.T) {
	for range 100 { // a map has the workers, in any order
		p := New(Config{Path: oneRoute{address: "host:1"}, Log: slog.New(slog.DiscardHandler)})
		for _, id := range []uint32{4, 9, 2} {
			p.Set(&workerv1.Peer{WorkerId: id, DataAddress: "host:1", Name: "w"})
		}
		routes := p.Routes()
		if len(routes) != 1 || routes[0].GetPeerWorkerId() != 9 {
			t.Fatalf("the routes are %v", routes)
		}
	}
}
