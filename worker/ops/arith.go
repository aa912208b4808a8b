package ops

import (
	"errors"
	"math"
	"math/cmplx"
)

var errNegativePower = errors.New("integers to negative integer powers are not allowed: make one of them a float")

// kernelFor returns the kernel of a function for operands of one type, or nil if the function is
// not defined for that type.
func kernelFor(name string, work DType) kernel {
	if name == "where" {
		return chooseKernel(work)
	}
	switch work {
	case Bool:
		return truthKernel(name)
	case Uint8:
		return integerKernel[uint8](name)
	case Int32:
		return integerKernel[int32](name)
	case Int64:
		return integerKernel[int64](name)
	case Float32:
		return floatKernel[float32](name)
	case Float64:
		return floatKernel[float64](name)
	case Complex64:
		return complexKernel[complex64, float32](name)
	default:
		return complexKernel[complex128, float64](name)
	}
}

// truthKernel returns the kernels for bools, which are bytes of 0 and 1.
func truthKernel(name string) kernel {
	switch name {
	case "+", "maximum":
		return binaryKernel(or[uint8])
	case "*", "minimum":
		return binaryKernel(and[uint8])
	case "~":
		return each1(func(x uint8) uint8 { return x ^ 1 })
	case "-", "neg", "sign", "//", "%", "**", "square", "round":
		return nil
	}
	return integerKernel[uint8](name)
}

// numberKernel returns the kernels that are the same for all number types.
func numberKernel[T number](name string) kernel {
	switch name {
	case "+":
		return binaryKernel(add[T])
	case "-":
		return binaryKernel(subtract[T])
	case "*":
		return binaryKernel(multiply[T])
	case "neg":
		return unaryKernel(negate[T])
	case "square":
		return unaryKernel(square[T])
	case "copy":
		return unaryKernel(copyBlock[T])
	case "==":
		return binaryKernel(equal[T])
	case "!=":
		return binaryKernel(unequal[T])
	}
	return nil
}

func realKernel[T realNum](name string) kernel {
	switch name {
	case "<":
		return binaryKernel(less[T])
	case "<=":
		return binaryKernel(lessEqual[T])
	case ">":
		return binaryKernel(swapped(less[T]))
	case ">=":
		return binaryKernel(swapped(lessEqual[T]))
	case "minimum":
		return binaryKernel(minimum[T])
	case "maximum":
		return binaryKernel(maximum[T])
	case "isnan":
		return unaryKernel(isNaN[T])
	case "conj", "real":
		return unaryKernel(copyBlock[T])
	case "imag":
		return unaryKernel(zero[T, T])
	}
	return numberKernel[T](name)
}

func integerKernel[T integer](name string) kernel {
	switch name {
	case "&":
		return binaryKernel(and[T])
	case "|":
		return binaryKernel(or[T])
	case "^":
		return binaryKernel(xor[T])
	case "~":
		return unaryKernel(not[T])
	case "//":
		return each2(floorDivide[T])
	case "%":
		return each2(modulo[T])
	case "**":
		return func(n int, r regs) error {
			d, a, b := block[T](r[0], n), block[T](r[1], n), block[T](r[2], n)
			for i, x := range a {
				if b[i] < 0 {
					return errNegativePower
				}
				d[i] = power(x, b[i])
			}
			return nil
		}
	case "abs":
		return each1(func(x T) T {
			if x < 0 {
				return -x
			}
			return x
		})
	case "sign":
		return each1(sign[T])
	case "floor", "ceil", "trunc", "round":
		return unaryKernel(copyBlock[T])
	case "isfinite":
		return unaryKernel(ones[T])
	case "isinf":
		return unaryKernel(zero[uint8, T])
	}
	return realKernel[T](name)
}

// floorDivide rounds towards minus infinity. Division by zero gives zero.
func floorDivide[T integer](a, b T) T {
	if b == 0 {
		return 0
	}
	q := a / b
	if a%b != 0 && (a < 0) != (b < 0) {
		q--
	}
	return q
}

// modulo returns a remainder with the sign of the divisor. A zero divisor gives zero.
func modulo[T integer](a, b T) T {
	if b == 0 {
		return 0
	}
	m := a % b
	if m != 0 && (m < 0) != (b < 0) {
		m += b
	}
	return m
}

func power[T integer](a, b T) T {
	result := T(1)
	for ; b > 0; b >>= 1 {
		if b&1 != 0 {
			result *= a
		}
		a *= a
	}
	return result
}

func sign[T realNum](x T) T {
	switch {
	case x > 0:
		return 1
	case x < 0:
		var one T = 1
		return -one
	}
	return x // zero with its sign, or NaN
}

