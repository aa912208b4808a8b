//go:build !cgo || !linux

package simd

import "unsafe"

func load() []*Set { return nil }

// Run needs a program of kernels, of which there are none.
func Run([]Step, []Register, int64, int64) error { panic("simd: there are no kernels") }

// Call needs a kernel, of which there is none.
func (k Kernel) Call(int, unsafe.Pointer, unsafe.Pointer, unsafe.Pointer, unsafe.Pointer) error {
	panic("simd: there are no kernels")
}
