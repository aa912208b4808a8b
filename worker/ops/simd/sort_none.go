//go:build !cgo || !linux || !amd64

package simd

import "unsafe"

// Sorts reports whether the set has the functions of this file.
func (s *Set) Sorts() bool { return false }

// Sort needs AVX-512.
func (s *Set) Sort(bool, *Segment) { panic("simd: there are no kernels") }

// Split needs AVX-512.
func (s *Set) Split(bool, *Segment, *Segment) { panic("simd: there are no kernels") }

// Keys needs AVX-512.
func (s *Set) Keys(Type, int, unsafe.Pointer, unsafe.Pointer, bool, bool) {
	panic("simd: there are no kernels")
}

// Values needs AVX-512.
func (s *Set) Values(Type, int, unsafe.Pointer, unsafe.Pointer, bool) {
	panic("simd: there are no kernels")
}

// Distinct needs AVX-512.
func (s *Set) Distinct(bool, int, unsafe.Pointer, unsafe.Pointer) int {
	panic("simd: there are no kernels")
}
