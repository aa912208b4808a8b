package ops

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// Work describes the computation of a planned call, for a device that executes it with kernels of
// its own. Its tensors may lie in Far memory, and outputs are C-contiguous. The results equal those
// of Op.Run on the host, to the bit or within the tolerance of the operation.
type Work interface{ isWork() }

// The kinds of work.
type (
	// Copying copies the elements of Views[i] in C order to output i. The shapes may differ, the
	// numbers of elements do not.
	Copying struct{ Views []*Tensor }
	// Filling sets all elements to the same value.
	Filling struct{ Value any }
	// Counting sets element i to first + T(i)*step. Head returns the first two elements. The
	// computation is in the type of the elements, and each step is rounded. Complex numbers count
	// along the real axis.
	Counting struct{ Head func() (*Tensor, error) }
	// Drawing fills the output with random numbers, as array.random describes them. It uses Words
	// words of the stream, from FirstWord on: one for each real component of the output.
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
	// Scattering fills the output with the bytes of the words of the stream.
	Scattering struct{ Seed int64 }
	// Pointing is a task of Task Bench; see bench.point.
	Pointing struct {
		Step, Point, Iterations int64
		From                    []int64
		Inputs                  []*Tensor
	}
	// Mapping evaluates an expression over inputs, which broadcast to the output. A nil input
	// stands for a scalar, which is a constant of the program.
	Mapping struct {
		Inputs []*Tensor
		// Negative returns the error for a negative power of integers.
		Negative func() error
		program  *program
	}
	// Reducing folds X along the marked axes. Accumulator is the type that the elements are
	// converted to first; for count they are converted to Bool before that.
	Reducing struct {
		X           *Tensor
		Folded      []bool
		Function    string // sum, prod, min, max, mean, any, all or count
		Accumulator DType
		Rows        int64 // number of elements that each output folds
	}
	// Accumulating sums X up to each element along Axis, or in C order if Axis is -1: then the
	// output has one axis. Accumulator is the type that the elements are converted to first, and
	// the type of the output.
	Accumulating struct {
		X           *Tensor
		Axis        int
		Accumulator DType
	}
	// Joining concatenates tensors along an axis and converts them to the type of the output.
	Joining struct {
		Xs   []*Tensor
		Axis int
	}
	// Multiplying is a product of matrices: the last two axes of A and B, which are Rows by Inner
	// and Inner by Columns, at each index of Batch. The axes before the last two broadcast to
	// Batch. Operands are converted to the type of the output.
	Multiplying struct {
		A, B                 *Tensor
		Batch                []int64
		Rows, Inner, Columns int64
		TF32                 bool
	}
	// FactoringCholesky factors each matrix of the last two axes of X, in the type of the output,
	// into a lower triangular matrix, the output, and its conjugate transpose. Only the lower
	// triangles of X are read. NotPositive is the error for a matrix that has no such factor.
	FactoringCholesky struct{ X *Tensor }
	// Solving solves the equations A x = B for the matrices of the last two axes of A and B, which
	// are Rows by Rows and Rows by Columns, at each index of Batch. The axes before the last two
	// broadcast to Batch. Operands are converted to the type of the output. The output is Rows by
	// Columns at each index of Batch; its shape lacks the last axis if the argument was a vector.
	// Singular is the error for a matrix without an inverse.
	Solving struct {
		A, B          *Tensor
		Batch         []int64
		Rows, Columns int64
	}
	// Contracting carries out Steps one after the other. Its registers are numbered: first the
	// Operands, then the results of the steps. Results are C-contiguous; that of the last step is
	// the output of the call, and the others are working memory.
	Contracting struct {
		Operands []*Tensor
		Steps    []Step
	}
	// FactoringQR factors a matrix into q and r, in the type of the outputs. With OnlyR, r is the
	// only output.
	FactoringQR struct {
		X     *Tensor
		OnlyR bool
	}
	// FactoringSVD factors a matrix into u, s and vt, in the type of the outputs. With OnlyValues,
	// s is the only output.
	FactoringSVD struct {
		X          *Tensor
		OnlyValues bool
	}
	// Sorting sorts the elements of X along Axis. The order is that of array.sort: total, so that
	// the result does not depend on the method.
	Sorting struct {
		X          *Tensor
		Axis       int // -1: all elements, in C order
		Descending bool
	}
	// Distinct finds the distinct elements of X, as array.unique describes them. The outputs are
	// the values, then the inverse and the counts if they are wanted. The call is Late: the values
	// and the counts have at most as many elements as X.
	Distinct struct {
		X               *Tensor
		Inverse, Counts bool
	}
	// Taking copies the elements of X at Indices along Axis. The shape of the output is that of X
	// with the axis replaced by the axes of Indices.
	Taking struct {
		X       *Tensor
		Indices *Tensor // integers; a negative one counts from the end of the axis
		Axis    int     // -1: Indices select among all elements of X, in C order
		// Outside returns the error for an index that is out of the axis. Position is that of the
		// index in Indices, counted in C order. The error is that of the first such position.
		Outside func(position, index int64) error
	}
	// Transforming computes discrete Fourier transforms of X, in the precision of the output.
	Transforming struct {
		X *Tensor
		// Kind is fft, ifft, rfft or irfft. rfft and irfft are those along the last of Axes; along
		// the others they are fft and ifft.
		Kind string
		Axes []int // each once
		// Lengths are the lengths of the transforms along Axes: X is cut or padded with zeros. Of
		// irfft, the last one is that of the output.
		Lengths []int64
		Scale   float64 // the factor of all results
	}
)

