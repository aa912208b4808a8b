package millrace

import (
	"errors"
	"reflect"
	"strings"
	"testing"
)

func TestADatasetIsReadByAnotherClient(t *testing.T) {
	c, reader := dialCluster(t), dialCluster(t)
	ctx := soon(t)
	array, err := FromSlice([]float64{1, 2, 3}, 3)
	if err != nil {
		t.Fatal(err)
	}
	a, b := submitTo(t, c, "core.identity", Args(1)), submitTo(t, c, "core.identity", Args(2), WithKey("b"))
	value := map[string]any{"parts": []any{a, b, Key("b"), a}, "meta": map[string]any{"axes": array, "name": "x", "none": nil}}
	if err := c.Publish(ctx, "d", value, false); err != nil {
		t.Fatal(err)
	}
	if err := c.Publish(ctx, "d", 1, false); !errors.Is(err, ErrDatasetExists) {
		t.Errorf("a second dataset of that name: %v", err)
	}
	c.Release(a, b) // the dataset keeps the results

	got, err := reader.Dataset(ctx, "d")
	if err != nil {
		t.Fatal(err)
	}
	fields, ok := got.(map[string]any)
	if !ok || !reflect.DeepEqual(fields["meta"], value["meta"]) {
		t.Fatalf("the dataset is %#v", got)
	}
	parts, ok := fields["parts"].([]any)
	if !ok || len(parts) != 4 {
		t.Fatalf("the parts are %#v", fields["parts"])
	}
	for i, want := range []int{1, 2, 2, 1} {
		f, ok := parts[i].(*Future)
		if !ok {
			t.Fatalf("part %d is %#v", i, parts[i])
		}
		if n, err := Get[int](ctx, f); err != nil || n != want {
			t.Errorf("part %d is %d, %v", i, n, err)
		}
	}
	listed, err := reader.Datasets(ctx)
	if err != nil || len(listed) != 1 || listed[0].GetKeyCount() != 2 || listed[0].GetValueBytes() == 0 || listed[0].GetValue() != nil {
		t.Errorf("listed: %v, %v", listed, err)
	}

	if err := c.Publish(ctx, "d", []any{}, true); err != nil {
		t.Fatal(err)
	}
	if got, err := reader.Dataset(ctx, "d"); err != nil || !reflect.DeepEqual(got, []any{}) {
		t.Errorf("replaced by an empty list: %#v, %v", got, err)
	}
	if err := c.Unpublish(ctx, "d"); err != nil {
		t.Fatal(err)
	}
	if _, err := reader.Dataset(ctx, "d"); !errors.Is(err, ErrUnknownDataset) {
		t.Errorf("after Unpublish: %v", err)
	}
}

func TestAValueThatCannotBePublishedIsNamed(t *testing.T) {
	c, other := dialCluster(t), dialCluster(t)
	ctx := soon(t)
	for name, test := range map[string]struct {
		value any
		want  string
	}{
		"another type":            {map[string]any{"a": []any{1, struct{}{}}}, `element "a": element 1: a Go value of type struct {}`},
		"a long text":             {strings.Repeat("x", maxDatasetBytes), "the limit is 1.0 MB"},
		"another client's future": {submitTo(t, other, "bench.noop", Args()), "another client"},
		"an unknown key":          {Key("nothing"), "nothing"},
	} {
		if err := c.Publish(ctx, "d", test.value, false); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, without %q", name, err, test.want)
		}
	}
}
