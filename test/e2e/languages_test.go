package e2e

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"slices"
	"testing"

	millrace "github.com/millrace/millrace/clients/go"
)

// answers holds the results that each language computes on the cluster.
type answers struct {
	Mean     float64   `json:"mean"`
	Deviate  float64   `json:"deviate"`
	Comb     int       `json:"comb"`
	Random   []float64 `json:"random"`
	Product  []float64 `json:"product"`
	Singular []float64 `json:"singular"`
	Sum      float64   `json:"sum"`
	Shared   float64   `json:"shared"`
}

// TestGoAndPythonGetTheSameNumbers: two programs call the same functions by import path and the
// same native ops.
func TestGoAndPythonGetTheSameNumbers(t *testing.T) {
	ctx := soon(t)
	c := shared.dial(t, millrace.WithNamespace("two-languages"))
	data := []float64{1.5, 2.25, -3, 8.125, 0.1}
	submit := func(op millrace.Op, args millrace.Arguments, options ...millrace.TaskOption) *millrace.Future {
		t.Helper()
		f, err := c.Submit(ctx, op, args, options...)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	random := submit(millrace.Native("array.random"), millrace.Args([]int{6, 4}).With("seed", 42), millrace.WithKey("shared-random"))
	product := submit(millrace.Native("array.matmul"), millrace.Args(submit(millrace.Native("array.transpose"), millrace.Args(random)), random))
	sum := submit(millrace.Native("array.reduce"), millrace.Args(product).With("op", "sum"))
	var ours answers
	var err error
	get := func(into *float64, f *millrace.Future) {
		t.Helper()
		if *into, err = millrace.Get[float64](ctx, f); err != nil {
			t.Fatal(err)
		}
	}
	get(&ours.Mean, submit(millrace.Python("statistics:fmean"), millrace.Args(data)))
	get(&ours.Deviate, submit(millrace.Python("statistics:pstdev"), millrace.Args(data)))
	get(&ours.Sum, sum)
	// A Python function called with the result of a native op.
	get(&ours.Shared, submit(millrace.Python("numpy:linalg.norm"), millrace.Args(random)))
	if ours.Comb, err = millrace.Get[int](ctx, submit(millrace.Python("math:comb"), millrace.Args(40, 20))); err != nil {
		t.Fatal(err)
	}
	flat := func(f *millrace.Future) []float64 {
		t.Helper()
		a, err := f.Array(ctx)
		if err != nil {
			t.Fatal(err)
		}
		v, err := millrace.Slice[float64](a)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	ours.Random, ours.Product = flat(random), flat(product)
	svd, err := submit(millrace.Native("array.svd"), millrace.Args(random)).Value(ctx)
	if err != nil {
		t.Fatal(err)
	}
	parts, ok := svd.([]any)
	if !ok || len(parts) != 3 {
		t.Fatalf("svd is %T", svd)
	}
	singular, ok := parts[1].(millrace.Array)
	if !ok {
		t.Fatalf("singular values are %T", parts[1])
	}
	if ours.Singular, err = millrace.Slice[float64](singular); err != nil {
		t.Fatal(err)
	}

	cmd := exec.CommandContext(ctx, python(), "testdata/same_numbers.py")
	cmd.Env = environment(millrace.EnvSchedulerFile + "=" + shared.file)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("python: %v\n%s", err, errs.String())
	}
	var theirs answers
	if err := json.Unmarshal(out.Bytes(), &theirs); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	if ours.Mean != theirs.Mean || ours.Deviate != theirs.Deviate || ours.Comb != theirs.Comb || ours.Sum != theirs.Sum || ours.Shared != theirs.Shared {
		t.Errorf("Go has %+v,\nPython  %+v", ours, theirs)
	}
	for name, pair := range map[string][2][]float64{
		"random": {ours.Random, theirs.Random}, "product": {ours.Product, theirs.Product}, "singular": {ours.Singular, theirs.Singular},
	} {
		if !slices.Equal(pair[0], pair[1]) {
			t.Errorf("%s: Go has %v, Python %v", name, pair[0], pair[1])
		}
	}
	if ours.Comb != 137846528820 {
		t.Errorf("comb(40, 20) = %d", ours.Comb)
	}
}
