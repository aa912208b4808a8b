//go:build !cgo || !linux || !amd64

package simd

import "unsafe"

// Sorts reports whether the set has the functions of this file.
func (s *Set) Sorts() bool { return false }

// Sort needs AVX-512, like the others.
func (s *Set) Sort(bool, *Segment) { panic("simd: there are no kernels") }

// Split is never called.
func (s *Set) Split(bool, *Segment, *Segment) { panic("simd: there are no kernels") }

// Keys is never called.
func (s *Set) Keys(Type, int, unsafe.Pointer, unsafe.Pointer, bool, bool) {
	panic("simd: there are no kernels")
}

// Values is never called.
func (s *Set) Values(Type, int, unsafe.Pointer, unsafe.Pointer, bool) {
	panic("simd: there are no kernels")
}

// Distinct is never called.
func (s *Set) Distinct(bool, int, unsafe.Pointer, unsafe.Pointer) int {
	panic("simd: there are no kernels")
}
