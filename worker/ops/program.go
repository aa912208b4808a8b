package ops

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"math/cmplx"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/millrace/millrace/worker/ops/simd"
)

// program is an expression that is compiled for inputs of known types. Each register holds one
// block. The first registers are the inputs; constants and temporaries follow.
type program struct {
	code      []instruction
	inputs    int
	registers []register
	out       int // the register of the result; always written by the last instruction
	// steps are the instructions as kernels of package simd. They are nil if one of them does not
	// exist there.
	steps []simd.Step
	// exact: the kernels of package simd return the bits that the Go kernels return.
	exact bool
	// exported is the same program in the exported form, for devices.
	exported Program
}

type register struct {
	dtype DType
	value any // of a constant; otherwise nil
}

type instruction struct {
	run       kernel
	vector    simd.Kernel // the same function in package simd; it may not exist
	function  string      // the name of run in kernelFor, or castFunction
	work      DType       // the type of the operands; for where, the type of the last two
	registers [4]int      // destination, then operands
	operands  int         // number of operands
}

// rule returns, for operands of type d, the type that a function computes in and the type of its
// result.
type rule func(d DType) (work, out DType)

func ruleOf(op string) rule {
	switch op {
	case "==", "!=", "<", "<=", ">", ">=", "isnan", "isinf", "isfinite":
		return func(d DType) (DType, DType) { return d, Bool }
	case "//", "%", "**", "square":
		return func(d DType) (DType, DType) { // NumPy uses int8
			if d == Bool {
				d = Uint8
			}
			return d, d
		}
	case "/":
		return func(d DType) (DType, DType) {
			if d.kind() < floatKind {
				d = Float64
			}
			return d, d
		}
	case "abs", "real", "imag":
		return func(d DType) (DType, DType) { return d, d.realPart() }
	case "angle":
		return func(d DType) (DType, DType) { return d.inexact(), d.inexact().realPart() }
	case "+", "-", "*", "neg", "~", "&", "|", "^", "minimum", "maximum", "sign", "reciprocal",
		"conj", "floor", "ceil", "trunc", "round", "where":
		return func(d DType) (DType, DType) { return d, d }
	}
	return func(d DType) (DType, DType) { return d.inexact(), d.inexact() }
}

// compiled is a value during compilation.
type compiled struct {
	operand
	register int // -1 for a constant that no instruction has needed yet
	value    any // of a constant
}

type compiler struct {
	program
	names  []string
	inputs []compiled
	free   []int // temporaries whose value is not needed any more
}

func isScalar(c compiled) bool { return c.register < 0 }

// compile checks an expression against the inputs and allocates its registers. An input with a
// value is a scalar and becomes a constant. want is the type of the result; Invalid means the type
// that the expression has.
func compile(root *node, names []string, inputs []compiled, want DType) (*program, error) {
	c := &compiler{names: names, inputs: inputs}
	c.program.inputs = len(inputs)
	for i, in := range inputs {
		c.registers = append(c.registers, register{dtype: in.dtype})
		if in.value == nil {
			c.inputs[i].register = i
		}
	}
	result, err := c.value(root)
	if err != nil {
		return nil, err
	}
	if want == Invalid {
		want = result.dtype
	}
	reg, err := c.coerce(result, want)
	if err != nil {
		return nil, &syntaxError{root.at, err.Error()}
	}
	if n := len(c.code); n == 0 || c.code[n-1].registers[0] != reg {
		reg = c.emit("copy", want, want, reg)
	}
	c.out = reg
	return c.export(), nil
}

// export sets exported, steps and exact. It is called when the program is complete otherwise.
func (p *program) export() *program {
	p.exact = true
	for _, in := range p.code {
		p.exact = p.exact && (in.vector.Exact || !in.vector.Exists())
	}
	if !slices.ContainsFunc(p.code, func(in instruction) bool { return !in.vector.Exists() }) {
		for _, in := range p.code {
			p.steps = append(p.steps, in.vector.Step(in.registers))
		}
	}
	p.exported = Program{Inputs: p.inputs, Out: p.out}
	for _, r := range p.registers {
		p.exported.Registers = append(p.exported.Registers, Register{r.dtype, r.value})
	}
	for _, in := range p.code {
		p.exported.Code = append(p.exported.Code, Instruction{in.function, in.work, in.registers[0], slices.Clone(in.registers[1 : 1+in.operands])})
	}
	return p
}

// identities caches the programs of identityProgram.
var identities [Complex128 + 1][Complex128 + 1]atomic.Pointer[program]

