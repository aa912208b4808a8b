//go:build cgo && linux

package simd

/*
#cgo CFLAGS: -O3 -Wall -Wextra -Wno-type-limits -std=c11
#cgo LDFLAGS: -lm
#cgo noescape simd_run
#cgo nocallback simd_run
#cgo noescape simd_copy
#cgo nocallback simd_copy
#cgo noescape simd_transpose
#cgo nocallback simd_transpose
#cgo noescape simd_count
#cgo nocallback simd_count
#cgo noescape simd_call
#cgo nocallback simd_call
#include "simd.h"
*/
import "C"

import (
	"unsafe"

	"github.com/millrace/millrace/internal/sharedlib"
)

var setNames = [C.SIMD_SETS]string{"base", "avx2", "avx512"}

func load() []*Set {
	// Without the library, kernels that need it do not exist.
	mvec, err := sharedlib.Open("libmvec.so.1")
	if err != nil {
		mvec = nil
	}
	var sets []*Set
	for number := range setNames {
		if C.simd_has(C.int(number)) != 0 {
			sets = append(sets, newSet(number, mvec))
		}
	}
	return sets
}

func newSet(number int, mvec *sharedlib.Library) *Set {
	s := &Set{Name: setNames[number], number: number, kernels: map[kernelKey]Kernel{}, folds: foldsOf(number)}
	rows := C.simd_kernels(C.int(number))
	for i := int64(0); ; i++ {
		row := (*C.struct_simd_kernel)(unsafe.Add(unsafe.Pointer(rows), i*int64(unsafe.Sizeof(*rows))))
		if row.function == nil {
			return s
		}
		if row.vector != nil {
			if mvec == nil {
				continue
			}
			address := mvec.Symbol(C.GoString(row.vector))
			if address == 0 {
				continue
			}
			C.simd_set_vector(C.int(number), C.int64_t(i), C.uint64_t(address))
		}
		key := kernelKey{C.GoString(row.function), Type(row.work), Type(row.to)}
		s.kernels[key] = Kernel{address: uintptr(unsafe.Pointer(row.run)), Exact: row.vector == nil}
	}
}

// Run computes n elements with a program of the set's kernels, in blocks of at most block elements.
// It changes the registers. REQUIRES: the memory to which registers refer is kept alive, and does
// not lie on a Go stack.
func (s *Set) Run(steps []Step, registers []Register, n, block int64) error {
	return failure(C.simd_run(C.int(s.number), (*C.struct_simd_step)(unsafe.Pointer(&steps[0])), C.int64_t(len(steps)),
		(*C.struct_simd_register)(unsafe.Pointer(&registers[0])), C.int64_t(len(registers)), C.int64_t(n), C.int64_t(block)))
}

// Copy copies n elements of size bytes of a strided tensor to contiguous memory. next is the first
// of them, and its indexes are in axes, which Copy changes.
func (s *Set) Copy(to, next unsafe.Pointer, axes []Axis, size, n int64) {
	C.simd_copy(C.int(s.number), to, C.uint64_t(uintptr(next)), (*C.struct_simd_axis)(unsafe.Pointer(&axes[0])), C.int64_t(len(axes)),
		C.int64_t(size), C.int64_t(n))
}

// Transpose copies the units from begin to end.
// REQUIRES: the memory to which t refers is kept alive, and does not lie on a Go stack.
func (s *Set) Transpose(t *Transposition, begin, end int64) {
	C.simd_transpose(C.int(s.number), (*C.struct_simd_transposition)(unsafe.Pointer(t)), C.int64_t(begin), C.int64_t(end))
}

// Count stores first + (T)(i)*step for the n indexes i from begin on. values are the first two
// elements; the type is real.
func (s *Set) Count(t Type, to unsafe.Pointer, begin, n int64, values unsafe.Pointer) {
	C.simd_count(C.int(s.number), C.int(t), to, C.int64_t(begin), C.int64_t(n), values)
}

// Call computes n elements of d from the operands a, b and c.
func (k Kernel) Call(n int, d, a, b, c unsafe.Pointer) error {
	return failure(C.simd_call(C.uint64_t(k.address), C.int64_t(n), d, a, b, c))
}

// flag returns a condition in C.
func flag(b bool) C.int {
	if b {
		return 1
	}
	return 0
}

func failure(code C.int) error {
	if code != 0 {
		return ErrNegativePower
	}
	return nil
}

var (
	_ [unsafe.Sizeof(Step{})]byte     = [C.sizeof_struct_simd_step]byte{}
	_ [unsafe.Sizeof(Register{})]byte = [C.sizeof_struct_simd_register]byte{}
	_ [unsafe.Sizeof(Axis{})]byte     = [C.sizeof_struct_simd_axis]byte{}

	_ [unsafe.Sizeof(Transposition{})]byte = [C.sizeof_struct_simd_transposition]byte{}
	_ [unsafe.Sizeof(Outer{})]byte         = [C.sizeof_struct_simd_outer]byte{}
	_ [Band]byte                           = [C.SIMD_BAND]byte{}
)
