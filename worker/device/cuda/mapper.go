package cuda

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	gpu "github.com/millrace/millrace/memory/cuda"

	"github.com/millrace/millrace/worker/ops"
)

// layout says how a generated kernel accesses one of its tensors.
type layout uint8

const (
	// together: contiguous in C order, and aligned for loads of several elements.
	together layout = iota
	// single: one element that is used for all outputs.
	single
	// strided: accessed by strides, one for each joined axis.
	strided
)

// maxParameters is the largest total size of a kernel's parameters in bytes.
const maxParameters = 4096

// mapper is a fused kernel together with the way to launch it. Operand 0 is the output.
type mapper struct {
	program *ops.Program
	// has says which operands are tensors.
	has      []bool
	shape    []int64
	strides  [][]int64
	layouts  []layout
	perPack  int64 // elements that a thread loads at once
	constant [][]byte
	// The parameters of a launch are head, then the values that depend on the call (addresses),
	// then tail.
	head   uint64
	tail   []byte
	kernel *gpu.Function
	n      int64
}

// mapping is a mapper with the operands of one call.
type mapping struct {
	*mapper
	operands []*ops.Tensor
	negative func() error
	few      [5]*ops.Tensor // backs operands if there are at most 5
}

// mapFunctions maps the operators of expressions to function names of prelude.cuh, without the
// prefix f_. The other functions have the same name there.
var mapFunctions = map[string]string{
	"+": "add", "-": "sub", "*": "mul", "/": "div", "//": "floordiv", "%": "mod", "**": "pow",
	"==": "eq", "!=": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge", "&": "and", "|": "or", "^": "xor", "~": "not",
}

// boolFunctions has the functions that differ if the operands are bool.
var boolFunctions = map[string]string{"+": "or", "maximum": "or", "*": "and", "minimum": "and", "~": "lnot"}

func isInteger(d ops.DType) bool {
	return d == ops.Bool || d == ops.Uint8 || d == ops.Int32 || d == ops.Int64
}

// statement returns the C++ statement for an instruction.
func statement(p *ops.Program, in ops.Instruction) string {
	operands := make([]string, len(in.Operands))
	for i, r := range in.Operands {
		operands[i] = fmt.Sprintf("r%d", r)
	}
	list := strings.Join(operands, ", ")
	to := p.Registers[in.To].DType
	switch {
	case in.Function == "cast" && to == ops.Bool:
		return fmt.Sprintf("r%d = truth(%s);", in.To, list)
	case in.Function == "cast":
		return fmt.Sprintf("r%d = cast<%s>(%s);", in.To, cType(to.String()), list)
	case in.Function == "**" && isInteger(in.Operand):
		return fmt.Sprintf("r%d = f_ipow(%s, a.negative);", in.To, list)
	}
	name := in.Function
	if mapped, ok := mapFunctions[name]; ok {
		name = mapped
	}
	if mapped, ok := boolFunctions[in.Function]; ok && in.Operand == ops.Bool {
		name = mapped
	}
	return fmt.Sprintf("r%d = f_%s(%s);", in.To, name, list)
}

// planMap finds the kernel that computes out. out may have any strides.
func (d *Device) planMap(w *ops.Mapping, out *ops.Tensor) (*mapping, error) {
	m := &mapping{negative: w.Negative}
	m.operands = append(append(m.few[:0], out), w.Inputs...)
	p := w.Program()
	var room keyRoom
	var err error
	m.mapper, err = d.mappers.get(mapKey(room[:0], p, m.operands), func() (*mapper, error) {
		made, err := mapperOf(p, m.operands)
		if err != nil {
			return nil, err
		}
		made.kernel, err = d.code.kernel("map.cu", made.signature(), "map", func() string { return kernelText("prelude.cuh") + made.source() })
		return made, err
	})
	return m, err
}

// mapKey appends all that the decision of mapperOf depends on. The address stands for the program.
// NB: no other program can get this address while the mapper is kept, because the mapper refers to
// its program.
func mapKey(key []byte, p *ops.Program, operands []*ops.Tensor) []byte {
	key = le.AppendUint64(key, uint64(uintptr(unsafe.Pointer(p))))
	for _, t := range operands {
		key = appendTensor(key, t)
	}
	return key
}

