// Package ucx is an Adapter: the transfer path of one-sided reads. The reader copies bytes directly
// out of the peer's registered memory (ucp_get_nbx), by shared memory (CMA), from GPU to GPU
// (cuda_ipc), or by RDMA hardware.
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
// # Memory of GPUs
//
// A slab on a GPU is registered as CUDA memory, if UCX can do that. Then it is read directly
//
//   - by a worker with another GPU of the same host, by cuda_ipc;
//   - by RDMA, if the RDMA devices of the host can be given the GPU's memory (NICAccess). The same
//     holds for the slab that the bytes are to go to.
//
// Everywhere else the bytes are staged: they go through a ring, which is pinned host memory that is
// registered with UCX (cuda.Ring). Each side of a connection is staged or not, independently of the
// other one (Connection.Staged). If the source is staged, the reader asks for ranges of the
// source's slab. The source copies them to a slot of its ring, and tells the reader the slot. The
// reader reads the slot, and gives it back. If the reader is staged, it reads into a slot of its
// own ring, and copies the bytes from there to its slab. So the bytes of two GPUs without any
// common hardware cross one GPU's link, the network, and the other GPU's link.
//
// Reads are packed into pieces of at most one slot. A piece has parts of many frames and objects,
// so many small objects need few requests and few copies. Several pieces are in progress at the
// same time, so the slowest of the three ways is the limit, not their sum. A worker has two rings,
// one to serve from and one to read into. A slot that serves waits only for its reader, and a slot
// that reads is taken only after the source's slot is full, so no two workers wait for each other.
//
// The source lends slots to readers first come, first served, at most maxStagings at a time to
// each. A reader that keeps a slot for longer than transfer.DefaultStallTimeout and gives none back
// meanwhile loses its connection. The ranges that a reader asks for are checked against the slab; a
// reader may be sent only the slots that it has.
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
// When it connects, the reader reads the header page of the memory that it will read, the peer's
// slab or ring, and compares it with the data that the peer sent over gRPC. So the memory of
// another incarnation is never read as this one's. If a slab on a GPU can be read by RDMA, the
// direct and the staged reads are both proved and timed, and the faster are used. Every message
// begins with the random token of its connection, so a late message for an earlier connection is
// dropped.
//
// Bytes count as valid only when the source has confirmed, after the read, that the lease held
// during the whole read. Objects of at most InlineBytes travel inside the answer, from host memory
// to host memory; they were copied under the lease. Bytes in a slot of a ring count only with the
// lease, too: a source that has taken a slot back, because it ended the connection, confirms
// nothing on it.
//
// UCX may fail the endpoint of one side and not that of the other. So each side reports over the
// gRPC control connection the failures that the other side cannot see: a reader reports the
// connections that it has given up, so that their leases end. If a source owes an answer for a
// quarter of a second, the reader asks it whether it still serves the connection, and ends the
// connection if not.
//
// A fetch ends only when nothing writes to its regions any more: UCX has called back for each of
// its reads, and the copies from the ring to the slab are done.
package ucx
