package ops

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// Work says what a planned call computes, for a device that carries it out with
// kernels of its own. Its tensors may lie in Far memory, and outputs are
// C-contiguous. Each kind computes to the bit, or within the tolerance of its
// operation, what Op.Run does on the host.
type Work interface{ isWork() }

// The kinds of work.
type (
	// Copying makes output i of the elements of Views[i] in C order. Shapes may
	// differ, the numbers of elements do not.
	Copying struct{ Views []*Tensor }
	// Filling makes all elements the same value.
	Filling struct{ Value any }
	// Counting makes element i of first + T(i)*step, where Head gives the first two
	// elements and all is in the type of the elements, each step rounded; complex
	// ones count along the real axis.
	Counting struct{ Head func() (*Tensor, error) }
	// Drawing makes random numbers, as array.random describes them, of Words words
	// from FirstWord on: one for each real component of the output.
	Drawing struct {
		Distribution string
		Seed         int64
		FirstWord    uint64
		Words        int64
		Low, High    float64 // of uniform
		Loc, Scale   float64 // of normal
		First        int64   // of integers: First + floor(word*Span/2^64)
		Span         uint64
	}
	// Scattering fills with the bytes of the words of the stream.
	Scattering struct{ Seed int64 }
	// Pointing is a task of Task Bench; see bench.point.
	Pointing struct {
		Step, Point, Iterations int64
		From                    []int64
		Inputs                  []*Tensor
	}
	// Mapping evaluates an expression over inputs, which broadcast to the output; an
	// input that is nil was a scalar and is a constant of the program.
	Mapping struct {
		Inputs []*Tensor
		// Negative is the error for a negative power of integers.
		Negative func() error
		program  *program
	}
	// Reducing folds X along the axes marked. The accumulator is the type that the
	// elements are converted to first, by way of Bool if they are counted.
	Reducing struct {
		X           *Tensor
		Folded      []bool
		Function    string // sum, prod, min, max, mean, any, all or count
		Accumulator DType
		Rows        int64 // how many elements each output folds
	}
	// Joining concatenates along an axis and converts to the type of the output.
	Joining struct {
		Xs   []*Tensor
		Axis int
	}
	// Multiplying is a product of matrices: the last two axes of A and B, which are
	// Rows by Inner and Inner by Columns, at each index of Batch, to which the axes
	// before the last two broadcast. Operands are to be converted to the type of the
	// output.
	Multiplying struct {
		A, B                 *Tensor
		Batch                []int64
		Rows, Inner, Columns int64
		TF32                 bool
	}
	// FactoringQR and FactoringSVD factor a matrix in the type of the outputs.
	FactoringQR  struct{ X *Tensor }
	FactoringSVD struct{ X *Tensor }
)

func (*Copying) isWork()      {}
func (*Filling) isWork()      {}
func (*Counting) isWork()     {}
func (*Drawing) isWork()      {}
func (*Scattering) isWork()   {}
func (*Pointing) isWork()     {}
func (*Mapping) isWork()      {}
func (*Reducing) isWork()     {}
func (*Joining) isWork()      {}
func (*Multiplying) isWork()  {}
func (*FactoringQR) isWork()  {}
func (*FactoringSVD) isWork() {}

// castFunction is what programs call a conversion.
const castFunction = "cast"

// Program is an expression as instructions over typed registers. The first
// Inputs registers are the inputs; one with a Value is a constant.
type Program struct {
	Inputs    int
	Registers []Register
	Code      []Instruction
	Out       int
}

// Register is a value of a program.
type Register struct {
	DType DType
	Value any // of a constant: bool, int64, float64 or complex128; else nil
}

// Instruction computes one register from others.
type Instruction struct {
	// Function is an operator or a function of expressions, or "copy", "cast",
	// "neg" or "where".
	Function string
	// Operand is the type that the operands have, of a choice the last two.
	Operand  DType
	To       int
	Operands []int
}

// Program is what to evaluate. It is never changed, and mostly the same for calls whose expressions, types and scalars are.
func (m *Mapping) Program() *Program { return &m.program.told }

