//go:build !cgo || !linux

package simd

// FFT needs an instruction set, of which there is none.
func (s *Set) FFT(bool) FFT { panic(nothing) }
