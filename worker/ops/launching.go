package ops

import (
	"context"
	"math"
)

// Launching runs a kernel that the client wrote.
type Launching struct {
	Source, Entry string
	Grid, Block   [3]uint32
	SharedBytes   uint32
	// Arguments are the kernel's parameters; the outputs' addresses follow them.
	Arguments []KernelArgument
	// Zero says that the outputs are filled with zeros first.
	Zero bool
}

// KernelArgument is one parameter of a kernel.
type KernelArgument struct {
	// Tensor is passed as the address of its elements in C order. It is nil for a scalar.
	Tensor *Tensor
	// Scalar has no axes and lies in host memory. It is nil for a tensor.
	Scalar *Tensor
}

func (*Launching) isWork() {}

// CUDA's limits.
const (
	maxBlockThreads = 1024
	maxBlockDepth   = 64
	maxGridWidth    = math.MaxInt32
	maxGridHeight   = 65535
)

// CUDAKernel returns the operation cuda.kernel, which CUDA devices have in addition to the others.
func CUDAKernel() *Op {
	return &Op{
		Name: "cuda.kernel",
		Doc:  "Compiles CUDA C++ for the GPU of the worker, once for each source, and runs a kernel of it.",
		Details: "The kernel is declared `extern \"C\" __global__`. Its parameters are the inputs in their order, then a pointer for " +
			"each output. For a tensor the parameter is a pointer to its elements in C order, for an int a `long long`, for a " +
			"float a `double`, for a bool a `bool`, and for `{\"dtype\": \"float32\", \"value\": 0.5}` a number of that dtype.\n\n" +
			"A kernel that writes outside of its memory damages other objects, or ends the worker with all that it holds: check " +
			"bounds in the kernel. [gpu-operations.md](gpu-operations.md) has more about compiling and faults.",
		Params: []Param{
			{Name: "source", Type: StringType, Required: true, Doc: "CUDA C++, C++17; there are no headers besides those of the compiler itself"},
			{Name: "entry", Type: StringType, Required: true, Doc: "the name of the kernel"},
			{Name: "grid", Type: IntsType, Required: true, Doc: "the blocks: one to three numbers, at most 2147483647, 65535 and 65535"},
			{Name: "block", Type: IntsType, Required: true, Doc: "the threads of a block: one to three numbers, at most 1024, 1024 and 64, and 1024 in all"},
			{Name: "outputs", Type: ListType, Required: true, Doc: "a map of `dtype` and `shape` for each output, at least one"},
			{Name: "shared", Type: IntType, Default: int64(0), Doc: "the bytes of dynamic shared memory of each block"},
			{Name: "zero", Type: BoolType, Default: false, Doc: "fill the outputs with zeros first; otherwise their content is arbitrary"},
		},
		Variadic:    "inputs",
		VariadicDoc: "tensors, numbers, and maps of `dtype` and `value`",
		Result:      "the tensor, if there is one output; otherwise a list of tensors",
		Errors: []string{
			"INVALID_ARGUMENT with the messages of the compiler, if the source does not compile",
			"INVALID_ARGUMENT if the source has no such kernel, or the GPU does not have as much shared memory",
		},
		Libraries: []string{"nvrtc"},
		Example: Example{[]string{
			`{"key": "kernel-x", "op": "array.arange", "args": [4], "kwargs": {"dtype": "float32"}}`,
			`{"key": "kernel", "op": "cuda.kernel", "args": [` +
				`"extern \"C\" __global__ void scale(const float *x, long long n, float a, float *out) { ` +
				`long long i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) out[i] = a * x[i]; }", ` +
				`"scale", 1, 128, [{"dtype": "float32", "shape": [4]}], ` +
				`{"input": "kernel-x"}, 4, {"dtype": "float32", "value": 2.5}]}`,
		}, "[0, 2.5, 5, 7.5]"},
		plan: planKernel,
	}
}

