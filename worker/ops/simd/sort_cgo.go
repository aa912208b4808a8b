//go:build cgo && linux && amd64

package simd

/*
#cgo noescape simd_sort
#cgo nocallback simd_sort
#cgo noescape simd_split
#cgo nocallback simd_split
#cgo noescape simd_sort_keys
#cgo nocallback simd_sort_keys
#cgo noescape simd_sort_values
#cgo nocallback simd_sort_values
#cgo noescape simd_sort_distinct
#cgo nocallback simd_sort_distinct
#include "simd.h"
#include "simd_sort.h"
*/
import "C"

import "unsafe"

// Sorts reports whether the set has the functions of this file.
func (s *Set) Sorts() bool { return s != nil && s.number == C.SIMD_AVX512 }

func segment(s *Segment) *C.struct_simd_segment { return (*C.struct_simd_segment)(unsafe.Pointer(s)) }

var _ [unsafe.Sizeof(Segment{})]byte = [C.sizeof_struct_simd_segment]byte{}

// Sort sorts a segment. REQUIRES: the memory to which it refers is kept alive.
func (s *Set) Sort(wide bool, a *Segment) { C.simd_sort(flag(wide), segment(a)) }

// Split parts a segment: a becomes the one with the small keys, and more that with the large ones.
// more is empty if the largest keys are in their place already. REQUIRES: as for Sort.
func (s *Set) Split(wide bool, a, more *Segment) { C.simd_split(flag(wide), segment(a), segment(more)) }

// Keys stores the keys of n numbers. All NaNs have the largest key. descending inverts the keys,
// and equalZeros makes 0.0 of -0.0.
func (s *Set) Keys(t Type, n int, keys, from unsafe.Pointer, equalZeros, descending bool) {
	C.simd_sort_keys(C.int(t), C.int64_t(n), keys, from, flag(equalZeros), flag(descending))
}

// Values stores the numbers of n keys.
func (s *Set) Values(t Type, n int, to, keys unsafe.Pointer, descending bool) {
	C.simd_sort_values(C.int(t), C.int64_t(n), to, keys, flag(descending))
}

// Distinct copies the keys that differ from the one before them to to, unless that is nil, and
// returns their number. The first key counts.
func (s *Set) Distinct(wide bool, n int, to, keys unsafe.Pointer) int {
	return int(C.simd_sort_distinct(flag(wide), C.int64_t(n), to, keys))
}
