// Package lapack is an Adapter: BLAS and LAPACK in a shared library that is loaded at run time, by
// their Fortran interface. OpenBLAS and MKL have it, and many others. Matrices are column-major:
// element (i, j) lies at i + j*distance.
package lapack

import (
	"fmt"
	"math"
	"path/filepath"
	"runtime"
	"strings"
	"unsafe"

	"github.com/millrace/millrace/internal/sharedlib"
)

// Library is a loaded library. It is safe for concurrent use.
type Library struct {
	lib *sharedlib.Library
	// File is the path of the file.
	File string
	// before and after are what the library adds to the names of LAPACK's routines.
	before, after string
	// wide says that its integers have 64 bits, and version is that of LAPACK, "3.11".
	wide      bool
	version   string
	threading threading
}

// dialects are the ways in which libraries name dgemm. Names that end in 64_ take integers of 64
// bits, and the others integers of 32 bits. Arguments suit both: they are integers of 64 bits in
// little-endian order, which an integer of 32 bits reads correctly at the same address.
var dialects = []struct{ before, after string }{
	{"scipy_", "_64_"},
	{"", "_64_"},
	{"scipy_", "_"},
	{"", "_"},
}

// Load loads a library. The path is a file, or a name that the dynamic linker searches for. A
// library that computes something wrong is refused.
func Load(path string) (*Library, error) {
	if strings.ContainsRune(path, filepath.Separator) {
		if err := sharedlib.Check(path); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
	}
	layer := noMKL
	if isMKL(path) {
		var err error
		if layer, err = prepareMKL(path); err != nil {
			return nil, err
		}
	}
	lib, err := sharedlib.OpenWithNeighbours(path)
	if err != nil {
		return nil, err
	}
	layer.choose(lib)
	for _, d := range dialects {
		l := &Library{lib: lib, before: d.before, after: d.after}
		if l.Has("dgemm", "dgesdd") {
			l.File = lib.FileOf(l.symbol("dgemm"))
			l.threading = threadingOf(lib)
			l.measureIntegers()
			if err := l.try(); err != nil {
				return nil, fmt.Errorf("%s: %w", path, err)
			}
			return l, nil
		}
	}
	return nil, fmt.Errorf("%s has no BLAS and LAPACK: neither dgemm_ nor dgesdd_, nor another spelling of these names", path)
}

func (l *Library) symbol(routine string) string { return l.before + routine + l.after }

// address returns the address of a routine, or 0. MKL has some of the auxiliary routines for
// integers of 64 bits, such as dlasd4, only without the last underscore.
func (l *Library) address(routine string) uint64 {
	name := l.symbol(routine)
	if address := l.lib.Symbol(name); address != 0 || !strings.HasSuffix(name, "_64_") {
		return address
	}
	return l.lib.Symbol(strings.TrimSuffix(name, "_"))
}

// Has reports whether the library has all these routines. Some libraries lack the auxiliary ones.
func (l *Library) Has(routines ...string) bool {
	for _, routine := range routines {
		if l.address(routine) == 0 {
			return false
		}
	}
	return true
}

// WideIntegers reports whether the library's integers have 64 bits, and not 32.
func (l *Library) WideIntegers() bool { return l.wide }

// Arg is an argument of a routine.
type Arg struct {
	kind  argKind
	value uint64
	array unsafe.Pointer // keeps the array of the address alive
	step  int64          // of an array: how many bytes it moves on after each call of Each
}

type argKind uint8

const (
	scalarArg argKind = iota
	letterArg
	addressArg
	integerArg
	infoArg
)

// Letter is an option, such as 'N' or 'T'.
func Letter(c byte) Arg { return Arg{kind: letterArg, value: uint64(c)} }

// Int is an integer.
func Int(n int) Arg { return Arg{kind: integerArg, value: uint64(n)} }

// Float64 is a number of 64 bits.
func Float64(x float64) Arg { return Arg{kind: scalarArg, value: math.Float64bits(x)} }

// Float32 is a number of 32 bits.
func Float32(x float32) Arg { return Arg{kind: scalarArg, value: uint64(math.Float32bits(x))} }

// Array is an array, from the first element of s on. The call keeps s alive until it returns. An
// empty s is a null pointer.
func Array[T any](s []T) Arg {
	p := unsafe.Pointer(unsafe.SliceData(s))
	return Arg{kind: addressArg, value: sharedlib.Address(p), array: p}
}

// Every returns the argument, an array, for Each: the array moves on by that many bytes after each
// call.
func (a Arg) Every(bytes int) Arg {
	a.step = int64(bytes)
	return a
}

// Info is the last argument of LAPACK's routines, which they set to 0 if they succeed.
func Info() Arg { return Arg{kind: infoArg} }

// Call calls a routine in the caller's thread, by its name in small letters, such as "dgeqrf"; Team
// has calls of several threads. It returns the info that the routine has left if the last argument
// is Info, otherwise 0. The error means that the library does not have the routine, or that the
// routine refuses an argument.
func (l *Library) Call(routine string, arguments ...Arg) (info int, err error) {
	return l.call(1, routine, arguments)
}

func (l *Library) call(threads int, routine string, arguments []Arg) (info int, err error) {
	address, list, err := l.prepare(routine, arguments)
	if err != nil {
		return 0, err
	}
	l.threading.run(threads, func() { list.Call(address) })
	runtime.KeepAlive(arguments)
	return l.infoOf(routine, arguments, list)
}

// Each calls a routine count times in the caller's thread, much faster than as many calls of Call.
// It returns the number of calls before the first one whose info is not 0, and that info. For
// routines without Info that number is count.
func (l *Library) Each(count int, routine string, arguments ...Arg) (done, info int, err error) {
	address, list, err := l.prepare(routine, arguments)
	if err != nil {
		return 0, 0, err
	}
	var steps [sharedlib.MaxArguments]int64
	for i, a := range arguments {
		steps[i] = a.step
	}
	last := -1
	if n := len(arguments) - 1; arguments[n].kind == infoArg {
		last = n
	}
	l.threading.run(1, func() { done = list.Repeat(address, count, &steps, last) })
	runtime.KeepAlive(arguments)
	info, err = l.infoOf(routine, arguments, list)
	return done, info, err
}

// prepare returns the address of a routine, and its list of arguments.
func (l *Library) prepare(routine string, arguments []Arg) (address uint64, list *sharedlib.Fortran, err error) {
	address = l.address(routine)
	if address == 0 {
		return 0, nil, fmt.Errorf("%s has no %s", l.File, l.symbol(routine))
	}
	list = &sharedlib.Fortran{}
	for i, a := range arguments {
		switch a.kind {
		case letterArg:
			list.Letter(byte(a.value))
		case addressArg:
			list.Address(a.value)
		case integerArg:
			if !l.wide && int64(a.value) != int64(int32(a.value)) {
				return 0, nil, fmt.Errorf("argument %d of %s is %d, and the integers of %s have 32 bits: use a library with ILP64, such as scipy-openblas64",
					i+1, strings.ToUpper(routine), int64(a.value), l.File)
			}
			list.Value(a.value)
		default:
			list.Value(a.value)
		}
	}
	return address, list, nil
}

// infoOf returns the info that a call has left, with an error if the routine refuses an argument.
func (l *Library) infoOf(routine string, arguments []Arg, list *sharedlib.Fortran) (info int, err error) {
	last := len(arguments) - 1
	if arguments[last].kind != infoArg {
		return 0, nil
	}
	if info = list.Int(last); info < 0 {
		return info, fmt.Errorf("%s refuses its argument %d", strings.ToUpper(routine), -info)
	}
	return info, nil
}
