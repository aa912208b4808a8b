package ops

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// TestContractionsAreSumsOfProducts compares random contractions of operands with any strides with
// the sums that define them.
func TestContractionsAreSumsOfProducts(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		const letters = "abcde"
		length := map[byte]int64{}
		for i := range len(letters) {
			length[letters[i]] = rapid.Int64Range(0, 4).Draw(rt, "length")
		}
		dtype := DType(rapid.IntRange(int(Int32), int(Complex128)).Draw(rt, "dtype"))
		var groups []string
		var operands []*Tensor
		args := []any{""}
		for range rapid.IntRange(1, 4).Draw(rt, "operands") {
			group := rapid.StringOfN(rapid.SampledFrom([]rune(letters)), 0, 3, -1).Draw(rt, "group")
			var shape []int64
			for _, l := range []byte(group) {
				shape = append(shape, length[l])
			}
			x := genStrided(rt, "x", dtype, shape)
			groups, operands, args = append(groups, group), append(operands, x), append(args, x)
		}
		used := slices.Compact(slices.Sorted(slices.Values([]byte(strings.Join(groups, "")))))
		output := rapid.Permutation(used).Draw(rt, "order")[:rapid.IntRange(0, len(used)).Draw(rt, "kept")]
		text := strings.Join(groups, ",") + "->" + string(output)
		args[0] = text
		var outShape, all []int64
		for _, l := range output {
			outShape = append(outShape, length[l])
		}
		for _, l := range used {
			all = append(all, length[l])
		}
		eachLinalg(t, func(t *testing.T, env Env) {
			t.Helper()
			got := mustRunWith(t, env, "array.einsum", nil, args...)
			expectAt(rt, got, outShape, func(index []int64) complex128 {
				var sum complex128
				_ = eachIndex(all, func(at []int64) error {
					for i, l := range output {
						if at[slices.Index(used, l)] != index[i] {
							return nil
						}
					}
					product := complex128(1)
					for i, x := range operands {
						var place []int64
						for _, l := range []byte(groups[i]) {
							place = append(place, at[slices.Index(used, l)])
						}
						product *= complexAt(rt, x, place)
					}
					sum += product
					return nil
				})
				return sum
			})
		})
	})
}

func TestErrorsOfSubscriptsNameThePlace(t *testing.T) {
	two, three := tensorOf(t, Float64, []int64{2, 2}), tensorOf(t, Float64, []int64{3, 3})
	for _, c := range []struct {
		text     string
		operands []any
		want     string
	}{
		{"ij,jk->il", []any{two, two}, `"ij,jk->il": at character 9: letter l is in the result, but in no operand`},
		{"ij,jk->ii", []any{two, two}, "at character 9: the result has letter i twice"},
		{"ij, jk", []any{two, three}, "at character 5: letter j has length 3 in operand 1 of shape [3 3], and 2 before"},
		{"i,jk", []any{two, two}, "at character 1: operand 0 of shape [2 2] has 2 axes, and 1 letters"},
		{"ij,...jk", []any{two, two}, ""},
		{"ij,j.k", []any{two, two}, "at character 5: expected three dots"},
		{"......", []any{two}, "at character 4: the same tensor has two ellipses"},
		{"ij->i->j", []any{two}, "at character 6: a second ->"},
		{"ij->i,j", []any{two}, "at character 6: a comma behind ->"},
		{"ij-j", []any{two}, "at character 3: expected ->"},
		{"i1", []any{two}, `at character 2: unexpected '1'`},
		{"ij", []any{two, two}, "has letters for 1 operands, and there are 2"},
		{"...->", []any{two}, "the result has no ellipsis, and that of the operands stands for 2 axes"},
		{strings.Repeat("a", 5000), []any{two}, "5000 bytes are more than the limit of 4096"},
		{strings.Repeat(",", 64), slices.Repeat([]any{two}, 65), "65 operands: at most 64 are supported"},
	} {
		_, err := run(t, "array.einsum", nil, append([]any{c.text}, c.operands...)...)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%.20q: %v, want %q", c.text, err, c.want)
		}
	}
}

// TestManyOperandsContractInAGoodOrder multiplies a chain whose product, in the order of its
// operands or of the sums, takes 10^12 operations and more.
func TestManyOperandsContractInAGoodOrder(t *testing.T) {
	var groups []string
	args := []any{""}
	for i := range 40 {
		shape := []int{1, 1000}
		if i%2 == 1 {
			shape = []int{1000, 1}
		}
		groups, args = append(groups, string(rune('a'+i%26+i/26*('A'-'a')))+string(rune('a'+(i+1)%26+(i+1)/26*('A'-'a')))), append(args, normal(t, "float64", shape...))
	}
	args[0] = strings.Join(groups, ",") + "->" + groups[0][:1] + groups[39][1:]
	if x := mustRun(t, "array.einsum", nil, args...).(*Tensor); !slices.Equal(x.Shape, []int64{1, 1}) {
		t.Errorf("shape %v", x.Shape)
	}
}
