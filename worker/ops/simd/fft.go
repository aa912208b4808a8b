package simd

import "unsafe"

// FFT are the steps of discrete Fourier transforms in one precision, for several lanes at once. A
// buffer has, for each complex number, the real parts of all lanes, then the imaginary parts.
type FFT interface {
	// Lanes returns the number of lanes of a buffer.
	Lanes() int
	// Transform transforms n numbers of the buffer x, with y as working memory, and returns the
	// buffer with the result. For each radix, the table has the cosines and the sines of
	// 2*pi*k/radix if the radix is odd, and then the twiddle factors.
	Transform(x, y unsafe.Pointer, radices []int32, table unsafe.Pointer, n int) unsafe.Pointer
	// Gather copies numbers to a buffer of n numbers. The other numbers and lanes are zero.
	Gather(to, from unsafe.Pointer, g *Lines, n int)
	// Scatter copies numbers, times a factor, from a buffer.
	Scatter(to, from unsafe.Pointer, g *Lines, factor float64)
	// Turn multiplies number k of each lane of a buffer by number k of coarse, and by number k of
	// the buffer fine.
	Turn(x, coarse, fine unsafe.Pointer, n int)
	// Multiply sets to to the product of a, or of its conjugate, and b. The complex numbers lie one
	// behind the other.
	Multiply(to, a, b unsafe.Pointer, n int, conjugate bool)
	// Unfold turns the transform of h complex numbers, each made of two real ones, into the first
	// h+1 numbers of the transform of 2h real numbers. x is a buffer; if single is set, the numbers
	// lie one behind the other. roots has exp(-pi*i*k/h) for k to h/2.
	Unfold(x, roots unsafe.Pointer, h int, single bool)
	// Fold is the inverse of Unfold, times 2.
	Fold(x, roots unsafe.Pointer, h int, single bool)
}

// Lines are the places of complex numbers in memory: number k of lane l has its real part k*Step +
// l*Lane bytes behind an address, and its imaginary part Part bytes behind that. If Part is 0 there
// are no imaginary parts. Count is the number of complex numbers in each of Lanes lanes. If Swap is
// not 0, the parts are exchanged. It has the layout of struct simd_lines.
type Lines struct{ Count, Step, Lane, Part, Lanes, Swap int64 }
