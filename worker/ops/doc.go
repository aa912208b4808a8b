// Package ops is an Adapter: the array operations that a worker itself runs on host memory, over
// strided n-dimensional views of its slab.
//
// Results, shapes and dtype promotion are those of NumPy 2, with the exceptions named at the
// operation. An operation is planned before it is run: planning checks the arguments and finds the
// dtype and shape of every output without touching data. So memory can be reserved first
// (Op.OutputBytes), and the outputs are then written directly into it (Allocator). No operation
// returns a view: its result never aliases its arguments.
//
// Devices with kernels of their own plan with the same code: Op.Plan describes the computation of a
// call (Work), over tensors that may lie in memory that the CPU cannot address (Memory).
//
// Operations are stateless and safe for concurrent use, provided that the arguments are not written
// to at the same time. Inner loops check their context after about every millisecond of work, so
// that a cancelled task really stops. NB: operations of linear algebra check it between their calls
// of a library, which take 0.3 seconds at most; smaller chunks can be cancelled sooner.
package ops