// identityProgram returns the program that only converts its single input.
func identityProgram(to, from DType) *program {
	at := &identities[to][from]
	if p := at.Load(); p != nil {
		return p
	}
	p := &program{
		inputs:    1,
		registers: []register{{dtype: from}, {dtype: to}},
		code: []instruction{{
			run: castKernel(to, from), vector: vectorKernel(castFunction, from, to), function: castFunction, work: from,
			registers: [4]int{1, 0}, operands: 1,
		}},
		out: 1,
	}
	at.CompareAndSwap(nil, p.export())
	return at.Load()
}

// vectorKernel returns the kernel of package simd for a function, which may not exist.
func vectorKernel(function string, work, to DType) simd.Kernel {
	if function != castFunction {
		to = Invalid
	} else if work == to {
		function, to = "copy", Invalid
	}
	return simd.Best().Kernel(function, simd.Type(work), simd.Type(to))
}

// emit appends an instruction and returns its destination, which is never one of its operands:
// their registers are freed only afterwards.
func (c *compiler) emit(function string, work, dtype DType, operands ...int) int {
	to := len(c.registers)
	if i := slices.IndexFunc(c.free, func(r int) bool { return c.registers[r].dtype == dtype }); i >= 0 {
		to = c.free[i]
		c.free = slices.Delete(c.free, i, i+1)
	} else {
		c.registers = append(c.registers, register{dtype: dtype})
	}
	run := kernel(nil)
	if function == castFunction {
		run = castKernel(dtype, work)
	} else {
		run = kernelFor(function, work)
	}
	in := instruction{run: run, vector: vectorKernel(function, work, dtype), function: function, work: work, registers: [4]int{to}, operands: len(operands)}
	copy(in.registers[1:], operands)
	c.code = append(c.code, in)
	for i, r := range operands {
		if r >= c.program.inputs && c.registers[r].value == nil && !slices.Contains(operands[:i], r) {
			c.free = append(c.free, r)
		}
	}
	return to
}

// coerce returns a register that holds v as a value of type dtype.
func (c *compiler) coerce(v compiled, dtype DType) (int, error) {
	if isScalar(v) {
		if n, ok := v.value.(int64); ok && !fits(n, dtype) {
			return 0, fmt.Errorf("%d is outside the range of %v", n, dtype)
		}
		for i, r := range c.registers {
			if r.dtype == dtype && r.value != nil && sameBits(r.value, v.value) {
				return i, nil
			}
		}
		c.registers = append(c.registers, register{dtype, v.value})
		return len(c.registers) - 1, nil
	}
	if v.dtype == dtype {
		return v.register, nil
	}
	return c.emit(castFunction, v.dtype, dtype, v.register), nil
}

func fits(n int64, d DType) bool {
	switch d {
	case Uint8:
		return n == int64(uint8(n))
	case Int32:
		return n == int64(int32(n))
	}
	return true
}

// sameBits distinguishes constants that compare equal, such as 0.0 and -0.0.
func sameBits(a, b any) bool { return fmt.Sprintf("%T %v", a, a) == fmt.Sprintf("%T %v", b, b) }

func (c *compiler) value(n *node) (compiled, error) {
	switch n.op {
	case "":
		return constant(n.value), nil
	case "name":
		i := slices.Index(c.names, n.name)
		if i < 0 {
			hint := suggest(n.name, slices.Sorted(maps.Keys(constants)))
			if near := suggest(n.name, c.names); near != "" {
				hint = near
			} else if len(c.names) > 0 {
				hint = ": the inputs are " + strings.Join(c.names, ", ")
			}
			return compiled{}, &syntaxError{n.at, fmt.Sprintf("unknown name %s%s", n.name, hint)}
		}
		return c.inputs[i], nil
	}
	args := make([]compiled, len(n.args))
	for i, a := range n.args {
		var err error
		if args[i], err = c.value(a); err != nil {
			return compiled{}, err
		}
	}
	if folded, ok, err := fold(n.op, args); err != nil {
		return compiled{}, &syntaxError{n.at, err.Error()}
	} else if ok {
		return folded, nil
	}
	result, err := c.apply(n.op, args)
	if err != nil {
		return compiled{}, &syntaxError{n.at, err.Error()}
	}
	return result, nil
}

func constant(value any) compiled {
	d, _ := leafDType(value)
	return compiled{operand{d, d != Bool}, -1, value}
}

