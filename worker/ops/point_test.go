package ops

import (
	"strings"
	"testing"
)

func TestPointsTellWrongInputs(t *testing.T) {
	point := func(args ...any) (*Tensor, error) {
		op, err := NewRegistry().Lookup("bench.point")
		if err != nil {
			t.Fatal(err)
		}
		out, err := op.Run(t.Context(), Args{Positional: args}, NewTensor)
		if err != nil {
			return nil, err
		}
		return out.(*Tensor), nil
	}
	a, err := point(int64(3), int64(1), []any{}, int64(10), int64(48))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := point(int64(4), int64(2), []any{int64(1)}, int64(0), int64(16), a); err != nil {
		t.Error(err)
	}
	for _, c := range []struct {
		want string
		args []any
	}{
		{"point 1 of step 3; it should be point 2 of step 3", []any{int64(4), int64(2), []any{int64(2)}, int64(0), int64(16), a}},
		{"it should be point 1 of step 4", []any{int64(5), int64(2), []any{int64(1)}, int64(0), int64(16), a}},
		{"multiple of 16", []any{int64(4), int64(2), []any{int64(1)}, int64(0), int64(17), a}},
		{"2 points for 1 inputs", []any{int64(4), int64(2), []any{int64(1), int64(2)}, int64(0), int64(16), a}},
	} {
		if _, err := point(c.args...); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got %v, want %q", err, c.want)
		}
	}
	a.Data[47] ^= 1
	if _, err := point(int64(4), int64(2), []any{int64(1)}, int64(0), int64(16), a); err == nil {
		t.Error("the last byte may be anything")
	}
}
