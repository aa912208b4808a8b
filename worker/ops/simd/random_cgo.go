//go:build cgo && linux

package simd

/*
#cgo noescape simd_draw
#cgo nocallback simd_draw
#include "simd_random.h"
*/
import "C"

import "unsafe"

// Draw stores n elements of the words from r.Block on.
func (s *Set) Draw(d Draw, r *Random, n int, to unsafe.Pointer) {
	C.simd_draw(C.int(s.number), C.int(d), (*C.struct_simd_random)(unsafe.Pointer(r)), C.int64_t(n), to)
}

var (
	_ [unsafe.Sizeof(Random{})]byte   = [C.sizeof_struct_simd_random]byte{}
	_ [DrawNormalFloat32 + 1]struct{} = [C.SIMD_DRAWS]struct{}{}
)
