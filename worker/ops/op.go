package ops

import (
	"context"
	"fmt"
	"strconv"
	"strings"
)

// Allocator allocates the memory of one output: a C-contiguous tensor of that type and shape. Its
// bytes need not be zero.
type Allocator func(dtype DType, shape []int64) (*Tensor, error)

// Op is one operation that the worker can run, with its description for people: see package
// reference. The texts are Markdown without lists or headings.
type Op struct {
	Name string
	// Doc is one sentence: what the operation does. Details is the rest, in paragraphs that an
	// empty line separates; it may be empty.
	Doc, Details string
	Params       []Param
	// Variadic is the name of the further positional arguments; empty: there are none.
	// VariadicDoc describes them.
	Variadic, VariadicDoc string
	// Open operations allow named arguments besides Params. OpenDoc describes these.
	Open    bool
	OpenDoc string
	// Result describes the result: its shape and dtype.
	Result string
	// Errors are the errors that a caller may not expect. Arguments of a wrong type, and those out
	// of the limits that their Doc gives, are not among them.
	Errors  []string
	Example Example
	// Libraries are those that a GPU needs for it, as in libNAME.so. Some calls need none.
	Libraries []string
	// Processor: the processor computes it on workers with a GPU, too.
	Processor bool
	// ReadsNoData: the operation reads no element of the tensors among its arguments, so these may
	// lie in Far memory.
	ReadsNoData bool
	// ReadsOnce: the operation reads each byte of its tensors about once. Moves: in addition, it
	// reads only bytes that become part of its result.
	ReadsOnce, Moves bool
	plan             func(c *call) (*Planned, error)
}

// Example is a graph in which the last task calls the operation.
type Example struct {
	// Tasks are JSON objects, in the form that `millrace submit` reads.
	Tasks []string
	// Result is the result of the last task, as `millrace get result` prints it; empty: it depends
	// on the machine.
	Result string
}

// single plans an operation whose result is one tensor.
func single(dtype DType, shape []int64, w Work, run func(ctx context.Context, out *Tensor) error) *Planned {
	p := &Planned{Work: w, Result: onlyOf, runSingle: run, one: [1]Output{{dtype, shape}}}
	p.Outputs = p.one[:]
	return p
}

// several plans an operation whose result is a list of tensors.
func several(outputs []Output, w Work, run func(ctx context.Context, outs []*Tensor) error) *Planned {
	return &Planned{Outputs: outputs, Work: w, Result: listOf, run: func(ctx context.Context, outs []*Tensor) (any, error) {
		return listOf(outs), run(ctx, outs)
	}}
}

// listOf is the Result of an operation whose result is a list of its outputs.
func listOf(outs []*Tensor) any {
	list := make([]any, len(outs))
	for i, t := range outs {
		list[i] = t
	}
	return list
}

// onlyOf is the Result of an operation whose result is its only output.
func onlyOf(outs []*Tensor) any { return outs[0] }

// scalar plans an operation whose result needs no tensor memory.
func scalar(run func(ctx context.Context) (any, error)) *Planned {
	return &Planned{run: func(ctx context.Context, _ []*Tensor) (any, error) { return run(ctx) }}
}

// Run checks the arguments, allocates memory for the results and computes them. The caller must
// free the memory that alloc returned, also if Run fails.
func (o *Op) Run(ctx context.Context, args Args, alloc Allocator) (any, error) {
	p, err := o.Plan(args)
	if err != nil {
		return nil, err
	}
	return p.Run(ctx, alloc)
}

// OutputBytes returns how many bytes Run will request from its allocator. It uses only the types
// and shapes of the arguments: their Data may be nil. known is false if the number cannot be
// determined or the arguments are wrong; then Run returns the error.
func (o *Op) OutputBytes(args Args) (bytes int64, known bool) {
	var failure error
	defer recovered(o.Name, &failure)
	c, err := o.bind(args, false)
	if err != nil {
		return 0, false
	}
	p, err := o.plan(c)
	if err != nil {
		return 0, false
	}
	return p.OutputBytes()
}

// DefaultText returns the default in written form, as in JSON.
func (p *Param) DefaultText() string {
	switch v := p.Default.(type) {
	case nil:
		return "null"
	case string:
		return strconv.Quote(v)
	default:
		return fmt.Sprint(v)
	}
}

// Signature returns the call in written form, with defaults.
func (o *Op) Signature() string {
	var parts []string
	variadic := o.Variadic
	for i, p := range o.Params {
		if variadic != "" && i == o.Positional() {
			parts, variadic = append(parts, "*"+variadic), ""
		}
		switch {
		case p.Required:
			parts = append(parts, p.Name)
		default:
			parts = append(parts, p.Name+"="+p.DefaultText())
		}
	}
	if variadic != "" {
		parts = append(parts, "*"+variadic)
	}
	if o.Open {
		parts = append(parts, "**named")
	}
	return o.Name + "(" + strings.Join(parts, ", ") + ")"
}
