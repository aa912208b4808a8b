package ops

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

const (
	// maxOperands and maxSubscripts limit the work of planning, which grows with the third power
	// of the number of operands.
	maxOperands   = 64
	maxSubscripts = 4096
)

func einsumOps() []*Op {
	return []*Op{{
		Name: "array.einsum",
		Doc:  "Multiplies tensors and sums the products up, by Einstein's convention, as NumPy's `einsum`.",
		Details: "`subscripts` has a letter for each axis of each operand: `ij,jk->ik` is the product of two matrices. Axes with the same " +
			"letter run together. Letters that are not behind `->` are summed up. Without `->`, the result has the letters that occur " +
			"once, in the order of the alphabet, capitals first. `...` stands for the axes without a letter, which broadcast.\n\n" +
			"Several operands are multiplied in pairs, those first whose product is small; so rounding may differ from NumPy's. " +
			"Products and sums of bool are `and` and `or`. Integers wrap around in the type of the result.",
		Params: []Param{
			{Name: "subscripts", Type: StringType, Required: true, Doc: "letters and `...`, with a comma between operands, and perhaps `->` and those of the result. Spaces have no meaning"},
		},
		Variadic:    "operands",
		VariadicDoc: fmt.Sprintf("a tensor for each group of letters, at most %d", maxOperands),
		Result:      "a tensor of the dtype to which all operands are promoted, with an axis for each letter behind `->`",
		Errors: []string{
			"INVALID_ARGUMENT, with the place in `subscripts`, if they are malformed, or do not match the axes of the operands",
			"INVALID_ARGUMENT if axes of the same letter differ in length, unless one operand's is 1",
		},
		Libraries: []string{"cublas", "nvrtc"},
		Example:   Example{[]string{`{"key": "einsum", "op": "array.einsum", "args": ["ij,kj->ik", [[1, 2], [3, 4]], [[1, 0.5]]]}`}, "[[2], [5]]"},
		plan:      planEinsum,
	}}
}

// label is an axis of a contraction: a letter, or, below zero, an axis of an ellipsis, where -1 is
// the last one.
type label int

// subscripts are the parsed first argument.
type subscripts struct {
	operands []group
	output   *group // nil if there is no "->"
}

// group is the labels of one tensor.
type group struct {
	at       int     // the place of the group in the text
	labels   []label // the letters, in order
	places   []int   // where they are in the text
	ellipsis int     // the number of letters before the ellipsis; -1: there is none
}

// parseSubscripts parses the text. Errors are of type *syntaxError.
func parseSubscripts(text string) (*subscripts, error) {
	if len(text) > maxSubscripts {
		return nil, &syntaxError{0, fmt.Sprintf("%d bytes are more than the limit of %d", len(text), maxSubscripts)}
	}
	s := &subscripts{}
	g := group{ellipsis: -1}
	end := func(next int) {
		if s.output != nil {
			*s.output = g
		} else {
			s.operands = append(s.operands, g)
		}
		g = group{at: next, ellipsis: -1}
	}
	for i := 0; i < len(text); i++ {
		switch b := text[i]; {
		case b == ' ':
		case isLetter(b) && b != '_':
			g.labels, g.places = append(g.labels, label(b)), append(g.places, i)
		case b == '.':
			if !strings.HasPrefix(text[i:], "...") {
				return nil, &syntaxError{i, "expected three dots"}
			}
			if g.ellipsis >= 0 {
				return nil, &syntaxError{i, "the same tensor has two ellipses"}
			}
			g.ellipsis = len(g.labels)
			i += 2
		case b == ',':
			if s.output != nil {
				return nil, &syntaxError{i, "a comma behind ->: there is one result"}
			}
			end(i + 1)
		case b == '-':
			if !strings.HasPrefix(text[i:], "->") {
				return nil, &syntaxError{i, "expected ->"}
			}
			if s.output != nil {
				return nil, &syntaxError{i, "a second ->"}
			}
			end(i + 2)
			s.output = &group{}
			i++
		default:
			return nil, &syntaxError{i, fmt.Sprintf("unexpected %q: use letters, commas, ... and ->", []rune(text[i:])[0])}
		}
	}
	end(len(text))
	return s, nil
}

// axis is an axis of a view: elements lie stride bytes apart.
type axis struct {
	label          label
	length, stride int64
}

// term is a view of a register whose axes have different labels.
type term struct {
	register int
	dtype    DType
	axes     []axis
}