// mapperOf decides on the layouts of a kernel.
func mapperOf(p *ops.Program, operands []*ops.Tensor) (*mapper, error) {
	out := operands[0]
	m := &mapper{program: p, has: make([]bool, len(operands)), n: out.Len()}
	var strides [][]int64
	var where []int
	for i, t := range operands {
		if t == nil {
			continue
		}
		m.has[i] = true
		list := make([]int64, len(out.Shape))
		skip := len(out.Shape) - len(t.Shape)
		for axis, n := range t.Shape {
			if n != 1 {
				list[skip+axis] = t.Strides[axis]
			}
		}
		strides, where = append(strides, list), append(where, i)
	}
	shape, joined := joinAxes(out.Shape, strides...)
	m.shape = shape
	m.strides, m.layouts = make([][]int64, len(operands)), make([]layout, len(operands))
	m.perPack = 16
	for k, i := range where {
		t := operands[i]
		m.strides[i] = joined[k]
		size := t.DType.Size()
		switch contiguous := slices.Equal(joined[k], ops.ContiguousStrides(t.DType, shape)); {
		case contiguous && len(shape) == 1 && shape[0] > 1:
			m.layouts[i] = together
		case !slices.ContainsFunc(joined[k], func(s int64) bool { return s != 0 }):
			m.layouts[i] = single
		default:
			m.layouts[i] = strided
		}
		if m.layouts[i] != together {
			continue
		}
		m.perPack = min(m.perPack, 16/size)
		at := uint64(0) // an upload aligns its element zero for all loads
		if t.Far != nil {
			at = t.Far.Address() + uint64(t.Offset)
		}
		for m.perPack > 1 && at%uint64(min(m.perPack*size, 16)) != 0 {
			m.perPack /= 2
		}
	}
	if slices.Contains(m.layouts, strided) {
		m.perPack = m.packsOfRows(operands)
	}
	for i, r := range m.program.Registers {
		if r.Value == nil {
			continue
		}
		if i < m.program.Inputs && !m.uses(i) {
			continue
		}
		c, err := ops.Scalar(r.DType, r.Value)
		if err != nil {
			return nil, err
		}
		m.constant = append(m.constant, append(append([]byte{}, c.Data...), make([]byte, 16-len(c.Data))...))
	}
	return m, m.layParameters()
}

// packsOfRows returns the number of elements along the last axis that a thread can compute at once.
// On that axis each operand must be contiguous or have the stride 0.
func (m *mapper) packsOfRows(operands []*ops.Tensor) int64 {
	last := len(m.shape) - 1
	n := int64(16)
	for i, t := range operands {
		if t == nil || m.layouts[i] == single {
			continue
		}
		size := t.DType.Size()
		switch m.strides[i][last] {
		case size:
			n = min(n, 16/size)
		case 0:
		default:
			return 1
		}
	}
	for ; n > 1; n /= 2 {
		fits := m.shape[last]%n == 0 && m.strides[0][last] != 0
		for i, t := range operands {
			if t == nil || m.layouts[i] == single || m.strides[i][last] == 0 {
				continue
			}
			bytes := n * t.DType.Size()
			if t.Far != nil {
				fits = fits && (t.Far.Address()+uint64(t.Offset))%uint64(bytes) == 0
			}
			for _, s := range m.strides[i][:last] {
				fits = fits && s%bytes == 0
			}
		}
		if fits {
			return n
		}
	}
	return 1
}

// signature returns a text that differs between kernels of different source. It is shorter than the
// source.
func (m *mapper) signature() string {
	b := []byte("map")
	number := func(n int64) { b = append(strconv.AppendInt(b, n, 36), ' ') }
	number(m.perPack)
	number(int64(len(m.shape)))
	number(int64(m.program.Inputs))
	number(int64(m.program.Out))
	if m.wideIndex() {
		b = append(b, 'w')
	}
	for i, has := range m.has {
		b = append(b, '0'+byte(m.layouts[i]))
		if !has {
			b = append(b, '-')
		} else if s := m.strides[i]; m.perPack > 1 && s[len(s)-1] == 0 {
			b = append(b, 'h')
		}
	}
	for i, r := range m.program.Registers {
		b = append(b, 'a'+byte(r.DType))
		if r.Value != nil {
			b = append(b, '=')
			if i < m.program.Inputs && !m.uses(i) {
				b = append(b, '-')
			}
		}
	}
	for _, in := range m.program.Code {
		b = append(append(b, ' '), in.Function...)
		b = append(b, 'a'+byte(in.Operand))
		number(int64(in.To))
		for _, o := range in.Operands {
			number(int64(o))
		}
	}
	return string(b)
}

// uses reports whether an instruction reads the register.
func (m *mapper) uses(r int) bool {
	return slices.ContainsFunc(m.program.Code, func(in ops.Instruction) bool { return slices.Contains(in.Operands, r) })
}

// wideIndex reports whether 32 bits are too few to count the elements.
func (m *mapper) wideIndex() bool { return m.n >= 1<<31 }

