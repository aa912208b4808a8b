package ops

import (
	"context"
	"maps"
	"slices"
)

func coreOps() []*Op {
	return []*Op{
		{
			Name:      "core.identity",
			ReadsOnce: true,
			Doc:       "Copies a value, with the tensors in it.",
			Params:    []Param{{Name: "x", Type: AnyType, Required: true, Doc: "with at most 30 lists and maps inside of each other"}},
			Result:    "the value; its tensors are contiguous",
			Example:   Example{[]string{`{"key": "identity", "op": "core.identity", "args": [{"a": [1, true, null]}]}`}, `{"a": [1, true, null]}`},
			plan:      func(c *call) (*Planned, error) { return copyTree(c, c.value("x")) },
		},
		{
			Name:      "core.replicate",
			Processor: true,
			Doc:       "Brings copies of its arguments to the worker that runs it.",
			Details: "The worker copies the inputs into its own memory, also if it could use those of another worker in place. " +
				"The option `workers` of the task says where the copies should be.",
			Variadic:    "xs",
			VariadicDoc: "any values",
			Open:        true,
			OpenDoc:     "any values",
			Result:      "null",
			Example: Example{[]string{
				`{"key": "replicate-x", "op": "array.arange", "args": [1000]}`,
				`{"key": "replicate", "op": "core.replicate", "args": [{"input": "replicate-x"}]}`,
			}, "null"},
			ReadsNoData: true,
			plan: func(*call) (*Planned, error) {
				return scalar(func(context.Context) (any, error) { return nil, nil }), nil
			},
		},
		{
			Name:        "core.list",
			ReadsOnce:   true,
			Doc:         "Makes one list of its arguments.",
			Variadic:    "xs",
			VariadicDoc: "any values, with at most 29 lists and maps inside of each other",
			Result:      "a list with copies of the arguments",
			Example: Example{[]string{
				`{"key": "list-x", "op": "array.arange", "args": [3]}`,
				`{"key": "list", "op": "core.list", "args": [{"input": "list-x"}, "three", 3]}`,
			}, `[[0, 1, 2], "three", 3]`},
			plan: func(c *call) (*Planned, error) { return copyTree(c, slices.Clone(c.rest)) },
		},
		{
			Name:  "core.item",
			Moves: true,
			Doc:   "Selects one element of a list, a tensor or a map.",
			Params: []Param{
				{Name: "x", Type: AnyType, Required: true, Doc: "a list, a map, or a tensor with at least one axis"},
				{Name: "index", Type: AnyType, Required: true, Doc: "of a map: the key. Otherwise an int; a negative one counts from the end"},
			},
			Result: "the element; of a tensor: a tensor without the first axis, of the same dtype",
			Errors: []string{"INVALID_ARGUMENT if there is no such element"},
			Example: Example{[]string{
				`{"key": "item-svd", "op": "array.svd", "args": [[[3, 0], [0, 4]]]}`,
				`{"key": "item", "op": "core.item", "args": [{"input": "item-svd"}, 1]}`,
			}, "[4, 3]"},
			plan: planItem,
		},
	}
}

func planItem(c *call) (*Planned, error) {
	if m, ok := c.value("x").(map[string]any); ok {
		key, ok := c.value("index").(string)
		if !ok {
			return nil, c.bad("index", "expected a string, the key of a map, got %s", describe(c.value("index")))
		}
		v, ok := m[key]
		if !ok {
			return nil, c.bad("index", "no key %q%s", key, suggest(key, slices.Sorted(maps.Keys(m))))
		}
		return copyTree(c, v)
	}
	v, err := c.convert(&Param{Name: "index", Type: IntType}, c.value("index"))
	if err != nil {
		return nil, err
	}
	index := v.(int64)
	switch x := c.value("x").(type) {
	case []any:
		if index, err = wrapIndex(c, index, int64(len(x)), 0); err != nil {
			return nil, err
		}
		return copyTree(c, x[index])
	case *Tensor:
		if x, err = c.tensorOf("x", x); err != nil {
			return nil, err
		}
		if x.NDim() == 0 {
			return nil, c.bad("x", "a tensor without axes has no elements to select")
		}
		if index, err = wrapIndex(c, index, x.Shape[0], 0); err != nil {
			return nil, err
		}
		return copyOf(subtensor(x, 1, index)), nil
	}
	return nil, c.bad("x", "expected a list, a map or a tensor, got %s", describe(c.value("x")))
}

// maxLeaves limits the number of values in one result. Arguments may refer to one input many times,
// so a small message can become a huge result when it is expanded.
const maxLeaves = 8 << 20

// maxLevels limits the nesting depth of lists and maps in one result. A map takes three nested
// messages, and the protobuf decoders of Python and C++ refuse more than 100 levels: a client could
// not read a deeper result.
const maxLevels = 30

// copyTree plans a result that is a copy of v, including its tensors.
func copyTree(c *call, v any) (*Planned, error) {
	var outputs []Output
	var tensors []*Tensor
	var visit func(v any, level int) error
	leaves := 0
	visit = func(v any, level int) error {
		if level > maxLevels {
			return c.bad("", "the result would have more than %d lists and maps inside of each other", maxLevels)
		}
		if leaves++; leaves > maxLeaves {
			return c.bad("", "the result would hold more than %d values: put numbers into tensors", maxLeaves)
		}
		switch v := v.(type) {
		case *Tensor:
			t, err := c.tensorOf("x", v)
			if err != nil {
				return err
			}
			outputs, tensors = append(outputs, Output{t.DType, t.Shape}), append(tensors, t)
		case *Table:
			for _, f := range v.Frames {
				if err := c.checkTensor(f); err != nil {
					return c.bad("x", "%v", err)
				}
				outputs, tensors = append(outputs, Output{f.DType, f.Shape}), append(tensors, f)
			}
		case []any:
			for _, x := range v {
				if err := visit(x, level+1); err != nil {
					return err
				}
			}
		case map[string]any:
			for _, key := range slices.Sorted(maps.Keys(v)) {
				if err := visit(v[key], level+1); err != nil {
					return err
				}
			}
		}
		return nil
	}
	if err := visit(v, 0); err != nil {
		return nil, err
	}
	rebuilt := func(outs []*Tensor) any {
		next := 0
		var rebuild func(v any) any // visits the tensors in the same order as visit
		rebuild = func(v any) any {
			switch v := v.(type) {
			case *Tensor:
				next++
				return outs[next-1]
			case *Table:
				first := next
				next += len(v.Frames)
				return v.in(outs[first:next:next])
			case []any:
				list := make([]any, len(v))
				for i, x := range v {
					list[i] = rebuild(x)
				}
				return list
			case map[string]any:
				m := make(map[string]any, len(v))
				for _, key := range slices.Sorted(maps.Keys(v)) {
					m[key] = rebuild(v[key])
				}
				return m
			}
			return v
		}
		return rebuild(v)
	}
	return &Planned{Outputs: outputs, Work: &Copying{tensors}, Result: rebuilt, run: func(ctx context.Context, outs []*Tensor) (any, error) {
		for i, t := range tensors {
			if err := copyInto(ctx, outs[i], t); err != nil {
				return nil, err
			}
		}
		return rebuilt(outs), nil
	}}, nil
}
