package ops

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/millrace/millrace/internal/spelling"
)

// Args are the arguments of one call. The leaves of arguments and of results are nil, bool, int64,
// float64, complex128, string, []byte, *Tensor and *Table; they lie in []any and map[string]any, at
// any depth.
type Args struct {
	Positional []any
	Named      map[string]any
}

// Type is the type of value that a parameter accepts.
type Type string

// The parameter types. Types describes them.
const (
	AnyType    Type = "any"
	TensorType Type = "tensor"
	IntType    Type = "int"
	NumberType Type = "number"
	RealType   Type = "real"
	BoolType   Type = "bool"
	StringType Type = "string"
	DTypeType  Type = "dtype"
	IntsType   Type = "ints"
	ListType   Type = "list"
	TableType  Type = "table"
)

// TypeDoc describes a parameter type.
type TypeDoc struct {
	Type Type
	Doc  string
}

// Types returns the descriptions of all parameter types.
func Types() []TypeDoc {
	return []TypeDoc{
		{TensorType, "an array; also a number, or nested lists of numbers: `[[1, 2], [3, 4]]`"},
		{IntType, "an integer of 64 bits; also a float without a fraction, because JSON has one type of number, and a tensor with one element"},
		{RealType, "an int or a float; also a tensor with one element"},
		{NumberType, "a bool, an int, a float or a complex number; also a tensor with one element"},
		{BoolType, "true or false; also a tensor with one element"},
		{StringType, "a text"},
		{DTypeType, "the name of a dtype: " + strings.Join(dtypeNames(), ", ")},
		{IntsType, "an int, or a list of ints"},
		{ListType, "a list"},
		{TableType, "a table in Arrow's layout, such as a table of pyarrow or a frame of Polars"},
		{AnyType, "any value"},
	}
}

// Param describes one parameter of an operation.
type Param struct {
	Name     string
	Type     Type
	Required bool // otherwise Default is used, also if the argument is null, unless Null
	Default  any  // in the form in which a caller gives it; nil means "not given"
	Null     bool // a null argument has a meaning of its own, which Doc tells
	Doc      string
}

// call is one use of an operation, with its arguments checked and converted.
type call struct {
	op     *Op
	data   bool           // tensors have their bytes, not only their type and shape
	values []any          // in the order of Params; nil means absent
	rest   []any          // further positional arguments of a variadic operation
	extra  map[string]any // named arguments without a parameter, if the operation is Open
	few    [8]any         // backs values, unless there are more parameters
}

// bind matches arguments to parameters. If data is false, only the type and the shape of tensors
// are checked.
func (o *Op) bind(args Args, data bool) (*call, error) {
	c := &call{op: o, data: data}
	if c.values = c.few[:]; len(o.Params) > len(c.few) {
		c.values = make([]any, len(o.Params))
	}
	positional := args.Positional
	for i := range o.Params {
		p := &o.Params[i]
		named, given := args.Named[p.Name]
		var value any
		switch {
		case i < o.Positional() && i < len(positional):
			if given {
				return nil, c.bad(p.Name, "given twice, by position and by name")
			}
			value, given = positional[i], true
		case given:
			value = named
		case p.Required:
			return nil, c.bad(p.Name, "missing: expected %s", p.expected())
		}
		if value == nil && !p.Required && !(given && p.Null) {
			value = p.Default
		}
		if value == nil && (!p.Required || p.Type == AnyType) {
			continue
		}
		converted, err := c.convert(p, value)
		if err != nil {
			return nil, err
		}
		c.values[i] = converted
	}
	if len(positional) > o.Positional() {
		if o.Variadic == "" {
			return nil, c.bad("", "takes at most %d positional arguments, got %d", o.Positional(), len(positional))
		}
		c.rest = positional[o.Positional():]
	}
	for _, name := range o.others(args.Named) {
		if !o.Open {
			return nil, c.bad(name, "no such parameter%s", suggest(name, o.paramNames()))
		}
		if c.extra == nil {
			c.extra = map[string]any{}
		}
		c.extra[name] = args.Named[name]
	}
	return c, nil
}

