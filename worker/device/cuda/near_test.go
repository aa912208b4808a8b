//go:build cgo && linux

package cuda

import (
	"math"
	"math/cmplx"
)

func near(a, b any, tolerance float64) bool {
	switch x := a.(type) {
	case float64:
		return nearFloats(x, b.(float64), tolerance)
	case complex128:
		y := b.(complex128)
		odd := func(z complex128) bool { return cmplx.IsInf(z) || real(z) != real(z) || imag(z) != imag(z) }
		return nearFloats(real(x), real(y), tolerance) && nearFloats(imag(x), imag(y), tolerance) ||
			cmplx.Abs(x-y) <= tolerance*(1+cmplx.Abs(y)) ||
			// It is not defined which parts of an infinite or undefined complex number are NaN.
			odd(x) && odd(y)
	}
	return a == b
}

func nearFloats(a, b, tolerance float64) bool {
	return a == b || a != a && b != b || math.Abs(a-b) <= tolerance*(1+math.Abs(b))
}