// Step is one step of a contraction.
type Step struct {
	Output Output
	// Inputs are the numbers of the registers that the step reads.
	Inputs []int
	// Work returns the work of the step: Copying, Mapping, Reducing or Multiplying. It gets the
	// registers by their numbers; those that the step does not read may be nil.
	Work func(registers []*Tensor) Work
}

func (*Copying) isWork()           {}
func (*Filling) isWork()           {}
func (*Counting) isWork()          {}
func (*Drawing) isWork()           {}
func (*Scattering) isWork()        {}
func (*Pointing) isWork()          {}
func (*Mapping) isWork()           {}
func (*Reducing) isWork()          {}
func (*Accumulating) isWork()      {}
func (*Joining) isWork()           {}
func (*Multiplying) isWork()       {}
func (*Sorting) isWork()           {}
func (*Distinct) isWork()          {}
func (*Taking) isWork()            {}
func (*Transforming) isWork()      {}
func (*FactoringQR) isWork()       {}
func (*FactoringSVD) isWork()      {}
func (*FactoringCholesky) isWork() {}
func (*Solving) isWork()           {}
func (*Contracting) isWork()       {}

// castFunction is the name of a conversion in programs.
const castFunction = "cast"

// Program is an expression in the form of instructions over typed registers. The first Inputs
// registers are the inputs; a register with a Value is a constant.
type Program struct {
	Inputs    int
	Registers []Register
	Code      []Instruction
	Out       int
}

// Register is a value of a program.
type Register struct {
	DType DType
	Value any // of a constant: bool, int64, float64 or complex128; otherwise nil
}

// Instruction computes one register from others.
type Instruction struct {
	// Function is an operator or a function of expressions, or "copy", "cast", "neg" or "where".
	Function string
	// Operand is the type of the operands; for where, that of the last two.
	Operand  DType
	To       int
	Operands []int
}

// Program returns the program to evaluate. It is never changed. Calls with the same expression,
// types and scalars mostly have the same program.
func (m *Mapping) Program() *Program { return &m.program.exported }

// Convert returns the work of copying x to another type.
func Convert(to DType, x *Tensor) *Mapping { return castWork(to, x) }

func castWork(to DType, x *Tensor) *Mapping {
	return &Mapping{Inputs: []*Tensor{x}, program: identityProgram(to, x.DType)}
}

// Scalar returns a tensor without axes that holds a value: a bool, int64, float64 or complex128
// that the type can hold.
func Scalar(dtype DType, value any) (*Tensor, error) {
	t, err := NewTensor(dtype, nil)
	if err != nil {
		return nil, err
	}
	return t, putScalar(t, value)
}

// Output is the type and shape of an output of a call.
type Output struct {
	DType DType
	Shape []int64
}