func (t *term) find(l label) int {
	return slices.IndexFunc(t.axes, func(a axis) bool { return a.label == l })
}

func (t *term) elements() float64 {
	n := 1.0
	for _, a := range t.axes {
		n *= float64(a.length)
	}
	return n
}

// only returns the axes whose label passes the test.
func (t *term) only(test func(l label) bool) []axis {
	var kept []axis
	for _, a := range t.axes {
		if test(a.label) {
			kept = append(kept, a)
		}
	}
	return kept
}

// over returns the view of a register that has these axes.
func over(register *Tensor, axes []axis) *Tensor {
	view := &Tensor{DType: register.DType, Shape: []int64{}, Strides: []int64{}, Offset: register.Offset, Data: register.Data, Far: register.Far}
	for _, a := range axes {
		view.Shape, view.Strides = append(view.Shape, a.length), append(view.Strides, a.stride)
	}
	return view
}

func lengths(axes []axis) []int64 {
	shape := make([]int64, len(axes))
	for i, a := range axes {
		shape[i] = a.length
	}
	return shape
}

// contraction is the state of planning.
type contraction struct {
	Contracting
	c      *call
	text   string
	dtype  DType
	length map[label]int64
	output []label
	terms  []*term
}

func planEinsum(c *call) (*Planned, error) {
	if len(c.rest) > maxOperands {
		return nil, c.bad("operands", "%d operands: at most %d are supported", len(c.rest), maxOperands)
	}
	e := &contraction{c: c, text: c.string("subscripts"), length: map[label]int64{}}
	parsed, err := parseSubscripts(e.text)
	if err != nil {
		return nil, e.bad(err)
	}
	if len(parsed.operands) != len(c.rest) {
		return nil, c.bad("subscripts", "%q has letters for %d operands, and there are %d", e.text, len(parsed.operands), len(c.rest))
	}
	for i, v := range c.rest {
		x, err := c.tensorAt("operands", i, v)
		if err != nil {
			return nil, err
		}
		e.Operands, e.dtype = append(e.Operands, x), Promote(e.dtype, x.DType)
	}
	if err := e.label(parsed); err != nil {
		return nil, err
	}
	shape := make([]int64, len(e.output))
	for i, l := range e.output {
		shape[i] = e.length[l]
	}
	if _, err := countElements(shape); err != nil {
		return nil, c.bad("", "%v", err)
	}
	if err := e.contract(); err != nil {
		return nil, err
	}
	w := Work(&e.Contracting)
	if len(e.Steps) == 1 {
		w = e.Steps[0].Work(e.Operands)
	}
	return single(e.dtype, shape, w, func(ctx context.Context, out *Tensor) error {
		return contractInto(ctx, out, &e.Contracting)
	}), nil
}

// bad returns the error of a malformed text.
func (e *contraction) bad(err error) error { return e.c.bad("subscripts", "%q: %v", e.text, err) }

// label gives each axis of the operands its label, checks the lengths, and sets the terms and the
// labels of the output.
func (e *contraction) label(s *subscripts) error {
	broadcast := 0 // the largest number of axes that an ellipsis stands for
	counts := map[label]int{}
	for i := range s.operands {
		g, x := &s.operands[i], e.Operands[i]
		open := x.NDim() - len(g.labels)
		if open < 0 || open > 0 && g.ellipsis < 0 {
			return e.bad(&syntaxError{g.at, fmt.Sprintf("operand %d of shape %v has %d axes, and %d letters", i, x.Shape, x.NDim(), len(g.labels))})
		}
		t := &term{register: i, dtype: x.DType}
		for k := range x.NDim() {
			a, place := axis{length: x.Shape[k], stride: x.Strides[k]}, g.at
			switch {
			case g.ellipsis < 0 || k < g.ellipsis:
				a.label, place = g.labels[k], g.places[k]
			case k < g.ellipsis+open:
				a.label = label(k - g.ellipsis - open)
			default:
				a.label, place = g.labels[k-open], g.places[k-open]
			}
			counts[a.label]++
			if at := t.find(a.label); at >= 0 { // a diagonal
				if t.axes[at].length != a.length {
					return e.bad(&syntaxError{place, fmt.Sprintf("%s has the lengths %d and %d in operand %d of shape %v", a.label, t.axes[at].length, a.length, i, x.Shape)})
				}
				t.axes[at].stride += a.stride
				continue
			}
			t.axes = append(t.axes, a)
			known, ok := e.length[a.label]
			if ok && known != a.length && known != 1 && a.length != 1 {
				return e.bad(&syntaxError{place, fmt.Sprintf("%s has length %d in operand %d of shape %v, and %d before", a.label, a.length, i, x.Shape, known)})
			}
			if !ok || known == 1 {
				e.length[a.label] = a.length
			}
		}
		broadcast = max(broadcast, open)
		e.terms = append(e.terms, t)
	}
	for _, t := range e.terms { // an axis of length 1 has the same element for each index of the label
		t.axes = t.only(func(l label) bool { return e.length[l] == 1 || t.axes[t.find(l)].length != 1 })
	}
	return e.setOutput(s.output, broadcast, counts)
}

