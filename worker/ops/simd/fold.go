package simd

// Fold has the kernels of a reduction; see struct simd_fold for what they compute. They are exact.
// The zero Fold stands for "there are none".
type Fold struct{ runs, lanes uintptr }

type foldKey struct {
	function string
	from, to Type
}

// Exists reports whether there are such kernels.
func (f Fold) Exists() bool { return f.runs != 0 }

// Fold returns the kernels that fold elements of the type from into accumulators of the type to.
// The functions are sum, prod, min, max, any, all and count.
func (s *Set) Fold(function string, from, to Type) Fold {
	if s == nil {
		return Fold{}
	}
	return s.folds[foldKey{function, from, to}]
}