// floatFunctions compute in float64; float32 values are converted.
var floatFunctions = map[string]func(float64) float64{
	"exp": math.Exp, "exp2": math.Exp2, "expm1": math.Expm1,
	"log": log, "log2": log2, "log10": func(x float64) float64 { return log(x) * (1 / math.Ln10) }, "log1p": math.Log1p,
	"sin": math.Sin, "cos": math.Cos, "tan": math.Tan,
	"arcsin": math.Asin, "arccos": math.Acos, "arctan": math.Atan,
	"sinh": math.Sinh, "cosh": math.Cosh, "tanh": math.Tanh,
	"arcsinh": math.Asinh, "arccosh": math.Acosh, "arctanh": math.Atanh,
	"cbrt": math.Cbrt, "round": math.RoundToEven, "trunc": math.Trunc,
	"floor": math.Floor, "ceil": math.Ceil,
}

// log is math.Log, which is wrong for subnormal numbers on x86-64.
func log(x float64) float64 {
	const normal = 0x1p-1022
	if x > 0 && x < normal {
		return math.Log(x*0x1p54) - 54*math.Ln2
	}
	return math.Log(x)
}

// pow is math.Pow, which is wrong for subnormal numbers as log is.
func pow(x, y float64) float64 {
	const normal = 0x1p-1022
	if x != 0 && math.Abs(x) < normal && math.Abs(y) < 16 { // other powers of them are 0 or infinite
		return math.Pow(x*0x1p54, y) * math.Exp2(-54*y)
	}
	return math.Pow(x, y)
}

// arctan2 is math.Atan2, which returns pi instead of -pi if y/x is too small for a float64.
func arctan2(y, x float64) float64 { return math.Copysign(math.Atan2(y, x), y) }

// log2 is exact at powers of two, also for subnormal numbers.
func log2(x float64) float64 {
	frac, exp := math.Frexp(x)
	if frac == 0.5 {
		return float64(exp - 1)
	}
	return math.Log2(x)
}

func floatKernel[T floating](name string) kernel {
	if f, ok := floatFunctions[name]; ok {
		return each1(func(x T) T { return T(f(float64(x))) })
	}
	switch name {
	case "/":
		return binaryKernel(divide[T])
	case "//":
		return each2(func(a, b T) T { q, _ := divmod(a, b); return q })
	case "%":
		return each2(func(a, b T) T { _, m := divmod(a, b); return m })
	case "**":
		return each2(func(a, b T) T { return T(pow(float64(a), float64(b))) })
	case "arctan2":
		return each2(func(a, b T) T { return T(arctan2(float64(a), float64(b))) })
	case "hypot":
		return each2(func(a, b T) T { return T(math.Hypot(float64(a), float64(b))) })
	case "reciprocal":
		return each1(func(x T) T { return 1 / x })
	case "sqrt":
		return unaryKernel(func(d, a []T) {
			for i, x := range a {
				d[i] = T(math.Sqrt(float64(x)))
			}
		})
	case "abs":
		return unaryKernel(func(d, a []T) {
			for i, x := range a {
				d[i] = T(math.Abs(float64(x)))
			}
		})
	case "sign":
		return each1(sign[T])
	case "isfinite":
		return unaryKernel(func(d []uint8, a []T) {
			for i, x := range a {
				d[i] = truth(x-x == 0)
			}
		})
	case "isinf":
		return each1(func(x T) uint8 { return truth(math.IsInf(float64(x), 0)) })
	case "angle":
		return each1(func(x T) T { return T(math.Atan2(0, float64(x))) })
	}
	return realKernel[T](name)
}

// divmod follows Python: the quotient is rounded down, and the remainder has the divisor's sign.
func divmod[T floating](a, b T) (quotient, rest T) {
	rest = T(math.Mod(float64(a), float64(b)))
	if b == 0 {
		return a / b, rest
	}
	quotient = (a - rest) / b
	switch {
	case rest == 0:
		rest = T(math.Copysign(0, float64(b)))
	case (rest < 0) != (b < 0):
		rest += b
		quotient--
	}
	if quotient == 0 {
		return T(math.Copysign(0, float64(a/b))), rest
	}
	floor := T(math.Floor(float64(quotient)))
	if quotient-floor > 0.5 {
		floor++
	}
	return floor, rest
}

