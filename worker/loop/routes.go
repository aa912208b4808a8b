package loop

import (
	"errors"
	"slices"
	"strings"

	"google.golang.org/protobuf/types/known/durationpb"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/flow"
)

// routed is a path that reports its routes to peers. A peer is identified by its address.
type routed interface {
	Routes() []flow.Route
	Forget(address string)
}

// routes returns the routes to all peers if they have changed since the last call, and nil
// otherwise.
func (w *Worker) routes() []*millracev1.Route {
	path, ok := w.config.Path.(routed)
	if !ok {
		return nil
	}
	now := path.Routes()
	if slices.Equal(now, w.reportedRoutes) {
		return nil
	}
	w.reportedRoutes = now
	peers := make(map[string]transfer.Peer, len(w.peers))
	for _, p := range w.peers {
		peers[p.Address] = p
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

// pathNumber returns the API's number of a path; 0 if the API does not know the path.
func pathNumber(name string) millracev1.TransferPath {
	return millracev1.TransferPath(millracev1.TransferPath_value["TRANSFER_PATH_"+strings.ToUpper(name)])
}

// setPeer records the address of a worker, or that the worker is gone (an empty address).
func (w *Worker) setPeer(pb *workerv1.Peer) {
	id := ids.WorkerID(pb.GetWorkerId())
	old := w.peers[id]
	if pb.GetDataAddress() == "" {
		delete(w.peers, id)
	} else {
		w.peers[id] = transfer.Peer{Worker: id, Name: pb.GetName(), Address: pb.GetDataAddress(), OnGPU: pb.GetDevice() == millracev1.DeviceKind_DEVICE_KIND_CUDA}
	}
	path, ok := w.config.Path.(routed)
	if ok && old.Address != "" && old.Address != pb.GetDataAddress() {
		w.fetching.Go(func() { path.Forget(old.Address) })
	}
	if pb.GetSameHost() {
		w.prepare(w.peers[id])
	}
}

// prepare sets up the connection to a peer in the background, so that the first fetch from it need
// not wait for that.
func (w *Worker) prepare(peer transfer.Peer) {
	path := w.config.capabilities().Prepare
	if path == nil {
		return
	}
	ctx := w.fetchCtx
	w.fetching.Go(func() {
		_, err := path.Prepare(ctx, peer)
		if err != nil && ctx.Err() == nil && !errors.Is(err, transfer.ErrUnreachable) {
			w.log.Info("a worker near this one is not prepared for", "peer", peer.String(), "error", err)
		}
	})
}