// Convert is the work of copying x in another type.
func Convert(to DType, x *Tensor) *Mapping { return castWork(to, x) }

func castWork(to DType, x *Tensor) *Mapping {
	return &Mapping{Inputs: []*Tensor{x}, program: identityProgram(to, x.DType)}
}

// Scalar is a tensor without axes that holds a value: a bool, int64, float64 or
// complex128 that the type can hold.
func Scalar(dtype DType, value any) (*Tensor, error) {
	t, err := NewTensor(dtype, nil)
	if err != nil {
		return nil, err
	}
	return t, putScalar(t, value)
}

// Output is memory that a call needs for its result.
type Output struct {
	DType DType
	Shape []int64
}

// Bytes is its size.
func (o Output) Bytes() int64 {
	t := Tensor{DType: o.DType, Shape: o.Shape}
	return t.Bytes()
}

// Planned is a call whose arguments were checked.
type Planned struct {
	Outputs []Output
	// Work is nil for what only the host can do, or any machine: then Op.Run must.
	Work Work
	// Result builds the result around outputs. It is nil where Work is.
	Result func(outs []*Tensor) any

	op *Op
	// run fills the outputs and builds the result; outs are in the order of Outputs,
	// C-contiguous and not zeroed. runSingle is for one output, which is the result.
	run       func(ctx context.Context, outs []*Tensor) (any, error)
	runSingle func(ctx context.Context, out *Tensor) error
	one       [1]Output // has Outputs where there is one
}

// Plan checks the arguments of a call without running it. Their tensors may lie
// in Far memory.
func (o *Op) Plan(args Args) (p *Planned, err error) {
	defer recovered(o.Name, &err)
	c, err := o.bind(args, true)
	if err != nil {
		return nil, err
	}
	p, err = o.plan(c)
	if err != nil {
		return nil, err
	}
	for _, want := range p.Outputs {
		if _, err := countElements(want.Shape); err != nil {
			return nil, c.bad("", "%v", err)
		}
	}
	p.op = o
	return p, nil
}

// OutputBytes is what Run will ask of its allocator; false where that is more than
// any memory.
func (p *Planned) OutputBytes() (total int64, ok bool) {
	for _, out := range p.Outputs {
		n, err := countElements(out.Shape)
		if err != nil || n > (1<<62-total)/out.DType.Size() {
			return 0, false
		}
		total += n * out.DType.Size()
	}
	return total, true
}

// Run carries the call out on the processor: it takes memory for the results and
// fills it. Memory that alloc gave stays the caller's to free, also when Run fails.
// REQUIRES: no tensor among the arguments is Far, or the operation is Blind.
func (p *Planned) Run(ctx context.Context, alloc Allocator) (result any, err error) {
	defer recovered(p.op.Name, &err)
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("%s: %w", p.op.Name, err)
	}
	outs := make([]*Tensor, len(p.Outputs))
	for i, want := range p.Outputs {
		t, err := alloc(want.DType, want.Shape)
		if err != nil {
			return nil, fmt.Errorf("%s: output of %v, shape %v: %w", p.op.Name, want.DType, want.Shape, err)
		}
		if err := t.Check(); err != nil || t.DType != want.DType || !slices.Equal(t.Shape, want.Shape) || !t.Contiguous() {
			panic(fmt.Sprintf("ops: allocator returned %v for %v of shape %v: %v", describe(t), want.DType, want.Shape, err))
		}
		outs[i] = t
	}
	result, err = p.fill(ctx, outs)
	if err != nil {
		if ours := (*Error)(nil); errors.As(err, &ours) {
			return nil, err
		}
		return nil, fmt.Errorf("%s: %w", p.op.Name, err)
	}
	return result, nil
}

func (p *Planned) fill(ctx context.Context, outs []*Tensor) (any, error) {
	if p.runSingle != nil {
		return outs[0], p.runSingle(ctx, outs[0])
	}
	return p.run(ctx, outs)
}

// Failure is an error of an operation that ran and could not finish.
func Failure(op, format string, values ...any) error {
	return &Error{Kind: Failed, Op: op, Reason: fmt.Sprintf(format, values...)}
}
