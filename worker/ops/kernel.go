package ops

import (
	"unsafe"
)

// blockLen is the number of elements that a kernel computes at once. The blocks of a few registers
// fit into the first-level cache.
const blockLen = 1024

// regs points to a destination and up to three operands, each a contiguous block of n elements. The
// destination may be the same block as an operand of the same type.
type regs [4]unsafe.Pointer

// kernel computes one block. Only powers of integers return an error.
type kernel func(n int, r regs) error

type (
	integer  interface{ uint8 | int32 | int64 }
	floating interface{ float32 | float64 }
	realNum  interface{ integer | floating }
	complex_ interface{ complex64 | complex128 }
	number   interface{ realNum | complex_ }
)

func block[T any](p unsafe.Pointer, n int) []T { return unsafe.Slice((*T)(p), n) }

func unaryKernel[D, A any](loop func(d []D, a []A)) kernel {
	return func(n int, r regs) error {
		loop(block[D](r[0], n), block[A](r[1], n))
		return nil
	}
}

func binaryKernel[D, A any](loop func(d []D, a, b []A)) kernel {
	return func(n int, r regs) error {
		loop(block[D](r[0], n), block[A](r[1], n), block[A](r[2], n))
		return nil
	}
}

// each1 and each2 make a kernel from a function of single elements. They are for functions that
// cost more than the indirect call.
func each1[D, A any](f func(A) D) kernel {
	return unaryKernel(func(d []D, a []A) {
		for i, x := range a {
			d[i] = f(x)
		}
	})
}

func each2[D, A any](f func(a, b A) D) kernel {
	return binaryKernel(func(d []D, a, b []A) {
		b = b[:len(a)]
		for i, x := range a {
			d[i] = f(x, b[i])
		}
	})
}

func add[T number](d, a, b []T) {
	a, b = a[:len(d)], b[:len(d)]
	for i := range d {
		d[i] = a[i] + b[i]
	}
}

func subtract[T number](d, a, b []T) {
	a, b = a[:len(d)], b[:len(d)]
	for i := range d {
		d[i] = a[i] - b[i]
	}
}

func multiply[T number](d, a, b []T) {
	a, b = a[:len(d)], b[:len(d)]
	for i := range d {
		d[i] = a[i] * b[i]
	}
}

func divide[T floating](d, a, b []T) {
	a, b = a[:len(d)], b[:len(d)]
	for i := range d {
		d[i] = a[i] / b[i]
	}
}

func negate[T number](d, a []T) {
	a = a[:len(d)]
	for i := range d {
		d[i] = -a[i]
	}
}

func square[T number](d, a []T) {
	a = a[:len(d)]
	for i := range d {
		d[i] = a[i] * a[i]
	}
}

func copyBlock[T any](d, a []T) { copy(d, a) }

func zero[D, A any](d []D, _ []A) { clear(d) }

func ones[A any](d []uint8, _ []A) {
	for i := range d {
		d[i] = 1
	}
}

func truth(b bool) uint8 {
	if b {
		return 1
	}
	return 0
}

func equal[T number](d []uint8, a, b []T) {
	a, b = a[:len(d)], b[:len(d)]
	for i := range d {
		d[i] = truth(a[i] == b[i])
	}
}

func unequal[T number](d []uint8, a, b []T) {
	a, b = a[:len(d)], b[:len(d)]
	for i := range d {
		d[i] = truth(a[i] != b[i])
	}
}

func less[T realNum](d []uint8, a, b []T) {
	a, b = a[:len(d)], b[:len(d)]
	for i := range d {
		d[i] = truth(a[i] < b[i])
	}
}

func lessEqual[T realNum](d []uint8, a, b []T) {
	a, b = a[:len(d)], b[:len(d)]
	for i := range d {
		d[i] = truth(a[i] <= b[i])
	}
}

func swapped[D, A any](loop func(d []D, a, b []A)) func(d []D, a, b []A) {
	return func(d []D, a, b []A) { loop(d, b, a) }
}

// minimum and maximum return NaN if either operand is NaN, and the first operand's NaN if both are.
func minimum[T realNum](d, a, b []T) {
	a, b = a[:len(d)], b[:len(d)]
	for i, x := range a {
		if x <= b[i] || x != x {
			d[i] = x
		} else {
			d[i] = b[i]
		}
	}
}

func maximum[T realNum](d, a, b []T) {
	a, b = a[:len(d)], b[:len(d)]
	for i, x := range a {
		if x >= b[i] || x != x {
			d[i] = x
		} else {
			d[i] = b[i]
		}
	}
}

func isNaN[T realNum](d []uint8, a []T) {
	for i, x := range a {
		d[i] = truth(x != x)
	}
}

func and[T integer](d, a, b []T) {
	a, b = a[:len(d)], b[:len(d)]
	for i := range d {
		d[i] = a[i] & b[i]
	}
}

func or[T integer](d, a, b []T) {
	a, b = a[:len(d)], b[:len(d)]
	for i := range d {
		d[i] = a[i] | b[i]
	}
}

func xor[T integer](d, a, b []T) {
	a, b = a[:len(d)], b[:len(d)]
	for i := range d {
		d[i] = a[i] ^ b[i]
	}
}

func not[T integer](d, a []T) {
	for i, x := range a {
		d[i] = ^x
	}
}

func choose[T any](n int, r regs) error {
	d, c, a, b := block[T](r[0], n), block[uint8](r[1], n), block[T](r[2], n), block[T](r[3], n)
	for i, yes := range c {
		if yes != 0 {
			d[i] = a[i]
		} else {
			d[i] = b[i]
		}
	}
	return nil
}

// chooseKernel returns the kernel that selects between two values by a bool. It depends only on the
// size of the values.
func chooseKernel(d DType) kernel {
	switch d.Size() {
	case 1:
		return choose[uint8]
	case 4:
		return choose[uint32]
	case 8:
		return choose[uint64]
	}
	return choose[complex128]
}

// slicePointer returns the address of a slice's first element.
func slicePointer[T any](s []T) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(s)) }