func planKernel(c *call) (*Planned, error) {
	w := &Launching{Source: c.string("source"), Entry: c.string("entry"), Zero: c.bool("zero")}
	var err error
	if w.Grid, err = c.dimensions("grid", [3]int64{maxGridWidth, maxGridHeight, maxGridHeight}); err != nil {
		return nil, err
	}
	if w.Block, err = c.dimensions("block", [3]int64{maxBlockThreads, maxBlockThreads, maxBlockDepth}); err != nil {
		return nil, err
	}
	if n := w.Block[0] * w.Block[1] * w.Block[2]; n > maxBlockThreads {
		return nil, c.bad("block", "%v are %d threads, more than the %d that a block can have", c.ints("block"), n, maxBlockThreads)
	}
	shared := c.int("shared")
	if shared < 0 || shared > math.MaxInt32 {
		return nil, c.bad("shared", "%d is not a number of bytes that a block can have", shared)
	}
	w.SharedBytes = uint32(shared)
	for i, v := range c.rest {
		argument, err := c.kernelArgument(ordinal("inputs", i), v)
		if err != nil {
			return nil, err
		}
		w.Arguments = append(w.Arguments, argument)
	}
	var outputs []Output
	for i, v := range c.list("outputs") {
		out, err := c.kernelOutput(ordinal("outputs", i), v)
		if err != nil {
			return nil, err
		}
		outputs = append(outputs, out)
	}
	if len(outputs) == 0 {
		return nil, c.bad("outputs", "missing: expected at least one map of dtype and shape")
	}
	p := several(outputs, w, func(context.Context, []*Tensor) error {
		return &Error{Kind: Failed, Op: c.op.Name, Reason: "this worker has no GPU"}
	})
	if len(outputs) == 1 {
		p.Result = func(outs []*Tensor) any { return outs[0] }
	}
	return p, nil
}

// dimensions reads one to three numbers; missing ones are one.
func (c *call) dimensions(name string, limits [3]int64) ([3]uint32, error) {
	given := c.ints(name)
	out := [3]uint32{1, 1, 1}
	if len(given) == 0 || len(given) > len(out) {
		return out, c.bad(name, "expected one to three numbers, got %d", len(given))
	}
	for i, n := range given {
		if n < 1 || n > limits[i] {
			return out, c.bad(name, "%d is outside of 1 to %d", n, limits[i])
		}
		out[i] = uint32(n)
	}
	return out, nil
}

func (c *call) kernelArgument(name string, v any) (KernelArgument, error) {
	dtype, isNumber := leafDType(v)
	if m, ok := v.(map[string]any); ok {
		named, ok := m["dtype"].(string)
		if _, given := m["value"]; !ok || !given || len(m) != 2 {
			return KernelArgument{}, c.bad(name, "expected a map of dtype and value")
		}
		var err error
		if dtype, err = ParseDType(named); err != nil {
			return KernelArgument{}, c.bad(name, "%v", err)
		}
		if v, err = c.convert(&Param{Name: name, Type: NumberType}, m["value"]); err != nil {
			return KernelArgument{}, err
		}
		isNumber = true
	}
	if isNumber {
		t, err := Scalar(dtype, v)
		if err != nil {
			return KernelArgument{}, c.bad(name, "%v", err)
		}
		return KernelArgument{Scalar: t}, nil
	}
	t, err := c.tensorOf(name, v)
	return KernelArgument{Tensor: t}, err
}

func (c *call) kernelOutput(name string, v any) (Output, error) {
	m, ok := v.(map[string]any)
	if !ok || len(m) != 2 || m["dtype"] == nil || m["shape"] == nil {
		return Output{}, c.bad(name, "expected a map of dtype and shape, got %s", describe(v))
	}
	dtype, err := c.convert(&Param{Name: name, Type: DTypeType}, m["dtype"])
	if err != nil {
		return Output{}, err
	}
	shape, err := c.convert(&Param{Name: name, Type: IntsType}, m["shape"])
	if err != nil {
		return Output{}, err
	}
	out := Output{dtype.(DType), shape.([]int64)}
	if _, err := countElements(out.Shape); err != nil {
		return out, c.bad(name, "%v", err)
	}
	return out, nil
}
