// Package cuda is an Adapter: the memory of one GPU, its streams and events, and host memory that
// the GPU reads at the speed of its link.
//
// libcuda.so.1 is loaded at run time. So the binary is built without the CUDA toolkit and also runs
// on machines without a driver: there Load returns ErrUnavailable with the reason. In Go, contexts,
// streams and addresses are numbers; each call into the C shim makes the context current on its
// thread.
//
// # Wiring
//
//	driver, err := cuda.Load(cuda.Config{})
//	device, err := driver.Open(ordinal)          // the primary context; before UCX
//	slab, err := device.NewSlab(cuda.SlabConfig{Identity: identity})
//	tier, err := device.NewTier(hostSlab, cuda.TierConfig{})  // the tier below
//	ring, err := slab.NewRing(8)                 // for network adapters that cannot read the slab
//	... ring.Close(); slab.Close(); tier.Close(); device.Close()
//
// A peer on the same host receives the result of slab.Export over the control plane and calls
// Device.OpenPeer. OpenPeer reads the header page through the mapping and refuses a slab with
// another identity than the announced one.
//
// # Invariants
//
// A device has only the primary context, because UCX and the libraries of users use that one.
// Memory that a kernel, a copy, a peer or an executor may still touch must not be used again: the
// caller first waits for an Event behind that work.
//
// An error that the context does not survive (an illegal address, an uncorrectable ECC error) makes
// the Device unhealthy for good: Health names the call that first returned it, every later call
// fails at once with it, and the process should be replaced.
//
// The memory of a dead process stays allocated as long as any process has it mapped. Peer.Retire
// unmaps it when the last copy out of it has ended. Until every peer has done that,
// Device.AwaitSlab of the next incarnation retries.
package cuda
