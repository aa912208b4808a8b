//go:build !cgo || !linux

package simd

import "unsafe"

func load() []*Set { return nil }

const nothing = "simd: there are no kernels"

// Run needs a set, of which there is none.
func (*Set) Run([]Step, []Register, int64, int64) error { panic(nothing) }

// Copy needs a set, of which there is none.
func (*Set) Copy(unsafe.Pointer, unsafe.Pointer, []Axis, int64, int64) { panic(nothing) }

// Transpose needs a set, of which there is none.
func (*Set) Transpose(*Transposition, int64, int64) { panic(nothing) }

// Count needs a set, of which there is none.
func (*Set) Count(Type, unsafe.Pointer, int64, int64, unsafe.Pointer) { panic(nothing) }

// Call needs a kernel, of which there is none.
func (k Kernel) Call(int, unsafe.Pointer, unsafe.Pointer, unsafe.Pointer, unsafe.Pointer) error {
	panic(nothing)
}
