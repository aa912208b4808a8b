//go:build !cgo || !linux

package simd

import "unsafe"

// Runs needs kernels, of which there are none.
func (f Fold) Runs(unsafe.Pointer, unsafe.Pointer, int64, int64, int64) {
	panic(nothing)
}

// Lanes needs kernels, of which there are none.
func (f Fold) Lanes(unsafe.Pointer, unsafe.Pointer, int64, int64, int64, bool) {
	panic(nothing)
}