// setOutput sets the labels of the output. counts is how often each label occurs.
func (e *contraction) setOutput(g *group, broadcast int, counts map[label]int) error {
	ellipsis := func() {
		for i := range broadcast {
			e.output = append(e.output, label(i-broadcast))
		}
	}
	if g == nil {
		ellipsis()
		var once []label
		for l, n := range counts {
			if l >= 0 && n == 1 {
				once = append(once, l)
			}
		}
		slices.Sort(once)
		e.output = append(e.output, once...)
		return nil
	}
	if g.ellipsis < 0 && broadcast > 0 {
		return e.bad(&syntaxError{g.at, fmt.Sprintf("the result has no ellipsis, and that of the operands stands for %d axes", broadcast)})
	}
	for i, l := range g.labels {
		if i == g.ellipsis {
			ellipsis()
		}
		if counts[l] == 0 {
			return e.bad(&syntaxError{g.places[i], fmt.Sprintf("%s is in the result, but in no operand", l)})
		}
		if slices.Contains(g.labels[:i], l) {
			return e.bad(&syntaxError{g.places[i], fmt.Sprintf("the result has %s twice", l)})
		}
		e.output = append(e.output, l)
	}
	if g.ellipsis == len(g.labels) {
		ellipsis()
	}
	return nil
}

func (l label) String() string {
	if l < 0 {
		return fmt.Sprintf("axis %d of the ellipsis", int(l))
	}
	return fmt.Sprintf("letter %c", rune(l))
}

// contract plans the steps: it multiplies the terms in pairs until one is left.
func (e *contraction) contract() error {
	for len(e.terms) > 1 {
		for i := range e.terms { // sum up what no other term needs
			if err := e.reduce(i); err != nil {
				return err
			}
		}
		i, k := e.cheapest()
		a, b := e.terms[i], e.terms[k]
		e.terms = slices.Delete(slices.Delete(e.terms, k, k+1), i, i+1)
		product, err := e.product(a, b)
		if err != nil {
			return err
		}
		e.terms = append(e.terms, product)
	}
	if err := e.reduce(0); err != nil {
		return err
	}
	if last := e.terms[0]; len(e.Steps) == 0 || !e.final(last.axes) {
		_, err := e.copy(last, e.order(last.axes, e.output))
		return err
	}
	return nil
}

// final reports whether axes are those of the output, in its order.
func (e *contraction) final(axes []axis) bool {
	return slices.EqualFunc(axes, e.output, func(a axis, l label) bool { return a.label == l })
}

// needed reports whether a label is in the output or in a term.
func (e *contraction) needed(l label) bool {
	return slices.Contains(e.output, l) || slices.ContainsFunc(e.terms, func(t *term) bool { return t.find(l) >= 0 })
}

// order returns the axes in the order of the labels.
func (e *contraction) order(axes []axis, labels []label) []axis {
	sorted := slices.Clone(axes)
	slices.SortStableFunc(sorted, func(a, b axis) int {
		return slices.Index(labels, a.label) - slices.Index(labels, b.label)
	})
	return sorted
}

// step appends a step and returns its result as a term.
func (e *contraction) step(inputs []int, axes []axis, work func(registers []*Tensor) Work) (*term, error) {
	shape := lengths(axes)
	if _, err := countElements(shape); err != nil {
		return nil, e.c.bad("", "an intermediate result: %v", err)
	}
	result := &term{register: len(e.Operands) + len(e.Steps), dtype: e.dtype}
	for i, stride := range ContiguousStrides(e.dtype, shape) {
		result.axes = append(result.axes, axis{axes[i].label, axes[i].length, stride})
	}
	e.Steps = append(e.Steps, Step{Output{e.dtype, shape}, inputs, work})
	return result, nil
}