func (c *compiler) apply(op string, args []compiled) (compiled, error) {
	var operands []int
	joined := args
	if op == "where" {
		condition, err := c.coerce(args[0], Bool)
		if err != nil {
			return compiled{}, err
		}
		operands, joined = append(operands, condition), args[1:]
	}
	types := make([]operand, len(joined))
	for i, a := range joined {
		types[i] = a.operand
	}
	common := promoteOperands(types...).dtype
	work, out := ruleOf(op)(common)
	if out == Bool && slices.ContainsFunc(joined, func(a compiled) bool {
		n, ok := a.value.(int64)
		return ok && !fits(n, work)
	}) {
		work = Int64 // a comparison with a number outside of the type's range has a result, too
	}
	function := special(op, work, joined)
	if function != "" {
		joined = joined[:1]
	} else {
		function = op
	}
	if kernelFor(function, work) == nil {
		return compiled{}, fmt.Errorf("%s is not defined for %v", display(op), common)
	}
	for _, a := range joined {
		r, err := c.coerce(a, work)
		if err != nil {
			return compiled{}, err
		}
		operands = append(operands, r)
	}
	return compiled{operand{out, false}, c.emit(function, work, out, operands...), nil}, nil
}

func display(op string) string {
	if op == "neg" {
		return "unary -"
	}
	return op
}

// special returns the function for a power whose constant exponent allows a cheaper and more exact
// computation, otherwise "". NumPy uses the same special cases.
func special(op string, work DType, args []compiled) string {
	if op != "**" || !isScalar(args[1]) {
		return ""
	}
	inexact := work.kind() >= floatKind
	switch v := args[1].value; {
	case v == int64(2) || v == 2.0:
		return "square"
	case v == int64(1) || v == 1.0:
		return "copy"
	case v == 0.5 && inexact:
		return "sqrt"
	case (v == int64(-1) || v == -1.0) && inexact:
		return "reciprocal"
	}
	return ""
}

// fold computes arithmetic between constants as Python does. The result is weak, so that (1/2)*x
// has the type of x.
func fold(op string, args []compiled) (compiled, bool, error) {
	arithmetic := slices.Contains([]string{"+", "-", "*", "/", "//", "%", "**", "neg"}, op)
	if !arithmetic || slices.ContainsFunc(args, func(a compiled) bool { return !isScalar(a) || a.dtype == Bool }) {
		return compiled{}, false, nil
	}
	d := Invalid
	for _, a := range args {
		d = Promote(d, a.dtype)
	}
	values := make([]complex128, len(args))
	for i, a := range args {
		switch v := a.value.(type) {
		case int64:
			values[i] = complex(float64(v), 0)
		case float64:
			values[i] = complex(v, 0)
		case complex128:
			values[i] = v
		}
	}
	if len(args) == 1 {
		switch v := args[0].value.(type) {
		case int64:
			return constant(-v), true, nil
		case float64:
			return constant(-v), true, nil
		default:
			return constant(-values[0]), true, nil
		}
	}
	a, b := values[0], values[1]
	if b == 0 && (op == "/" || op == "//" || op == "%") {
		return compiled{}, false, errors.New("constant division by zero")
	}
	if d == Int64 {
		x, y := args[0].value.(int64), args[1].value.(int64)
		if v, ok := foldInts(op, x, y); ok {
			return constant(v), true, nil
		}
		if op != "/" && (op != "**" || y >= 0) {
			return compiled{}, false, fmt.Errorf("%d %s %d is larger than an int64: write it with floats", x, op, y)
		}
		d = Float64
	}
	if d == Float64 && op == "**" && real(a) < 0 && real(b) != math.Trunc(real(b)) {
		d = Complex128
	}
	if d == Complex128 {
		switch op {
		case "+":
			return constant(a + b), true, nil
		case "-":
			return constant(a - b), true, nil
		case "*":
			return constant(a * b), true, nil
		case "/":
			return constant(complexDivide(a, b)), true, nil
		case "**":
			return constant(cmplx.Pow(a, b)), true, nil
		}
		return compiled{}, false, fmt.Errorf("%s is not defined for complex128", op)
	}
	x, y := real(a), real(b)
	quotient, rest := divmod(x, y)
	return constant(map[string]float64{
		"+": x + y, "-": x - y, "*": x * y, "/": x / y, "//": quotient, "%": rest, "**": math.Pow(x, y),
	}[op]), true, nil
}

// foldInts returns false if the result is not an int64.
func foldInts(op string, x, y int64) (int64, bool) {
	switch op {
	case "+":
		return x + y, (x+y > x) == (y > 0)
	case "-":
		return x - y, (x-y < x) == (y > 0)
	case "*":
		if x == 0 || y == 0 {
			return 0, true
		}
		overflows := x == math.MinInt64 && y == -1 || y == math.MinInt64 && x == -1
		return x * y, !overflows && x*y/y == x
	case "//":
		return floorDivide(x, y), x != math.MinInt64 || y != -1
	case "%":
		return modulo(x, y), true
	case "**":
		exact := math.Pow(float64(x), float64(y))
		return power(x, y), y >= 0 && math.Abs(exact) < 1<<63
	}
	return 0, false
}