// Bytes returns the size of the output.
func (o Output) Bytes() int64 {
	t := Tensor{DType: o.DType, Shape: o.Shape}
	return t.Bytes()
}

// Planned is a call whose arguments were checked.
type Planned struct {
	// Outputs are empty if the call is Late.
	Outputs []Output
	// Late calls know the shapes of their outputs only when they have read the data. A device that
	// executes the Work of a Late call allocates the outputs itself.
	Late bool
	// Work is nil for calls without kernels: calls that only the host can execute, or that need no
	// device at all. Such a call is executed by Run, or by Op.Run.
	Work Work
	// Result builds the result around the outputs. It is nil for calls whose result needs no tensor
	// memory.
	Result func(outs []*Tensor) any

	op *Op
	// run fills the outputs and builds the result. outs are in the order of Outputs, C-contiguous
	// and not zeroed. runSingle is used instead if there is one output that is the result.
	run       func(ctx context.Context, outs []*Tensor) (any, error)
	runSingle func(ctx context.Context, out *Tensor) error
	// runLate is used instead if the call is Late. It allocates the outputs itself.
	runLate func(ctx context.Context, alloc Allocator) (outs []*Tensor, err error)
	// runWhole is used instead of runLate and Result if only the run knows the result.
	runWhole func(ctx context.Context, alloc Allocator) (any, error)
	one      [1]Output // backs Outputs if there is only one
}

// Plan checks the arguments of a call without running it. Their tensors may lie in Far memory.
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

// OutputBytes returns how many bytes Run will request from its allocator; false if that is more
// than any memory, or not known because the call is Late.
func (p *Planned) OutputBytes() (total int64, ok bool) {
	if p.Late {
		return 0, false
	}
	for _, out := range p.Outputs {
		n, err := countElements(out.Shape)
		if err != nil || n > (1<<62-total)/out.DType.Size() {
			return 0, false
		}
		total += n * out.DType.Size()
	}
	return total, true
}

// Run executes the call on the CPU: it allocates memory for the results and computes them. The
// caller must free the memory that alloc returned, also if Run fails.
// REQUIRES: no tensor among the arguments is Far, or the operation has ReadsNoData.
func (p *Planned) Run(ctx context.Context, alloc Allocator) (result any, err error) {
	defer recovered(p.op.Name, &err)
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("%s: %w", p.op.Name, err)
	}
	result, err = p.compute(ctx, alloc)
	if err != nil {
		if ours := (*Error)(nil); errors.As(err, &ours) {
			return nil, err
		}
		return nil, fmt.Errorf("%s: %w", p.op.Name, err)
	}
	return result, nil
}

func (p *Planned) compute(ctx context.Context, alloc Allocator) (any, error) {
	if p.runWhole != nil {
		return p.runWhole(ctx, alloc)
	}
	if p.Late {
		outs, err := p.runLate(ctx, alloc)
		if err != nil {
			return nil, err
		}
		return p.Result(outs), nil
	}
	outs := make([]*Tensor, len(p.Outputs))
	for i, want := range p.Outputs {
		var err error
		if outs[i], err = allocate(alloc, want.DType, want.Shape); err != nil {
			return nil, err
		}
	}
	if p.runSingle != nil {
		return outs[0], p.runSingle(ctx, outs[0])
	}
	return p.run(ctx, outs)
}

// allocate calls alloc and checks that its tensor is as Allocator says.
func allocate(alloc Allocator, dtype DType, shape []int64) (*Tensor, error) {
	t, err := alloc(dtype, shape)
	if err != nil {
		return nil, fmt.Errorf("output of %v, shape %v: %w", dtype, shape, err)
	}
	if err := t.Check(); err != nil || t.DType != dtype || !slices.Equal(t.Shape, shape) || !t.Contiguous() {
		panic(fmt.Sprintf("ops: allocator returned %v for %v of shape %v: %v", describe(t), dtype, shape, err))
	}
	return t, nil
}

// Failure returns the error of an operation that ran and could not finish.
func Failure(op, format string, values ...any) error {
	return &Error{Kind: Failed, Op: op, Reason: fmt.Sprintf(format, values...)}
}
