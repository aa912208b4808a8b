package ops

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

func mapOps() []*Op {
	cache := &exprCache{}
	return []*Op{{
		Name: "array.map",
		Once: true,
		Doc: "Evaluates an element-wise expression over broadcast inputs, in one pass. Inputs are called " +
			"x0, x1, … or as the list names says; inputs given by name go by that name. Operators are " +
			"Python's + - * / // % ** == != < <= > >= & | ^ ~ with Python's precedence; functions are " +
			"where, clip, minimum, maximum, power, arctan2, hypot, abs, sqrt, square, cbrt, reciprocal, sign, " +
			"exp, exp2, expm1, log, log2, log10, log1p, sin, cos, tan and their arc- and -h forms, floor, " +
			"ceil, trunc, round, isnan, isinf, isfinite, conj, real, imag, angle; constants are pi, e, nan, " +
			"inf, True, False and numbers (2j is imaginary). Types are those that NumPy 2 gives the same " +
			"expression, numbers being Python scalars; where that is int8 or float16 we say uint8 or float32.",
		Params: []Param{
			{Name: "expr", Type: StringType, Required: true, Doc: "such as where(x0 > 0, sqrt(x0), 0)"},
			{Name: "names", Type: ListType, Doc: "names of the positional inputs"},
			{Name: "dtype", Type: DTypeType, Doc: "of the result; by default what the expression gives"},
		},
		Variadic: "inputs",
		Open:     true,
		plan:     func(c *call) (*Planned, error) { return planMap(c, cache) },
	}}
}

func planMap(c *call, cache *exprCache) (*Planned, error) {
	source := c.string("expr")
	root, err := cache.parse(source)
	if err != nil {
		return nil, c.bad("expr", "%q: %v", source, err)
	}
	names, values, err := mapInputs(c)
	if err != nil {
		return nil, err
	}
	inputs := make([]compiled, len(values))
	tensors := make([]*Tensor, len(values))
	shapes := make([][]int64, len(values))
	for i, v := range values {
		if _, ok := leafDType(v); ok {
			inputs[i] = constant(v)
			continue
		}
		if tensors[i], err = c.tensorOf(names[i], v); err != nil {
			return nil, err
		}
		inputs[i] = compiled{operand: operand{dtype: tensors[i].DType}}
		shapes[i] = tensors[i].Shape
	}
	shape, ok := broadcast(shapes...)
	if !ok {
		var parts []string
		for i := range shapes {
			parts = append(parts, fmt.Sprintf("%s %v", names[i], shapes[i]))
		}
		return nil, c.bad("", "shapes do not broadcast together: %s", strings.Join(parts, ", "))
	}
	p, err := cache.compile(source, root, names, inputs, c.dtype("dtype"))
	if err != nil {
		return nil, c.bad("expr", "%q: %v", source, err)
	}
	negative := func() error { return c.bad("expr", "%q: %v", source, errNegativePower) }
	return single(p.registers[p.out].dtype, shape, &Mapping{Inputs: tensors, Negative: negative, program: p}, func(ctx context.Context, out *Tensor) error {
		err := mapProgram(p, ctx, out, tensors)
		if errors.Is(err, errNegativePower) {
			return negative()
		}
		return err
	}), nil
}

// fewNames are the default names of the first inputs.
var fewNames = []string{"x0", "x1", "x2", "x3", "x4", "x5", "x6", "x7"}

func numbered(n int) []string {
	if n <= len(fewNames) {
		return fewNames[:n:n]
	}
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("x%d", i)
	}
	return names
}

// maxMapInputs limits the inputs of one expression, since each name is compared with all others.
const maxMapInputs = 1024

// mapInputs returns the names and values of the inputs: positional inputs first, then those given
// by name.
func mapInputs(c *call) ([]string, []any, error) {
	var names []string
	if n := len(c.rest) + len(c.extra); n > maxMapInputs {
		return nil, nil, c.bad("", "%d inputs: at most %d are supported", n, maxMapInputs)
	}
	if c.has("names") {
		for i, v := range c.list("names") {
			name, ok := v.(string)
			if !ok {
				return nil, nil, c.bad("names", "expected a list of strings, got %s at %d", describe(v), i)
			}
			names = append(names, name)
		}
		if len(names) != len(c.rest) {
			return nil, nil, c.bad("names", "%d names for %d inputs", len(names), len(c.rest))
		}
	} else {
		names = numbered(len(c.rest))
		if len(c.extra) == 0 {
			return names, c.rest, nil
		}
	}
	values := slices.Clone(c.rest)
	for _, name := range slices.Sorted(maps.Keys(c.extra)) {
		names, values = append(names, name), append(values, c.extra[name])
	}
	for i, name := range names {
		if name == "" || !isLetter(name[0]) || strings.IndexFunc(name, func(r rune) bool { return r > 127 || !isLetter(byte(r)) && !isDigit(byte(r)) }) >= 0 {
			return nil, nil, c.bad("names", "%q is not a name: use letters, digits and _", name)
		}
		if slices.Contains(names[:i], name) {
			return nil, nil, c.bad("names", "two inputs are called %s", name)
		}
	}
	return names, values, nil
}
