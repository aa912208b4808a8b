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
		Name:      "array.map",
		ReadsOnce: true,
		Doc:       "Evaluates an element-wise expression over inputs that are broadcast together, in one pass.",
		Details: "Operators are those of Python, with Python's precedence: `+ - * / // % ** == != < <= > >= & | ^ ~`. Comparisons " +
			"cannot be chained. Functions: " + strings.Join(slices.Sorted(maps.Keys(arity)), ", ") + ". Constants: " +
			strings.Join(slices.Sorted(maps.Keys(constants)), ", ") + ", and numbers; `2j` is imaginary.\n\n" +
			"The dtype is that which NumPy 2 gives the same expression, with numbers as Python scalars. It is uint8 or float32 " +
			"if NumPy gives int8 or float16.\n\n" +
			"Operators, comparisons, roundings, `abs`, `sqrt`, `hypot` and conversions have the same bits on every worker without a GPU, " +
			"on x86-64. Other functions of floats, such as `exp`, `sin` and powers, may differ between workers by 4 units in the last " +
			"place. On one worker, the same number always has the same result, at any place of an array of any size.",
		Params: []Param{
			{Name: "expr", Type: StringType, Required: true, Doc: "the expression, such as `where(x0 > 0, sqrt(x0), 0)`; at most 64 KiB, nested 200 levels deep"},
			{Name: "names", Type: ListType, Doc: "the names of the positional inputs in the expression; null: `x0`, `x1`, ..."},
			{Name: "dtype", Type: DTypeType, Doc: "of the result; null: that of the expression"},
		},
		Variadic:    "inputs",
		VariadicDoc: "tensors and numbers; at most 1024 with those that are given by name",
		Open:        true,
		OpenDoc:     "further inputs, which have these names in the expression",
		Result:      "a tensor of the shape to which the inputs broadcast",
		Errors: []string{
			"INVALID_ARGUMENT, with the place in the text, if the expression is wrong or not defined for the dtypes of the inputs",
			"INVALID_ARGUMENT if an int has a negative int as exponent: make one of them a float",
		},
		Libraries: []string{"nvrtc"},
		Example: Example{[]string{
			`{"key": "map-x", "op": "array.arange", "args": [-2, 3]}`,
			`{"key": "map", "op": "array.map", "args": ["where(x0 > 0, a * x0, 0)", {"input": "map-x"}], "kwargs": {"a": 10}}`,
		}, "[0, 0, 0, 10, 20]"},
		plan: func(c *call) (*Planned, error) { return planMap(c, cache) },
	}, {
		Name:      "array.where",
		ReadsOnce: true,
		Doc:       "Takes each element from one of two tensors, as a condition says; the three are broadcast together.",
		Details: "An element of the result is that of `x` if the condition is true, otherwise that of `y`. A number of the condition is " +
			"true if it is not zero. A number that is given for `x` or `y` is a Python scalar in the promotion of dtypes.",
		Params: []Param{
			{Name: "condition", Type: AnyType, Required: true, Doc: "a tensor of any dtype, or a number"},
			{Name: "x", Type: AnyType, Required: true, Doc: "a tensor or a number"},
			{Name: "y", Type: AnyType, Required: true, Doc: "a tensor or a number"},
		},
		Result:    "a tensor of the shape to which the three broadcast, of the dtype to which `x` and `y` are promoted",
		Errors:    []string{"INVALID_ARGUMENT if an int is outside of the range of the result's dtype; NumPy makes it wrap around"},
		Libraries: []string{"nvrtc"},
		Example: Example{[]string{
			`{"key": "where", "op": "array.where", "args": [[true, false, true], [1, 2, 3], 0]}`,
		}, "[1, 0, 3]"},
		plan: func(c *call) (*Planned, error) { return planWhere(c, cache) },
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
	e := expression{source: source, root: root, names: names, cache: cache, failure: func(err error) error {
		return c.bad("expr", "%q: %v", source, err)
	}}
	return e.plan(c, values, c.dtype("dtype"))
}

// planWhere plans an expression that has the arguments as inputs.
func planWhere(c *call, cache *exprCache) (*Planned, error) {
	const source = "where(condition, x, y)"
	root, err := cache.parse(source)
	if err != nil {
		return nil, err
	}
	names := []string{"condition", "x", "y"}
	values := []any{c.value("condition"), c.value("x"), c.value("y")}
	e := expression{source: source, root: root, names: names, cache: cache, failure: func(err error) error {
		if syntax := (*syntaxError)(nil); errors.As(err, &syntax) {
			return c.bad("", "%s", syntax.message)
		}
		return c.bad("", "%v", err)
	}}
	return e.plan(c, values, Invalid)
}

// expression is a parsed expression with the names of its inputs.
type expression struct {
	source  string
	root    *node
	names   []string
	cache   *exprCache
	failure func(error) error // the error of the call for an error in the expression
}

// plan plans the evaluation for the values of the inputs. dtype is the type of the result; Invalid
// means the type that the expression has.
func (e *expression) plan(c *call, values []any, dtype DType) (*Planned, error) {
	inputs := make([]compiled, len(values))
	tensors := make([]*Tensor, len(values))
	shapes := make([][]int64, len(values))
	for i, v := range values {
		if _, ok := leafDType(v); ok {
			inputs[i] = constant(v)
			continue
		}
		var err error
		if tensors[i], err = c.tensorOf(e.names[i], v); err != nil {
			return nil, err
		}
		inputs[i] = compiled{operand: operand{dtype: tensors[i].DType}}
		shapes[i] = tensors[i].Shape
	}
	shape, ok := broadcast(shapes...)
	if !ok {
		var parts []string
		for i := range shapes {
			parts = append(parts, fmt.Sprintf("%s %v", e.names[i], shapes[i]))
		}
		return nil, c.bad("", "shapes do not broadcast together: %s", strings.Join(parts, ", "))
	}
	p, err := e.cache.compile(e.source, e.root, e.names, inputs, dtype)
	if err != nil {
		return nil, e.failure(err)
	}
	negative := func() error { return e.failure(errNegativePower) }
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
