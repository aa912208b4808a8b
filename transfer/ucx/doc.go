// Package ucx is an Adapter: the transfer path of one-sided reads. The reader
// gets bytes straight out of the peer's registered slab (ucp_get_nbx), over
// shared memory (CMA) or what RDMA hardware there is.
//
// Where no transport of a pair reads remote memory by itself (TCP, shared memory
// without CMA), the peer is asked to send the bytes in messages: the GETs that
// UCX would emulate abort the source's process when the reader goes away in the
// middle (ucs_fatal in ucp_request_send, 1.19.0).
//
// libucp.so.0 is loaded at run time, so that the same binary runs where there is
// none: Open then says ErrUnavailable and why. A Context is this process's UCX
// worker: one goroutine, locked to its thread, alone calls UCX, through a shim
// whose orders and completions are rings in C memory. Context.Accept is the
// serving side (DataService.ConnectLane), NewPath the reading side.
//
// # Wiring
//
//	context, err := ucx.Open(ucx.Config{Space: slab, Source: store.Source(), SourceIsQuick: true, ...})
//	server := &grpcpath.Server{Lane: context.Accept, ...}
//	path := ucx.NewPath(context, ucx.PathConfig{Connect: grpc.ConnectLane, ...})
//	... path.Close(); context.Close()  // while the slab is still mapped
//
// Fetch fails with ErrNoLane when this path can never be taken to that peer as
// both are now (another version, no library, a failed proof), and with the
// errors of transfer otherwise. Path.Connect gives the proved Lane: a lane with
// Emulated set is correct and slow, and other paths should be preferred.
//
// # What holds
//
// At connect the reader reads the header page of the peer's slab and compares it
// with what the peer said over gRPC: another incarnation's memory is never read
// as this one's. Every message begins with the random token of its connection,
// so a late one from another life is dropped. Bytes count as valid only when the
// source has confirmed, after the read, that the lease held throughout; objects
// of at most InlineBytes travel inside the answer and were copied under the
// lease. UCX may fail one side's endpoint and not the other's: each side says over the
// control connection what the other one cannot see. A reader tells which lane it has
// given up, so that its leases end; and if a source owes an answer for a quarter of a
// second, it is asked whether it serves the lane, which ends at once if not. A fetch ends only when UCX has called back for each of its reads:
// until then they may still write.
package ucx
