// Package ucx is an Adapter: the transfer path of one-sided reads. The reader copies bytes directly
// out of the peer's registered slab (ucp_get_nbx), by shared memory (CMA) or by RDMA hardware if
// there is any.
//
// If no transport of a pair can read remote memory by itself (TCP, shared memory without CMA), the
// reader asks the peer to send the bytes in messages. UCX would emulate GETs there, but these
// emulated GETs abort the source's process if the reader disappears in the middle (ucs_fatal in
// ucp_request_send, 1.19.0).
//
// libucp.so.0 is loaded at run time, so the same binary runs on machines without it: Open then
// fails with ErrUnavailable and the reason. A Context is this process's UCX worker. Only one
// goroutine, locked to its thread (the progress thread), calls UCX. It does so through a shim whose
// orders and completions are rings in C memory. Context.Accept is the serving side
// (PeerService.Connect), NewPath the reading side.
//
// # Wiring
//
//	context, err := ucx.Open(ucx.Config{
//		Space: slab, Source: store.Source(), SourceIsQuick: true, ...})
//	server := &grpcpath.Server{OneSided: context.Accept, ...}
//	path := ucx.NewPath(context, ucx.PathConfig{Connect: grpc.Connect, ...})
//	... path.Close(); context.Close()  // while the slab is still mapped
//
// Fetch fails with ErrNoConnection if this path cannot reach that peer as both are now (another
// version, no library, a failed proof), and with the errors of transfer otherwise. Path.Connect
// returns the proved Connection. A connection with Emulated set is correct but slow; other paths
// should be preferred.
//
// # Guarantees
//
// When it connects, the reader reads the header page of the peer's slab and compares it with the
// data that the peer sent over gRPC. So the memory of another incarnation is never read as this
// one's. Every message begins with the random token of its connection, so a late message for an
// earlier connection is dropped.
//
// Bytes count as valid only when the source has confirmed, after the read, that the lease held
// during the whole read. Objects of at most InlineBytes travel inside the answer; they were copied
// under the lease.
//
// UCX may fail the endpoint of one side and not that of the other. So each side reports over the
// gRPC control connection the failures that the other side cannot see: a reader reports the
// connections that it has given up, so that their leases end. If a source owes an answer for a
// quarter of a second, the reader asks it whether it still serves the connection, and ends the
// connection if not.
//
// A fetch ends only after UCX has called back for each of its reads: until then they may still
// write to memory.
package ucx
