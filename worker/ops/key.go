package ops

import (
	"cmp"
	"math"
	"unsafe"

	"github.com/millrace/millrace/worker/ops/simd"
)

// nan32 and nan64 are the bits of each NaN in a result, on every device.
const (
	nan32 = 0x7fc00000
	nan64 = 0x7ff8000000000001
)

// keyType is the type of the keys of real numbers of 32 or 64 bits. The keys are in the order of
// the numbers. All NaNs have the largest key. A key determines the number's bits, except those of
// NaN.
type keyType interface{ int32 | int64 }

func keyOfFloat32(x float32) int32 {
	if x != x {
		return math.MaxInt32
	}
	b := int32(math.Float32bits(x))
	return b ^ b>>31&math.MaxInt32
}

func keyOfFloat64(x float64) int64 {
	if x != x {
		return math.MaxInt64
	}
	b := int64(math.Float64bits(x))
	return b ^ b>>63&math.MaxInt64
}

func float32OfKey(k int32) float32 {
	if k == math.MaxInt32 {
		return math.Float32frombits(nan32)
	}
	return math.Float32frombits(uint32(k ^ k>>31&math.MaxInt32))
}

func float64OfKey(k int64) float64 {
	if k == math.MaxInt64 {
		return math.Float64frombits(nan64)
	}
	return math.Float64frombits(uint64(k ^ k>>63&math.MaxInt64))
}

// keysOf stores the keys of n numbers, which may lie in the same place. flip is 0, or -1 to invert
// the keys for a descending order. With equalZeros the key of -0.0 is that of 0.0.
func keysOf(dtype DType, n int, keys, from unsafe.Pointer, equalZeros bool, flip int64) {
	if set := simd.Best(); set.Sorts() {
		set.Keys(simd.Type(dtype), n, keys, from, equalZeros, flip != 0)
		return
	}
	zero := math.Copysign(0, -1) // x + -0.0 is x, x + 0.0 is 0.0 if x is -0.0
	if equalZeros {
		zero = 0
	}
	switch dtype {
	case Int32:
		flipKeys(block[int32](keys, n), block[int32](from, n), int32(flip))
	case Int64:
		flipKeys(block[int64](keys, n), block[int64](from, n), flip)
	case Float32:
		for i, x := range block[float32](from, n) {
			block[int32](keys, n)[i] = keyOfFloat32(x+float32(zero)) ^ int32(flip)
		}
	default:
		for i, x := range block[float64](from, n) {
			block[int64](keys, n)[i] = keyOfFloat64(x+zero) ^ flip
		}
	}
}

// valuesOf is the reverse of keysOf.
func valuesOf(dtype DType, n int, to, keys unsafe.Pointer, flip int64) {
	if set := simd.Best(); set.Sorts() {
		set.Values(simd.Type(dtype), n, to, keys, flip != 0)
		return
	}
	switch dtype {
	case Int32:
		flipKeys(block[int32](to, n), block[int32](keys, n), int32(flip))
	case Int64:
		flipKeys(block[int64](to, n), block[int64](keys, n), flip)
	case Float32:
		for i, k := range block[int32](keys, n) {
			block[float32](to, n)[i] = float32OfKey(k ^ int32(flip))
		}
	default:
		for i, k := range block[int64](keys, n) {
			block[float64](to, n)[i] = float64OfKey(k ^ flip)
		}
	}
}

func flipKeys[K keyType](to, from []K, flip K) {
	for i, k := range from {
		to[i] = k ^ flip
	}
}

// pairKey is the key of a complex number: the keys of its parts. Its order is lexicographic.
type pairKey [2]int64

func (a pairKey) compare(b pairKey) int {
	if a[0] != b[0] {
		return cmp.Compare(a[0], b[0])
	}
	return cmp.Compare(a[1], b[1])
}

func keyOfComplex(x complex128) pairKey { return pairKey{keyOfFloat64(real(x)), keyOfFloat64(imag(x))} }

func (a pairKey) value() complex128 { return complex(float64OfKey(a[0]), float64OfKey(a[1])) }

// undefined counts the parts that are NaN: 1 for the imaginary part, 2 for the real part.
func (a pairKey) undefined() (n int) {
	if a[0] == math.MaxInt64 {
		n = 2
	}
	if a[1] == math.MaxInt64 {
		n++
	}
	return n
}
