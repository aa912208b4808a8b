// Package cuda is an Adapter: the memory of one GPU, its streams and events, and
// host memory that the GPU reads at the speed of its link.
//
// libcuda.so.1 is loaded at run time, so that the same binary is built without
// the toolkit and runs where there is no driver: Load then says ErrUnavailable
// and why. Contexts, streams and addresses are numbers to Go; each call into the
// shim makes the context current on the thread it is on.
//
// # Wiring
//
//	driver, err := cuda.Load(cuda.Config{})
//	device, err := driver.Open(ordinal)          // the primary context; before UCX
//	slab, err := device.NewSlab(cuda.SlabConfig{Identity: identity})
//	pinned, err := device.Register(hostSlab, cuda.RegisterConfig{})  // the tier below
//	... slab.Close(); pinned.Close(); device.Close()
//
// A peer on the same host gets what slab.Export returns over the control plane and calls
// Device.OpenPeer, which reads the header page through the mapping and refuses a
// slab that is not the one it was told of.
//
// # What holds
//
// A device has the primary context only, because UCX and the libraries of users
// use that one. Memory that a kernel, a copy, a peer or an executor may still
// touch is freed by a Gate, when each of its fences has signalled. An error that
// the context does not survive (an illegal address, an uncorrectable ECC error)
// makes the Device unhealthy for good: Health names the call that first saw it,
// every later call fails at once with it, and the process should be replaced.
//
// The memory of a process that died stays allocated as long as any process has
// it mapped. Peer.Retire unmaps it when the last copy out of it is over; until
// every peer has done that, Device.AwaitSlab of the next incarnation retries.
package cuda