// source returns the kernel's source, which follows prelude.cuh. It depends on the program, the
// types, the layouts and the number of axes, but on no value.
func (m *mapper) source() string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	p := m.program
	typeOf := func(r int) string { return cType(p.Registers[r].DType.String()) }
	axes := len(m.shape)
	general := slices.Contains(m.layouts, strided)
	line("struct args {\n  u64 n;\n  int *negative;")
	for i, has := range m.has {
		if has {
			line("  char *p%d;", i)
		}
	}
	if general {
		line("  i64 shape[%d];", axes)
		for i := range m.has {
			if m.has[i] && m.layouts[i] != single {
				line("  i64 s%d[%d];", i, axes)
			}
		}
	}
	if len(m.constant) > 0 {
		line("  pack<u64, 2> c[%d];", len(m.constant))
	}
	line("};")
	out := typeOf(p.Out)
	// The registers of the inputs come first.
	var list, loads []string
	for i := range p.Inputs {
		if m.has[i+1] {
			list = append(list, fmt.Sprintf("%s r%d", typeOf(i), i))
		}
	}
	list = append(list, "const args &a")
	line("__device__ __forceinline__ %s value(%s) {", out, strings.Join(list, ", "))
	next := 0
	for i, r := range p.Registers {
		switch {
		case r.Value != nil:
			if i < p.Inputs && !m.uses(i) {
				continue
			}
			line("  const %s r%d = *(const %s *)&a.c[%d];", typeOf(i), i, typeOf(i), next)
			next++
		case i >= p.Inputs:
			line("  %s r%d;", typeOf(i), i)
		}
	}
	for _, in := range p.Code {
		line("  %s", statement(p, in))
	}
	line("  return r%d;\n}", p.Out)
	line("extern \"C\" __global__ void __launch_bounds__(256) map(const args a) {")
	for i := range p.Inputs {
		if m.has[i+1] && m.layouts[i+1] == single {
			line("  const %s x%d = *(const %s *)a.p%d;", typeOf(i), i, typeOf(i), i+1)
		}
	}
	if general {
		index := "u32"
		if m.wideIndex() {
			index = "u64"
		}
		line("  u64 i = (u64)blockIdx.x * 256 + threadIdx.x;\n  if (i >= a.n) return;\n  %s r = (%s)i;", index, index)
		for i := range m.has {
			if m.has[i] && m.layouts[i] != single {
				line("  i64 o%d = 0;", i)
			}
		}
		for axis := axes - 1; axis >= 0; axis-- {
			if axis > 0 {
				line("  { const %s q = r / (%s)a.shape[%d], k = r - q * (%s)a.shape[%d];", index, index, axis, index, axis)
			} else {
				line("  { const %s k = r;", index)
			}
			for i := range m.has {
				if m.has[i] && m.layouts[i] != single {
					line("    o%d += (i64)k * a.s%d[%d];", i, i, axis)
				}
			}
			if axis > 0 {
				line("    r = q;")
			}
			line("  }")
		}
		if m.perPack > 1 {
			line("  const int V = %d;", m.perPack)
			for i := range p.Inputs {
				switch {
				case !m.has[i+1]:
				case m.layouts[i+1] == single:
					loads = append(loads, fmt.Sprintf("x%d", i))
				case m.strides[i+1][axes-1] == 0:
					line("  const %s v%d = *(const %s *)(a.p%d + o%d);", typeOf(i), i, typeOf(i), i+1, i+1)
					loads = append(loads, fmt.Sprintf("v%d", i))
				default:
					line("  const pack<%s, V> v%d = *(const pack<%s, V> *)(a.p%d + o%d);", typeOf(i), i, typeOf(i), i+1, i+1)
					loads = append(loads, fmt.Sprintf("v%d.v[k]", i))
				}
			}
			line("  pack<%s, V> out;\n#pragma unroll\n  for (int k = 0; k < V; k++) out.v[k] = value(%s);", out, strings.Join(append(loads, "a"), ", "))
			line("  *(pack<%s, V> *)(a.p0 + o0) = out;\n}", out)
			return b.String()
		}
		for i := range p.Inputs {
			switch {
			case !m.has[i+1]:
			case m.layouts[i+1] == single:
				loads = append(loads, fmt.Sprintf("x%d", i))
			default:
				loads = append(loads, fmt.Sprintf("*(const %s *)(a.p%d + o%d)", typeOf(i), i+1, i+1))
			}
		}
		store := "a.p0"
		if m.layouts[0] != single {
			store = "(a.p0 + o0)"
		}
		line("  *(%s *)%s = value(%s);\n}", out, store, strings.Join(append(loads, "a"), ", "))
		return b.String()
	}
	line("  const int V = %d;\n  u64 i = ((u64)blockIdx.x * 256 + threadIdx.x) * V;", m.perPack)
	var elements, packed []string
	for i := range p.Inputs {
		switch {
		case !m.has[i+1]:
		case m.layouts[i+1] == single:
			elements, packed = append(elements, fmt.Sprintf("x%d", i)), append(packed, fmt.Sprintf("x%d", i))
		default:
			elements = append(elements, fmt.Sprintf("((const %s *)a.p%d)[i]", typeOf(i), i+1))
			packed = append(packed, fmt.Sprintf("v%d.v[k]", i))
		}
	}
	line("  if (i + V <= a.n) {")
	for i := range p.Inputs {
		if m.has[i+1] && m.layouts[i+1] == together {
			line("    const pack<%s, V> v%d = *(const pack<%s, V> *)((const %s *)a.p%d + i);", typeOf(i), i, typeOf(i), typeOf(i), i+1)
		}
	}
	line("    pack<%s, V> out;\n#pragma unroll\n    for (int k = 0; k < V; k++) out.v[k] = value(%s);", out, strings.Join(append(packed, "a"), ", "))
	line("    *(pack<%s, V> *)((%s *)a.p0 + i) = out;", out, out)
	line("  } else {\n    for (; i < a.n; i++) ((%s *)a.p0)[i] = value(%s);\n  }\n}", out, strings.Join(append(elements, "a"), ", "))
	return b.String()
}