// copy plans a contiguous copy with the axes in another order, in the type of the result.
func (e *contraction) copy(t *term, axes []axis) (*term, error) {
	return e.step([]int{t.register}, axes, func(registers []*Tensor) Work {
		view := over(registers[t.register], axes)
		if view.DType == e.dtype {
			return &Copying{[]*Tensor{view}}
		}
		return Convert(e.dtype, view)
	})
}

// reduce sums term i up along the axes that neither another term nor the output has.
func (e *contraction) reduce(i int) error {
	t := e.terms[i]
	e.terms[i] = &term{}
	kept := t.only(e.needed)
	e.terms[i] = t
	if len(kept) == len(t.axes) {
		return nil
	}
	if len(e.terms) == 1 {
		kept = e.order(kept, e.output)
	}
	folded := t.only(func(l label) bool { return !slices.ContainsFunc(kept, func(a axis) bool { return a.label == l }) })
	rows, err := countElements(lengths(folded))
	if err != nil {
		return e.c.bad("", "%v", err)
	}
	marks := make([]bool, len(t.axes))
	for k := range folded {
		marks[len(kept)+k] = true
	}
	all, function := slices.Concat(kept, folded), "sum"
	if e.dtype == Bool {
		function = "any"
	}
	e.terms[i], err = e.step([]int{t.register}, kept, func(registers []*Tensor) Work {
		return &Reducing{X: over(registers[t.register], all), Folded: marks, Function: function, Accumulator: e.dtype, Rows: rows}
	})
	return err
}

// cheapest returns the pair of terms, i before k, whose product is to be computed next: that which
// shrinks the terms most. Of equals it is the one with the fewest multiplications, then the first.
func (e *contraction) cheapest() (i, k int) {
	uses := map[label]int{}
	for _, l := range e.output {
		uses[l]++
	}
	for _, t := range e.terms {
		for _, a := range t.axes {
			uses[a.label]++
		}
	}
	var bestGrowth, bestCost float64
	k = -1
	for p, a := range e.terms {
		for q := p + 1; q < len(e.terms); q++ {
			b := e.terms[q]
			result, cost := 1.0, 1.0
			for _, x := range a.axes {
				cost *= float64(x.length)
				if both := b.find(x.label) >= 0; !both || uses[x.label] > 2 {
					result *= float64(x.length)
				}
			}
			for _, x := range b.axes {
				if a.find(x.label) < 0 {
					cost, result = cost*float64(x.length), result*float64(x.length)
				}
			}
			growth := result - a.elements() - b.elements()
			if k < 0 || growth < bestGrowth || growth == bestGrowth && cost < bestCost {
				i, k, bestGrowth, bestCost = p, q, growth, cost
			}
		}
	}
	return i, k
}

// product plans the product of two terms, summed up along the axes that nothing else needs. The
// axes of the result are in the order of the output if these are the last terms.
func (e *contraction) product(a, b *term) (*term, error) {
	shared := func(l label) bool { return a.find(l) >= 0 && b.find(l) >= 0 }
	inner := a.only(func(l label) bool { return shared(l) && !e.needed(l) })
	if len(inner) == 0 {
		return e.elementwise(a, b)
	}
	batch := a.only(func(l label) bool { return shared(l) && e.needed(l) })
	rows := a.only(func(l label) bool { return !shared(l) })
	columns := b.only(func(l label) bool { return !shared(l) })
	if len(e.terms) == 0 {
		batch, rows, columns = e.order(batch, e.output), e.order(rows, e.output), e.order(columns, e.output)
		if e.final(slices.Concat(batch, columns, rows)) {
			a, b, rows, columns = b, a, columns, rows
		}
	}
	if _, ok := merged(a.like(inner)); !ok {
		if other := b.only(func(l label) bool { return slices.ContainsFunc(inner, func(x axis) bool { return x.label == l }) }); mergeable(other) {
			inner = other // in the order of b
		}
	}
	var err error
	if a, err = e.matrix(a, batch, rows, inner); err != nil {
		return nil, err
	}
	if b, err = e.matrix(b, batch, inner, columns); err != nil {
		return nil, err
	}
	matrices := func(registers []*Tensor) Work {
		w := &Multiplying{Batch: lengths(batch)}
		left, m, k := pair(a, batch, rows, inner)
		right, _, n := pair(b, batch, inner, columns)
		w.Rows, w.Inner, w.Columns = m, k, n
		w.A, w.B = over(registers[a.register], left), over(registers[b.register], right)
		return w
	}
	return e.step([]int{a.register, b.register}, slices.Concat(batch, rows, columns), matrices)
}

