package peers

import (
	"slices"
	"strings"

	"google.golang.org/protobuf/types/known/durationpb"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/flow"
)

// routed is a path that reports its routes to peers. A peer is identified by its address.
type routed interface {
	Routes() []flow.Route
	Forget(address string)
}

// Routes returns the routes to all peers if they have changed since the last call, and nil
// otherwise.
func (p *Peers) Routes() []*millracev1.Route {
	path, ok := p.config.Path.(routed)
	if !ok {
		return nil
	}
	now := path.Routes()
	if slices.Equal(now, p.reported) {
		return nil
	}
	p.reported = now
	peers := make(map[string]transfer.Peer, len(p.all))
	// order-free: a map is made.
	for _, peer := range p.all {
		peers[peer.Address] = peer
	}
	var out []*millracev1.Route
	for _, l := range now {
		peer, known := peers[l.Peer]
		if !known {
			continue
		}
		route := &millracev1.Route{
			PeerWorkerId: uint32(peer.Worker), Peer: peer.Name, Path: pathNumber(l.Path), State: millracev1.RouteState(l.State + 1), Reason: l.Why,
			BytesPerSecond: l.Rate, ReceivedBytes: l.Bytes, SucceededFetches: l.Succeeded, FailedFetches: l.Failed,
			Transport: l.Transport, Staged: l.Staged, ConnectBytesPerSecond: l.ConnectRate, ConnectionReason: l.ConnectionWhy,
		}
		if l.Latency > 0 {
			route.Latency = durationpb.New(l.Latency)
		}
		out = append(out, route)
	}
	slices.SortStableFunc(out, func(a, b *millracev1.Route) int { return int(a.GetPeerWorkerId()) - int(b.GetPeerWorkerId()) })
	return out
}

// RepeatRoutes makes the next call of Routes return all of them.
func (p *Peers) RepeatRoutes() { p.reported = nil }

// pathNumber returns the API's number of a path; 0 if the API does not know the path.
func pathNumber(name string) millracev1.TransferPath {
	return millracev1.TransferPath(millracev1.TransferPath_value["TRANSFER_PATH_"+strings.ToUpper(name)])
}
