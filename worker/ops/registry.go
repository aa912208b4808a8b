package ops

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Allocator provides the memory of one output: a C-contiguous tensor of that type
// and shape. Its bytes need not be zero.
type Allocator func(dtype DType, shape []int64) (*Tensor, error)

// Op is one operation that the worker can run.
type Op struct {
	Name     string
	Doc      string
	Params   []Param
	Variadic string // what further positional arguments are; empty: there are none
	Open     bool   // named arguments beside Params are allowed
	// Blind: it looks at no element of the tensors among its arguments, which may lie in Far memory then.
	Blind bool
	// Once: it reads each byte of its tensors about once. Moves: and its result is made of
	// the bytes that it reads.
	Once, Moves bool
	plan        func(c *call) (*Planned, error)
}

// single plans an operation with one tensor as its result.
func single(dtype DType, shape []int64, w Work, run func(ctx context.Context, out *Tensor) error) *Planned {
	p := &Planned{Work: w, Result: func(outs []*Tensor) any { return outs[0] }, runSingle: run, one: [1]Output{{dtype, shape}}}
	p.Outputs = p.one[:]
	return p
}

// several plans an operation with a list of tensors as its result.
func several(outputs []Output, w Work, run func(ctx context.Context, outs []*Tensor) error) *Planned {
	result := func(outs []*Tensor) any {
		list := make([]any, len(outs))
		for i, t := range outs {
			list[i] = t
		}
		return list
	}
	return &Planned{Outputs: outputs, Work: w, Result: result, run: func(ctx context.Context, outs []*Tensor) (any, error) {
		return result(outs), run(ctx, outs)
	}}
}

// scalar plans an operation whose result takes no tensor memory.
func scalar(run func(ctx context.Context) (any, error)) *Planned {
	return &Planned{run: func(ctx context.Context, _ []*Tensor) (any, error) { return run(ctx) }}
}

// Run checks the arguments, takes memory for the results and fills it. Memory that
// alloc gave stays the caller's to free, also when Run fails.
func (o *Op) Run(ctx context.Context, args Args, alloc Allocator) (any, error) {
	p, err := o.Plan(args)
	if err != nil {
		return nil, err
	}
	return p.Run(ctx, alloc)
}

// OutputBytes is what Run will ask of its allocator, from the arguments' types and
// shapes: their Data may be nil. It is false where that does not suffice, or where
// the arguments are wrong: Run tells why.
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

// Signature is the call as one would write it, with defaults.
func (o *Op) Signature() string {
	var parts []string
	variadic := o.Variadic
	for i, p := range o.Params {
		if variadic != "" && i == o.positional() {
			parts, variadic = append(parts, "*"+variadic), ""
		}
		switch {
		case p.Required:
			parts = append(parts, p.Name)
		case p.Default == nil:
			parts = append(parts, p.Name+"=null")
		default:
			parts = append(parts, fmt.Sprintf("%s=%v", p.Name, p.Default))
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

// Registry finds operations by name. It never changes once made.
type Registry struct {
	ops map[string]*Op
}

// NewRegistry holds every operation that any device has, and those that only this
// one has.
func NewRegistry(own ...*Op) *Registry {
	r := &Registry{ops: map[string]*Op{}}
	for _, group := range [][]*Op{
		own, createOps(), randomOps(), mapOps(), reduceOps(), matmulOps(), shapeOps(), castOps(), linalgOps(), coreOps(), benchOps(),
	} {
		for _, op := range group {
			if r.ops[op.Name] != nil {
				panic("ops: two operations are named " + op.Name)
			}
			r.ops[op.Name] = op
		}
	}
	return r
}

// Lookup finds an operation. The error for an unknown one names those that
// resemble it.
func (r *Registry) Lookup(name string) (*Op, error) {
	if op, ok := r.ops[name]; ok {
		return op, nil
	}
	return nil, &Error{Kind: UnknownOp, Op: name, Reason: "no such operation" + suggest(name, r.Names())}
}

// Names are those of all operations, sorted.
func (r *Registry) Names() []string { return slices.Sorted(maps.Keys(r.ops)) }
