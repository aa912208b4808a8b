// Package opstest is Test support: it runs the examples of operations on any device.
package opstest

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"testing"

	"github.com/millrace/millrace/worker/ops"
)

// Call is one task of an example, with the results of the tasks before as arguments.
type Call struct {
	Key, Op string
	Args    ops.Args
	// Attempt is the last one that the options of the task allow.
	Attempt int
	// Last: it is the last task of the example, whose operation the example is for.
	Last bool
}

// Run calls the tasks of an example in their order and returns the result of the last one.
func Run(tb testing.TB, e ops.Example, call func(Call) any) (result any) {
	tb.Helper()
	made := map[string]any{}
	for i, text := range e.Tasks {
		var task struct {
			Key     string         `json:"key"`
			Op      string         `json:"op"`
			Args    []any          `json:"args"`
			Kwargs  map[string]any `json:"kwargs"`
			Options struct {
				MaxRetries int `json:"maxRetries"`
			} `json:"options"`
		}
		if err := json.Unmarshal([]byte(text), &task); err != nil {
			tb.Fatalf("%s: %v", text, err)
		}
		c := Call{Key: task.Key, Op: task.Op, Attempt: 1 + task.Options.MaxRetries, Last: i == len(e.Tasks)-1}
		for _, v := range task.Args {
			c.Args.Positional = append(c.Args.Positional, value(v, made))
		}
		for name, v := range task.Kwargs {
			if c.Args.Named == nil {
				c.Args.Named = map[string]any{}
			}
			c.Args.Named[name] = value(v, made)
		}
		result = call(c)
		made[task.Key] = result
	}
	return result
}

// value converts JSON as `millrace submit` does.
func value(v any, made map[string]any) any {
	switch v := v.(type) {
	case float64:
		if v == math.Trunc(v) && math.Abs(v) < 1<<53 {
			return int64(v)
		}
	case []any:
		out := make([]any, len(v))
		for i, x := range v {
			out[i] = value(x, made)
		}
		return out
	case map[string]any:
		if key, ok := v["input"].(string); ok && len(v) == 1 {
			return made[key]
		}
		out := map[string]any{}
		for key, x := range v {
			out[key] = value(x, made)
		}
		return out
	}
	return v
}

// Diff describes how a result differs from the one that an example states, by more than rounding;
// it is empty if they agree. Tensors are in host memory.
func Diff(tb testing.TB, got any, want string) string {
	tb.Helper()
	var parsed any
	if err := json.Unmarshal([]byte(want), &parsed); err != nil {
		return fmt.Sprintf("%s: %v", want, err)
	}
	if got := plain(tb, got); !same(got, parsed) {
		text, err := json.Marshal(got)
		if err != nil {
			tb.Fatal(err)
		}
		return fmt.Sprintf("got %s, want %s", text, want)
	}
	return ""
}

// plain converts a result to what JSON has for it.
func plain(tb testing.TB, v any) any {
	tb.Helper()
	switch v := v.(type) {
	case *ops.Tensor:
		if v.NDim() == 0 {
			item, err := v.Item()
			if err != nil {
				tb.Fatal(err)
			}
			return plain(tb, item)
		}
		out := make([]any, v.Shape[0])
		for i := range out {
			part := *v
			part.Offset += int64(i) * v.Strides[0]
			part.Shape, part.Strides = v.Shape[1:], v.Strides[1:]
			out[i] = plain(tb, &part)
		}
		return out
	case *ops.Table:
		columns := []any{}
		for _, c := range v.Columns {
			columns = append(columns, map[string]any{"name": c.Name, "type": c.Type})
		}
		return map[string]any{"table": v.TypeName, "rows": float64(v.Layout.Rows), "columns": columns, "columnCount": float64(v.ColumnCount)}
	case []any:
		out := make([]any, len(v))
		for i, x := range v {
			out[i] = plain(tb, x)
		}
		return out
	case map[string]any:
		out := map[string]any{}
		for key, x := range v {
			out[key] = plain(tb, x)
		}
		return out
	case int64:
		if v < -1<<53 || v > 1<<53 {
			return strconv.FormatInt(v, 10) // as in the answer of GetResult
		}
		return float64(v)
	}
	return v
}

func same(a, b any) bool {
	switch a := a.(type) {
	case float64:
		b, ok := b.(float64)
		return ok && math.Abs(a-b) <= 1e-12*(1+math.Abs(b))
	case []any:
		b, ok := b.([]any)
		if !ok || len(a) != len(b) {
			return false
		}
		for i := range a {
			if !same(a[i], b[i]) {
				return false
			}
		}
		return true
	case map[string]any:
		b, ok := b.(map[string]any)
		if !ok || len(a) != len(b) {
			return false
		}
		for key, x := range a {
			if y, ok := b[key]; !ok || !same(x, y) {
				return false
			}
		}
		return true
	}
	return a == b
}
