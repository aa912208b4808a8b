package ops

import (
	"errors"
	"math"
	"strings"
	"testing"
)

func TestAnIndexOutsideOfTheAxisIsNamed(t *testing.T) {
	x := tensorOf(t, Float64, []int64{2, 3}, 1, 2, 3, 4, 5, 6)
	for _, c := range []struct {
		axis    any
		indices []any
		reason  string
	}{
		{int64(1), list(0, 2, 3, -4), "index 3 at position 2 of indices is outside of axis 1 with length 3"},
		{int64(0), list(-3), "index -3 at position 0 of indices is outside of axis 0 with length 2"},
		{nil, list(5, 6), "index 6 at position 1 of indices is outside of x made flat with length 6"},
	} {
		_, err := run(t, "array.take", nil, x, c.indices, c.axis)
		var ours *Error
		if !errors.As(err, &ours) || ours.Kind != Failed || !strings.Contains(err.Error(), c.reason) {
			t.Errorf("%v along %v: %v", c.indices, c.axis, err)
		}
	}
}

func TestNullIsAnAxisOfItsOwnOnlyIfItIsGiven(t *testing.T) {
	x := tensorOf(t, Float64, []int64{2, 2}, 4, 3, 2, 1)
	for _, c := range []struct {
		named named
		args  []any
		want  string
	}{
		{nil, nil, "float64[2 2] 3 4 1 2"},
		{named{"axis": nil}, nil, "float64[4] 1 2 3 4"},
		{nil, []any{nil}, "float64[4] 1 2 3 4"},
	} {
		if got := show(t, mustRun(t, "array.sort", c.named, append([]any{x}, c.args...)...)); got != c.want {
			t.Errorf("%v %v: %s, want %s", c.named, c.args, got, c.want)
		}
	}
}

func TestSortedNaNsHaveTheSameBitsAndZerosTheirSigns(t *testing.T) {
	x := tensorOf(t, Float64, []int64{5}, 0, 0, 0, 1, 2)
	bits := elements[uint64](x)
	bits[0], bits[1], bits[3], bits[4] = 0xfff0000000000001, 0x7fffffffffffffff, 1<<63, 1<<63
	got := elements[uint64](mustRun(t, "array.sort", nil, x).(*Tensor))
	nan := math.Float64bits(math.NaN())
	for i, want := range []uint64{1 << 63, 1 << 63, 0, nan, nan} {
		if got[i] != want {
			t.Errorf("%d: %x, want %x", i, got[i], want)
		}
	}
	if zero := elements[uint64](mustRun(t, "array.unique", nil, x).(*Tensor))[0]; zero != 0 {
		t.Errorf("the zero of array.unique is %x", zero)
	}
}
