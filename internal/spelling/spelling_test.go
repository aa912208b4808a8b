package spelling

import "testing"

func TestDistance(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{
		{"", "", 0}, {"array.sum", "array.sum", 0}, {"", "abc", 3}, {"array.sun", "array.sum", 1}, {"array.smu", "array.sum", 2},
		{"kitten", "sitting", 3}, {"matmul", "array.matmul", 6},
	} {
		if got, back := Distance(c.a, c.b), Distance(c.b, c.a); got != c.want || back != c.want {
			t.Errorf("%q, %q: %d and %d, want %d", c.a, c.b, got, back, c.want)
		}
	}
}