// complexFunctions compute in complex128; complex64 values are converted.
var complexFunctions = map[string]func(complex128) complex128{
	"sqrt": cmplx.Sqrt, "exp": cmplx.Exp, "log": cmplx.Log, "log10": cmplx.Log10,
	"log2": func(z complex128) complex128 { return cmplx.Log(z) * (1 / math.Ln2) },
	"sin":  cmplx.Sin, "cos": cmplx.Cos, "tan": cmplx.Tan,
	"arcsin": cmplx.Asin, "arccos": cmplx.Acos, "arctan": cmplx.Atan,
	"sinh": cmplx.Sinh, "cosh": cmplx.Cosh, "tanh": cmplx.Tanh,
	"arcsinh": cmplx.Asinh, "arccosh": cmplx.Acosh, "arctanh": cmplx.Atanh,
	"conj": cmplx.Conj, "reciprocal": func(z complex128) complex128 { return complexDivide(1, z) },
	"sign": func(z complex128) complex128 {
		if z == 0 {
			return 0
		}
		if math.IsInf(imag(z), 0) != math.IsInf(real(z), 0) { // infinite along one axis only
			if math.IsInf(real(z), 0) {
				return complex(math.Copysign(1, real(z)), 0)
			}
			return complex(0, math.Copysign(1, imag(z)))
		}
		m := cmplx.Abs(z)
		return complex(real(z)/m, imag(z)/m)
	},
}

func complexKernel[T complex_, R floating](name string) kernel {
	if f, ok := complexFunctions[name]; ok {
		return each1(func(z T) T { return T(f(complex128(z))) })
	}
	part := func(f func(complex128) float64) kernel {
		return each1(func(z T) R { return R(f(complex128(z))) })
	}
	test := func(f func(complex128) bool) kernel {
		return each1(func(z T) uint8 { return truth(f(complex128(z))) })
	}
	compare := func(f func(a, b complex128) bool) kernel {
		return each2(func(a, b T) uint8 { return truth(f(complex128(a), complex128(b))) })
	}
	switch name {
	case "/":
		return each2(func(a, b T) T { return T(complexDivide(complex128(a), complex128(b))) })
	case "**":
		return each2(func(a, b T) T { return T(complexPower(complex128(a), complex128(b))) })
	case "abs":
		return part(cmplx.Abs)
	case "angle":
		return part(cmplx.Phase)
	case "real":
		return part(func(z complex128) float64 { return real(z) })
	case "imag":
		return part(func(z complex128) float64 { return imag(z) })
	case "isnan":
		return test(complexNaN)
	case "isinf":
		return test(cmplx.IsInf)
	case "isfinite":
		return test(func(z complex128) bool { return !cmplx.IsInf(z) && !complexNaN(z) })
	case "<":
		return compare(complexLess)
	case "<=":
		return compare(complexLessEqual)
	case ">":
		return compare(func(a, b complex128) bool { return complexLess(b, a) })
	case ">=":
		return compare(func(a, b complex128) bool { return complexLessEqual(b, a) })
	case "minimum":
		return each2(complexMinimum[T])
	case "maximum":
		return each2(complexMaximum[T])
	}
	return numberKernel[T](name)
}

func complexNaN(z complex128) bool { return real(z) != real(z) || imag(z) != imag(z) }

// Complex numbers are ordered by their real part, then by their imaginary part.

func complexLess(a, b complex128) bool {
	return real(a) < real(b) || real(a) == real(b) && imag(a) < imag(b)
}

func complexLessEqual(a, b complex128) bool {
	return real(a) < real(b) || real(a) == real(b) && imag(a) <= imag(b)
}

func complexMinimum[T complex_](a, b T) T {
	if complexLessEqual(complex128(a), complex128(b)) || complexNaN(complex128(a)) {
		return a
	}
	return b
}

func complexMaximum[T complex_](a, b T) T {
	if complexLessEqual(complex128(b), complex128(a)) || complexNaN(complex128(a)) {
		return a
	}
	return b
}

// complexDivide uses Smith's method, as NumPy does: its intermediate results do not overflow.
func complexDivide(a, b complex128) complex128 {
	re, im := real(b), imag(b)
	switch {
	case re == 0 && im == 0:
		return complex(real(a)/math.Abs(re), imag(a)/math.Abs(re))
	case math.Abs(re) >= math.Abs(im):
		ratio := im / re
		scale := 1 / (re + im*ratio)
		return complex((real(a)+imag(a)*ratio)*scale, (imag(a)-real(a)*ratio)*scale)
	default:
		ratio := re / im
		scale := 1 / (im + re*ratio)
		return complex((real(a)*ratio+imag(a))*scale, (imag(a)*ratio-real(a))*scale)
	}
}

// complexPower uses multiplication for small integer exponents, as NumPy does.
func complexPower(a, b complex128) complex128 {
	n := int(real(b))
	if imag(b) != 0 || real(b) != float64(n) || n <= -100 || n >= 100 {
		return cmplx.Pow(a, b)
	}
	result, factor := complex128(1), a
	for k := max(n, -n); k > 0; k >>= 1 {
		if k&1 != 0 {
			result *= factor
		}
		factor *= factor
	}
	if n < 0 {
		return complexDivide(1, result)
	}
	return result
}
