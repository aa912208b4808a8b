// Package ops is an Adapter: the array operations that a worker runs itself on
// host memory, over strided n-dimensional views of its slab.
//
// Results, shapes and dtype promotion are those of NumPy 2, with the exceptions
// named at the operation. An operation is planned before it is run: planning
// checks the arguments and finds the dtype and shape of every output without
// touching data, so that memory is reserved first (Op.OutputBytes) and the
// outputs are then written straight into it (Allocator). No operation returns a
// view: what it returns never aliases its arguments.
//
// Devices with kernels of their own plan with the same code: Op.Plan says what a
// call computes (Work), over tensors that may lie where the processor cannot
// address them (Memory).
//
// Operations are stateless and safe for concurrent use, provided that nobody
// writes to the arguments meanwhile. Inner loops look at their context about
// every millisecond of work, so that a cancelled task really stops. NB: array.qr
// and array.svd look only between their calls into LAPACK, which take 0.15 s for
// 20,000 x 100 elements; whoever must cancel sooner factors smaller chunks.
package ops
