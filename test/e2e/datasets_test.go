package e2e

import (
	"os/exec"
	"reflect"
	"slices"
	"strings"
	"testing"

	millrace "github.com/millrace/millrace/clients/go"
)

// Go, Python and a person with grpcurl read each other's datasets, and none of them needs a library
// of the others for it.
func TestDatasetsAreReadInEveryLanguage(t *testing.T) {
	ctx := soon(t)
	c := shared.dial(t, millrace.WithNamespace("datasets"))
	var parts []any
	for i := 1; i <= 3; i++ {
		f, err := c.Submit(ctx, millrace.Native("array.map"), millrace.Args("x0*x0", i))
		if err != nil {
			t.Fatal(err)
		}
		parts = append(parts, f)
	}
	axes, err := millrace.FromSlice([]float64{0.5, 1.5}, 2)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Publish(ctx, "of-go", map[string]any{"name": "squares", "none": nil, "axes": axes, "parts": parts}, false); err != nil {
		t.Fatal(err)
	}

	cmd := exec.CommandContext(ctx, python(), "testdata/datasets.py")
	cmd.Env = environment(millrace.EnvSchedulerFile + "=" + shared.file)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("python: %v\n%s", err, out)
	}

	got, err := c.Dataset(ctx, "of-python")
	if err != nil {
		t.Fatal(err)
	}
	fields, _ := got.(map[string]any)
	if want := []any{true, int64(2), 0.5, 1i, "x", []byte("y")}; !reflect.DeepEqual(fields["a"], want) {
		t.Errorf("a is %#v, not %#v", fields["a"], want)
	}
	small, _ := fields["small"].(millrace.Array)
	if elements, err := millrace.Slice[int32](small); err != nil || !slices.Equal(elements, []int32{0, 1, 2}) {
		t.Errorf("small is %v, %v", elements, err)
	}
	list, _ := fields["z"].([]any)
	if len(list) != 3 {
		t.Fatalf("z is %#v", fields["z"])
	}
	if n, err := millrace.Get[int](ctx, list[2].(*millrace.Future)); err != nil || n != 9 {
		t.Errorf("the last part is %d, %v", n, err)
	}

	rpc(t, "PublishDataset", `{"namespace": "datasets", "name": "by-hand", "keys": ["`+list[0].(*millrace.Future).Key()+`"]}`)
	shown := rpc(t, "GetDataset", `{"namespace": "datasets", "name": "of-python"}`)
	keys, _ := dig(shown, "dataset", "keys").([]any)
	second := dig(shown, "dataset", "value", "mapValue", "fields", "z", "listValue", "values", 1, "input")
	if len(keys) != 3 || second != 1.0 {
		t.Errorf("grpcurl shows %v", shown)
	}
	handmade, err := c.Dataset(ctx, "by-hand")
	if one, _ := handmade.([]any); err != nil || len(one) != 1 || one[0].(*millrace.Future).TaskID() != list[0].(*millrace.Future).TaskID() {
		t.Errorf("the dataset of grpcurl is %#v, %v", handmade, err)
	}
	listed, errs, code := shared.command(t, "", "get", "datasets", "--namespace", "datasets")
	if fields := strings.Fields(listed); code != 0 || !slices.Contains(fields, "of-python") || strings.Count(listed, "\n") != 4 {
		t.Errorf("get datasets: exit code %d\n%s%s", code, listed, errs)
	}
	described, errs, code := shared.command(t, "", "describe", "dataset", "of-python", "--namespace", "datasets")
	for _, part := range list {
		if code != 0 || !strings.Contains(described, part.(*millrace.Future).Key()) {
			t.Errorf("describe dataset: exit code %d\n%s%s", code, described, errs)
		}
	}
	for _, name := range []string{"of-go", "of-python", "by-hand"} {
		if err := c.Unpublish(ctx, name); err != nil {
			t.Error(err)
		}
	}
}