// layParameters sets head and tail. errHost means that the parameters are larger than a kernel can
// have.
func (m *mapper) layParameters() error {
	general := slices.Contains(m.layouts, strided)
	n := m.n
	if general {
		n /= m.perPack // each thread computes one pack, and no elements are left over
	}
	m.head = uint64(n)
	p := new(parameters)
	m.parameters(p, func(int) uint64 { return 0 }, 0)
	begin := len(p.bytes)
	if general {
		last := len(m.shape) - 1
		p.i64(m.shape[:last]...).i64(m.shape[last] / m.perPack)
		for i, s := range m.strides {
			if m.has[i] && m.layouts[i] != single {
				p.i64(s[:last]...).i64(s[last] * m.perPack)
			}
		}
	}
	for _, c := range m.constant {
		p.raw(16, c)
	}
	if len(p.bytes) > maxParameters {
		return errHost
	}
	m.tail = p.bytes[begin:]
	return nil
}

// parameters appends the parameters of a launch. The function address returns the address of an
// operand.
func (m *mapper) parameters(p *parameters, address func(operand int) uint64, negative uint64) *parameters {
	p.u64(m.head, negative)
	for i, has := range m.has {
		if has {
			p.u64(address(i))
		}
	}
	p.bytes = append(p.bytes, m.tail...)
	return p
}

// nearElements is the largest number of output elements for which kernels of expressions read small
// inputs in the CPU's memory, possibly more than once.
const nearElements = 1024

// readsAgain reports whether the kernel reads the elements of operand i more than once, because it
// has fewer elements than the output.
func (m *mapping) readsAgain(i int) bool { return i > 0 && m.operands[i].Len() < m.n }

// scratchBytes is the scratch memory that evaluate takes.
func (m *mapping) scratchBytes(d *Device) uint64 {
	n := uploadBytes(m.operands[1:]...)
	for i, t := range m.operands {
		if t != nil && m.readsAgain(i) {
			n += d.rereadBytes(t)
		}
	}
	return n
}

// evaluate launches the kernel. negative is the address of the flag that the kernel sets for a
// negative power.
func (s *submission) evaluate(m *mapping, negative uint64) {
	at := s.at
	if m.n <= nearElements {
		at = s.near
	}
	p := m.parameters(s.parameters(), func(i int) uint64 {
		if t := m.operands[i]; m.readsAgain(i) && s.device.remote(t) {
			return s.reread(t)
		}
		return at(m.operands[i])
	}, negative)
	s.launch(m.kernel, blocksOf(m.n, threads*m.perPack), p)
}

func (r *run) evaluate(ctx context.Context, w *ops.Mapping, out *ops.Tensor) error {
	if out.Len() == 0 {
		return nil
	}
	m, err := r.device.planMap(w, out)
	if err != nil {
		return err
	}
	at, flag := r.pinned(4)
	clear(flag)
	if err := r.submit(ctx, m.scratchBytes(r.device), func(s *submission) { s.evaluate(m, at) }); err != nil {
		return err
	}
	return r.flagged(flag, m.negative)
}
