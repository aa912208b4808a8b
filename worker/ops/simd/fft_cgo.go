//go:build cgo && linux

package simd

/*
#cgo noescape simd_transform
#cgo nocallback simd_transform
#cgo noescape simd_gather
#cgo nocallback simd_gather
#cgo noescape simd_scatter
#cgo nocallback simd_scatter
#cgo noescape simd_turn
#cgo nocallback simd_turn
#cgo noescape simd_multiply
#cgo nocallback simd_multiply
#cgo noescape simd_unfold
#cgo nocallback simd_unfold
#cgo noescape simd_fold
#cgo nocallback simd_fold
#include "simd_fft.h"
*/
import "C"

import "unsafe"

// fft has the functions of one precision.
type fft struct{ table *C.struct_simd_fft }

// FFT returns the steps in double precision if wide is set, and in single precision otherwise.
func (s *Set) FFT(wide bool) FFT { return fft{C.simd_fft(C.int(s.number), flag(wide))} }

func lines(g *Lines) *C.struct_simd_lines { return (*C.struct_simd_lines)(unsafe.Pointer(g)) }

var _ [unsafe.Sizeof(Lines{})]byte = [C.sizeof_struct_simd_lines]byte{}

func (f fft) Lanes() int { return int(f.table.lanes) }

func (f fft) Transform(x, y unsafe.Pointer, radices []int32, table unsafe.Pointer, n int) unsafe.Pointer {
	if C.simd_transform(f.table, x, y, (*C.int32_t)(unsafe.SliceData(radices)), table, C.int64_t(n)) != 0 {
		return y
	}
	return x
}

func (f fft) Gather(to, from unsafe.Pointer, g *Lines, n int) {
	C.simd_gather(f.table, to, from, lines(g), C.int64_t(n))
}

func (f fft) Scatter(to, from unsafe.Pointer, g *Lines, factor float64) {
	C.simd_scatter(f.table, to, from, lines(g), C.double(factor))
}

func (f fft) Turn(x, coarse, fine unsafe.Pointer, n int) {
	C.simd_turn(f.table, x, coarse, fine, C.int64_t(n))
}

func (f fft) Multiply(to, a, b unsafe.Pointer, n int, conjugate bool) {
	C.simd_multiply(f.table, to, a, b, C.int64_t(n), flag(conjugate))
}

func (f fft) Unfold(x, roots unsafe.Pointer, h int, single bool) {
	C.simd_unfold(f.table, x, roots, C.int64_t(h), flag(single))
}

func (f fft) Fold(x, roots unsafe.Pointer, h int, single bool) {
	C.simd_fold(f.table, x, roots, C.int64_t(h), flag(single))
}
