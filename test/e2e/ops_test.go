package e2e

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
)

// TestExamplesOfOperationsCanBeSubmitted submits the example of each operation as a user would:
// copied from `millrace get ops`, to a cluster where others may have the same keys.
func TestExamplesOfOperationsCanBeSubmitted(t *testing.T) {
	listed, _ := shared.succeed(t, "get", "ops", "--json")["ops"].([]any)
	submitted := 0
	for _, op := range listed {
		name, _ := dig(op, "name").(string)
		if devices, _ := dig(op, "devices").([]any); len(devices) == 1 {
			continue // the cluster has no GPU
		}
		graph, err := json.Marshal(dig(op, "example", "graph"))
		if err != nil {
			t.Fatal(err)
		}
		tasks, _ := dig(op, "example", "graph", "tasks").([]any)
		if len(tasks) == 0 {
			t.Errorf("%s has no example", name)
			continue
		}
		key, _ := dig(tasks, len(tasks)-1, "key").(string)
		if out, errs, code := shared.command(t, string(graph), "submit", "--namespace", "ops", "--wait", "-f", "-"); code != 0 {
			t.Errorf("%s: exit code %d\n%s%s", name, code, out, errs)
			continue
		}
		got := shared.succeed(t, "get", "result", key, "--namespace", "ops", "--json")["json"]
		if want := dig(op, "example", "result"); !alike(got, want) {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
		submitted++
	}
	if submitted < 20 {
		t.Errorf("%d examples were submitted", submitted)
	}
	if text, _, code := shared.command(t, "", "get", "ops", "array.arange", "core.list"); code != 0 || !strings.Contains(text, "core.list(*xs)") {
		t.Errorf("exit code %d\n%s", code, text)
	}
	if _, errs, code := shared.command(t, "", "get", "ops", "array.mamtul"); code != 3 || !strings.Contains(errs, "did you mean array.matmul?") {
		t.Errorf("exit code %d\n%s", code, errs)
	}
}

// alike compares decoded JSON; numbers may differ by rounding.
func alike(a, b any) bool {
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
			if !alike(a[i], b[i]) {
				return false
			}
		}
		return true
	case map[string]any:
		b, ok := b.(map[string]any)
		if !ok || len(a) != len(b) {
			return false
		}
		for k := range a {
			if !alike(a[k], b[k]) {
				return false
			}
		}
		return true
	}
	return a == b
}