// like returns the axes of t that have the labels of others, in their order.
func (t *term) like(others []axis) []axis {
	own := make([]axis, len(others))
	for i, o := range others {
		own[i] = t.axes[t.find(o.label)]
	}
	return own
}

// merged returns one axis for several; ok is false if their elements do not lie as if it were one.
func merged(axes []axis) (one axis, ok bool) {
	one = axis{length: 1}
	for i := len(axes) - 1; i >= 0; i-- {
		a := axes[i]
		switch {
		case a.length == 1:
		case one.length == 1:
			one = a
		case a.stride == one.stride*one.length:
			one.length *= a.length
		default:
			return axis{}, false
		}
	}
	return one, true
}

func mergeable(axes []axis) bool {
	_, ok := merged(axes)
	return ok
}

// matrix returns t, or a copy of it, so that first and second can be merged into one axis each.
func (e *contraction) matrix(t *term, batch, first, second []axis) (*term, error) {
	if mergeable(t.like(first)) && mergeable(t.like(second)) {
		return t, nil
	}
	return e.copy(t, t.like(slices.Concat(batch, first, second)))
}

// pair returns the axes of the matrices in t, and the lengths of the last two.
func pair(t *term, batch, first, second []axis) (axes []axis, rows, columns int64) {
	one, _ := merged(t.like(first))
	two, _ := merged(t.like(second))
	return slices.Concat(t.like(batch), []axis{one, two}), one.length, two.length
}

// elementwise plans a product without a sum.
func (e *contraction) elementwise(a, b *term) (*term, error) {
	axes := slices.Concat(a.axes, b.only(func(l label) bool { return a.find(l) < 0 }))
	if len(e.terms) == 0 {
		axes = e.order(axes, e.output)
	}
	if Promote(a.dtype, b.dtype) != e.dtype { // another operand has a larger type
		var err error
		if a, err = e.copy(a, a.axes); err != nil {
			return nil, err
		}
	}
	inputs := []compiled{{operand: operand{dtype: a.dtype}}, {operand: operand{dtype: b.dtype}}}
	root := &node{op: "*", args: []*node{{op: "name", name: "a"}, {op: "name", name: "b"}}}
	p, err := compile(root, []string{"a", "b"}, inputs, e.dtype)
	if err != nil {
		return nil, fmt.Errorf("multiply %v by %v: %w", a.dtype, b.dtype, err)
	}
	return e.step([]int{a.register, b.register}, axes, func(registers []*Tensor) Work {
		views := make([]*Tensor, 2)
		for i, t := range []*term{a, b} {
			spread := slices.Clone(axes)
			for k := range spread {
				if at := t.find(spread[k].label); at >= 0 {
					spread[k] = t.axes[at]
				} else {
					spread[k].length, spread[k].stride = 1, 0
				}
			}
			views[i] = over(registers[t.register], spread)
		}
		return &Mapping{Inputs: views, program: p}
	})
}

// contractInto carries the steps out.
func contractInto(ctx context.Context, out *Tensor, w *Contracting) error {
	registers := slices.Clone(w.Operands)
	for i, s := range w.Steps {
		to := out
		if i < len(w.Steps)-1 {
			var err error
			if to, err = scratchTensor(ctx, s.Output.DType, s.Output.Shape); err != nil {
				return err
			}
		}
		if err := carryOut(ctx, s.Work(registers), to); err != nil {
			return err
		}
		registers = append(registers, to)
	}
	return nil
}

// carryOut computes the output of one step.
func carryOut(ctx context.Context, w Work, out *Tensor) error {
	switch w := w.(type) {
	case *Copying:
		return copyInto(ctx, out, w.Views[0])
	case *Mapping:
		return mapProgram(w.program, ctx, out, w.Inputs)
	case *Reducing:
		return reduceInto(ctx, out, w.X, w.Folded, w.Function, w.Accumulator)
	case *Multiplying:
		return multiplyInto(ctx, out, w)
	}
	panic(fmt.Sprintf("ops: a contraction has a step of %T", w))
}
