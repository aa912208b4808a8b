// Package simd is an Adapter: kernels in C that compute with the vector instructions of the
// processor. Each kernel is compiled for several instruction sets, and the program chooses among
// those that the processor has. Without cgo there are none, and callers use their kernels in Go.
//
// An exact kernel returns the bits that the Go kernel of the same name returns, on every
// instruction set; any NaN counts as the same. The others call the vector functions of the C
// library (libmvec), whose results are within 4 units in the last place.
package simd

import (
	"errors"
	"sync"
	"unsafe"

	"github.com/millrace/millrace/internal/sharedlib"
)

// Type is the type of elements. The numbers are those of ops.DType.
type Type uint8

// The types.
const (
	Bool Type = iota + 1
	Uint8
	Int32
	Int64
	Float32
	Float64
	Complex64
	Complex128
)

// Set is an instruction set, with the kernels that are compiled for it. It does not change after
// its creation.
type Set struct {
	// Name is "base", "avx2" or "avx512" on x86-64. On arm64 there is only "base", which is NEON.
	Name    string
	number  int
	kernels map[kernelKey]Kernel
	folds   map[foldKey]Fold
}

type kernelKey struct {
	function string
	work, to Type
}

// Kernel is a function over blocks of elements. The zero Kernel stands for "there is none".
type Kernel struct {
	address uintptr
	// Exact: see the comment of the package.
	Exact bool
}

// Exists reports whether there is such a kernel.
func (k Kernel) Exists() bool { return k.address != 0 }

// Kernel returns the kernel of a function for operands of a type. For "where", work is the type of
// the last two operands; for "cast", to is the type of the result, which is 0 for all others.
func (s *Set) Kernel(function string, work, to Type) Kernel {
	if s == nil {
		return Kernel{}
	}
	return s.kernels[kernelKey{function, work, to}]
}

// Sets returns the instruction sets that the processor has and the program has kernels for, the
// best one last. It is empty without cgo.
var Sets = sync.OnceValue(load)

// Best returns the last of Sets, or nil.
func Best() *Set {
	sets := Sets()
	if len(sets) == 0 {
		return nil
	}
	return sets[len(sets)-1]
}

// ErrNegativePower is the error of a kernel that raises integers to powers.
var ErrNegativePower = errors.New("an integer has a negative exponent")

// Step is one instruction of a program: it computes one register from up to three others. It has
// the layout of struct simd_step.
type Step struct {
	kernel    uint64
	registers [4]uint32
}

// Step returns an instruction with this kernel: the destination, then the operands. Unused operands
// are any registers.
func (k Kernel) Step(registers [4]int) Step {
	s := Step{kernel: uint64(k.address)}
	for i, r := range registers {
		s.registers[i] = uint32(r) //nolint:gosec // an expression has fewer registers
	}
	return s
}

// Register is a register of a program. It has the layout of struct simd_register.
type Register struct {
	address uint64
	step    int64
	source  uint64
	axes    uint64
	count   int64
	size    int64
}

// Axis is an axis of a strided tensor: its length, the bytes between neighbours, and the index of
// the next element. It has the layout of struct simd_axis.
type Axis struct{ Length, Stride, Index int64 }

// InPlace returns a register whose elements lie at address, and whose blocks begin step bytes after
// each other. A step of 0 is that of constants and temporaries: all blocks lie at the same place.
func InPlace(address unsafe.Pointer, step int64) Register {
	return Register{address: sharedlib.Address(address), step: step}
}

// Gathered returns a register to which each block is copied from a strided tensor with elements of
// size bytes. next is the address of the next element; its indexes are in axes, which Run changes.
func Gathered(block, next unsafe.Pointer, axes []Axis, size int64) Register {
	return Register{
		address: sharedlib.Address(block),
		source:  sharedlib.Address(next),
		axes:    sharedlib.Address(unsafe.Pointer(unsafe.SliceData(axes))),
		count:   int64(len(axes)),
		size:    size,
	}
}

// Band is the number of rows of a unit of a transposition.
const Band = 256

// Transposition is the copy of a tensor that is contiguous along another axis than the last one. It
// consists of transposed matrices, one for each index of the outer axes. In each, element j of row
// i is element i of row j of the source, whose rows are contiguous. It has the layout of struct
// simd_transposition.
type Transposition struct {
	to, from         uint64
	rows, columns    int64
	toStep, fromStep int64
	size             int64
	outer            uint64
	count            int64
}

// Outer is an axis of the matrices of a transposition: the number of matrices, and the bytes
// between neighbours. It has the layout of struct simd_outer.
type Outer struct{ Length, ToStep, FromStep int64 }

// NewTransposition returns a transposition of matrices with rows times columns elements of size
// bytes. The steps are the bytes between the rows of the copy, and those of the source.
func NewTransposition(to, from unsafe.Pointer, rows, columns, toStep, fromStep, size int64, outer []Outer) *Transposition {
	return &Transposition{
		to: sharedlib.Address(to), from: sharedlib.Address(from),
		rows: rows, columns: columns, toStep: toStep, fromStep: fromStep, size: size,
		outer: sharedlib.Address(unsafe.Pointer(unsafe.SliceData(outer))), count: int64(len(outer)),
	}
}
