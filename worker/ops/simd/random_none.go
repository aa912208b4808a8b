//go:build !cgo || !linux

package simd

import "unsafe"

// Draw needs an instruction set, of which there is none.
func (s *Set) Draw(Draw, *Random, int, unsafe.Pointer) { panic(nothing) }