// others returns the named arguments that have no parameter, sorted.
func (o *Op) others(named map[string]any) (names []string) {
	for name := range named {
		if !slices.ContainsFunc(o.Params, func(p Param) bool { return p.Name == name }) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Positional returns the number of parameters that can be given by position: in a variadic
// operation, only the leading required ones.
func (o *Op) Positional() int {
	if o.Variadic == "" {
		return len(o.Params)
	}
	n := 0
	for n < len(o.Params) && o.Params[n].Required {
		n++
	}
	return n
}

func (o *Op) paramNames() []string {
	var names []string
	for _, p := range o.Params {
		names = append(names, p.Name)
	}
	return names
}

func (p *Param) expected() string {
	switch p.Type {
	case IntType:
		return "an int"
	case IntsType:
		return "an int or a list of ints"
	case DTypeType:
		return "the name of a dtype"
	case AnyType:
		return "a value"
	}
	return "a " + string(p.Type)
}

func (c *call) convert(p *Param, value any) (any, error) {
	switch p.Type {
	case TensorType:
		return c.tensorOf(p.Name, value)
	case IntType, NumberType, RealType, BoolType:
		scalar, err := c.scalarOf(p.Name, value)
		if err != nil {
			return nil, err
		}
		// NB: most cases return scalar itself: it is an interface value already, so nothing is
		// allocated.
		switch v := scalar.(type) {
		case bool:
			if p.Type == BoolType || p.Type == NumberType {
				return scalar, nil
			}
		case int64:
			if p.Type != BoolType {
				return scalar, nil
			}
		case float64:
			if n, ok := integral(v); ok && p.Type == IntType {
				return n, nil
			}
			if p.Type == NumberType || p.Type == RealType {
				return scalar, nil
			}
		case complex128:
			if p.Type == NumberType {
				return scalar, nil
			}
		}
		return nil, c.unexpected(p, value)
	case StringType:
		if _, ok := value.(string); ok {
			return value, nil
		}
		return nil, c.unexpected(p, value)
	case DTypeType:
		s, ok := value.(string)
		if !ok {
			return nil, c.unexpected(p, value)
		}
		d, err := ParseDType(s)
		if err != nil {
			return nil, c.bad(p.Name, "%v", err)
		}
		return d, nil
	case IntsType:
		list, ok := value.([]any)
		if !ok {
			list = []any{value}
		}
		ints := make([]int64, len(list))
		for i, v := range list {
			scalar, err := c.scalarOf(p.Name, v)
			if err != nil {
				return nil, err
			}
			switch v := scalar.(type) {
			case int64:
				ints[i] = v
			case float64:
				if ints[i], ok = integral(v); !ok {
					return nil, c.unexpected(p, value)
				}
			default:
				return nil, c.unexpected(p, value)
			}
		}
		return ints, nil
	case ListType:
		if _, ok := value.([]any); ok {
			return value, nil
		}
		return nil, c.unexpected(p, value)
	case TableType:
		return c.tableOf(p, value)
	}
	return value, nil
}

func (c *call) unexpected(p *Param, value any) error {
	return c.bad(p.Name, "expected %s, got %s", p.expected(), describe(value))
}

// scalarOf returns the value of a tensor with one element; it returns other values unchanged.
func (c *call) scalarOf(name string, value any) (any, error) {
	t, ok := value.(*Tensor)
	if !ok || t == nil {
		return value, nil
	}
	if err := t.checkShape(); err != nil {
		return nil, c.bad(name, "%v", err)
	}
	if t.Len() != 1 {
		return value, nil // the caller reports the wrong type
	}
	item, err := t.Item()
	if err != nil {
		return nil, c.bad(name, "%v", err)
	}
	return item, nil
}

func (c *call) tensorOf(name string, value any) (*Tensor, error) {
	t, ok := value.(*Tensor)
	if !ok {
		var err error
		if t, err = fromList(value); err != nil {
			return nil, c.bad(name, "expected a tensor, got %s: %v", describe(value), err)
		}
	}
	if t == nil {
		return nil, c.bad(name, "expected a tensor, got null")
	}
	if err := c.checkTensor(t); err != nil {
		return nil, c.bad(name, "%v", err)
	}
	return t, nil
}

// tensorAt is tensorOf for one of several arguments. It builds the argument's name only for an
// error.
func (c *call) tensorAt(name string, i int, value any) (*Tensor, error) {
	if t, ok := value.(*Tensor); ok && t != nil && c.checkTensor(t) == nil {
		return t, nil
	}
	return c.tensorOf(ordinal(name, i), value)
}

// checkTensor returns an error if the tensor is not valid.
func (c *call) checkTensor(t *Tensor) error {
	if c.data {
		return t.Check()
	}
	return t.checkShape()
}

// fromList builds a tensor from a number or from nested lists of equal length.
func fromList(value any) (*Tensor, error) {
	var shape []int64
	for v := value; ; {
		list, ok := v.([]any)
		if !ok {
			break
		}
		shape = append(shape, int64(len(list)))
		if len(list) == 0 {
			break
		}
		v = list[0]
	}
	var flat []any
	dtype := Invalid
	var walk func(v any, depth int) error
	walk = func(v any, depth int) error {
		if list, ok := v.([]any); ok {
			if depth == len(shape) || int64(len(list)) != shape[depth] {
				return fmt.Errorf("lists of unequal length")
			}
			for _, x := range list {
				if err := walk(x, depth+1); err != nil {
					return err
				}
			}
			return nil
		}
		d, ok := leafDType(v)
		if !ok {
			return fmt.Errorf("%s is not a number", describe(v))
		}
		if depth != len(shape) {
			return fmt.Errorf("lists of unequal depth")
		}
		dtype = Promote(dtype, d)
		flat = append(flat, v)
		return nil
	}
	if err := walk(value, 0); err != nil {
		return nil, err
	}
	if dtype == Invalid {
		dtype = Float64
	}
	t, err := NewTensor(dtype, shape)
	if err != nil {
		return nil, err
	}
	size := dtype.Size()
	for i, v := range flat {
		if err := putScalar(&Tensor{DType: dtype, Data: t.Data[int64(i)*size:]}, v); err != nil {
			return nil, err
		}
	}
	return t, nil
}

// leafDType returns the type that a scalar leaf has as a tensor.
func leafDType(v any) (DType, bool) {
	switch v.(type) {
	case bool:
		return Bool, true
	case int64:
		return Int64, true
	case float64:
		return Float64, true
	case complex128:
		return Complex128, true
	}
	return Invalid, false
}

func integral(v float64) (int64, bool) {
	// Above 2^53 a float64 does not identify a single integer.
	if v != math.Trunc(v) || math.Abs(v) > 1<<53 {
		return 0, false
	}
	return int64(v), true
}

// describe returns a description of a value for an error message.
func describe(v any) string {
	switch v := v.(type) {
	case nil:
		return "null"
	case *Tensor:
		if v == nil {
			return "null"
		}
		return fmt.Sprintf("a %v tensor of shape %v", v.DType, v.Shape)
	case *Table:
		return fmt.Sprintf("a table of %d rows", v.Layout.Rows)
	case string:
		if len(v) > 40 {
			v = v[:40] + "…"
		}
		return fmt.Sprintf("the string %q", v)
	case []byte:
		return fmt.Sprintf("%d bytes", len(v))
	case []any:
		return fmt.Sprintf("a list of %d", len(v))
	case map[string]any:
		return fmt.Sprintf("a map of %d", len(v))
	case bool, int64, float64, complex128:
		return fmt.Sprintf("%v", v)
	}
	return fmt.Sprintf("an unknown leaf of Go type %T", v)
}

// The following accessors return a parameter's value, or the zero value if the argument is absent
// and has no default.

func (c *call) tensor(name string) *Tensor { return value[*Tensor](c, name) }
func (c *call) int(name string) int64      { return value[int64](c, name) }
func (c *call) string(name string) string  { return value[string](c, name) }
func (c *call) bool(name string) bool      { return value[bool](c, name) }
func (c *call) dtype(name string) DType    { return value[DType](c, name) }
func (c *call) ints(name string) []int64   { return value[[]int64](c, name) }
func (c *call) list(name string) []any     { return value[[]any](c, name) }
func (c *call) has(name string) bool       { return c.value(name) != nil }

// value returns nil if the argument is absent.
func (c *call) value(name string) any {
	for i := range c.op.Params {
		if c.op.Params[i].Name == name {
			return c.values[i]
		}
	}
	return nil
}

// real returns the value of a RealType parameter.
func (c *call) real(name string) float64 {
	if n, ok := c.value(name).(int64); ok {
		return float64(n)
	}
	return value[float64](c, name)
}

func value[T any](c *call, name string) T {
	v, _ := c.value(name).(T)
	return v
}

// axis returns the index of an axis; a negative axis is counted from the end.
func (c *call) axis(name string, axis int64, ndim int) (int, error) {
	n := int64(ndim)
	if axis < -n || axis >= n {
		return 0, c.bad(name, "axis %d is outside of %d dimensions", axis, ndim)
	}
	if axis < 0 {
		axis += n
	}
	return int(axis), nil
}

// axisOrAll returns the value of the parameter axis: -1 if it is null, for all elements in C order.
func (c *call) axisOrAll(x *Tensor) (int, error) {
	if !c.has("axis") {
		return -1, nil
	}
	return c.axis("axis", c.int("axis"), x.NDim())
}

// The time of a comparison is proportional to the product of both lengths: there are no suggestions
// for long names and long lists.
const (
	maxSuggested  = 64
	maxCandidates = 4096
)

// suggest returns a hint with up to three candidates that resemble a misspelt name; "" if none
// does.
func suggest(name string, candidates []string) string {
	if len(name) > maxSuggested || len(candidates) > maxCandidates {
		return ""
	}
	type scored struct {
		name     string
		distance int
	}
	var near []scored
	for _, c := range candidates {
		if len(c) > maxSuggested {
			continue
		}
		d := spelling.Distance(strings.ToLower(name), strings.ToLower(c))
		// A missing or wrong namespace is the most common mistake.
		if _, tail, ok := strings.Cut(c, "."); ok {
			mine := name[strings.LastIndex(name, ".")+1:]
			d = min(d, 1+spelling.Distance(strings.ToLower(mine), tail))
		}
		if d <= 1+max(len(name), len(c))/4 {
			near = append(near, scored{c, d})
		}
	}
	slices.SortStableFunc(near, func(a, b scored) int { return a.distance - b.distance })
	if len(near) == 0 {
		return ""
	}
	var names []string
	for _, s := range near[:min(3, len(near))] {
		if s.distance <= near[0].distance+1 {
			names = append(names, s.name)
		}
	}
	return ": did you mean " + strings.Join(names, ", ") + "?"
}

// ordinal returns the name of one of several arguments.
func ordinal(name string, i int) string { return fmt.Sprintf("%s[%d]", name, i) }
