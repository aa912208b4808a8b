// Package sharedlib is an Adapter: shared libraries that are loaded at run time, and calls of their
// functions. A program without cgo can load none.
package sharedlib

import (
	"fmt"
	"runtime"
	"sync"
	"unsafe"
)

// MaxArguments is the largest number of arguments of a function.
const MaxArguments = 32

// Library is a library that was loaded at run time. It is never closed: such libraries keep threads
// and state of their own. It is safe for concurrent use.
type Library struct {
	handle  uint64
	name    string
	mu      sync.Mutex // guards symbols
	symbols map[string]uint64
}

// Open loads a library. The path is a file, or a name that the dynamic linker searches for.
func Open(path string) (*Library, error) {
	return openAs(path, false)
}

// OpenGlobal is like Open, and libraries that are opened later may use its symbols without naming
// it as a dependency.
func OpenGlobal(path string) (*Library, error) {
	return openAs(path, true)
}

// loading is held while a library is loaded: see Exclusively.
var loading sync.Mutex

// Exclusively calls a function that loads a library by other means, while this package loads none.
// UCX changes the tables of symbols of all libraries while it is loaded, and a library that is
// being loaded at that moment has tables that cannot be read.
func Exclusively(load func()) {
	loading.Lock()
	defer loading.Unlock()
	load()
}

func openAs(path string, global bool) (*Library, error) {
	loading.Lock()
	defer loading.Unlock()
	handle, err := open(path, global)
	if err != nil {
		return nil, err
	}
	return &Library{handle: handle, name: path, symbols: map[string]uint64{}}, nil
}

// Symbol returns the address of a function; 0 means that the library does not have it.
func (l *Library) Symbol(name string) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	address, known := l.symbols[name]
	if !known {
		address = findSymbol(l.handle, name)
		l.symbols[name] = address
	}
	return address
}

// FileOf returns the path of the file that has the symbol, or "" if it is not known.
func (l *Library) FileOf(symbol string) string {
	if address := l.Symbol(symbol); address != 0 {
		return fileOf(address)
	}
	return ""
}

// Call calls a function whose arguments are integers or addresses; memory at an address is pinned
// or not Go's. It returns the function's result; a function that returns an int sets only the lower
// 32 bits. The error means that the library has no such function.
func (l *Library) Call(function string, arguments ...uint64) (uint64, error) {
	address := l.Symbol(function)
	if address == 0 {
		return 0, fmt.Errorf("%s has no %s: it is of another version", l.name, function)
	}
	var all [MaxArguments]uint64
	copy(all[:], arguments)
	return call(address, &all), nil
}

// Text calls a function that returns a text, and returns a copy of at most 1023 bytes. It is empty
// if the library has no such function.
func (l *Library) Text(function string, arguments ...uint64) string {
	address, err := l.Call(function, arguments...)
	if err != nil {
		return ""
	}
	return textAt(address)
}

// Fortran is a list of arguments for a Fortran subroutine. The zero value is an empty list. Values
// of at most 8 bytes are stored in the list; the subroutine gets their addresses, and what it
// assigns to them can be read by Int afterwards.
type Fortran struct {
	values  [MaxArguments]uint64
	scalars uint32
	count   int
	hidden  int // lengths of texts, which follow all other arguments
}

// Value appends a number by its bits: of an integer of 32 or 64 bits, or of a float.
func (f *Fortran) Value(bits uint64) {
	f.scalars |= 1 << f.count
	f.Address(bits)
}

// Letter appends a text of one character.
func (f *Fortran) Letter(c byte) {
	f.Value(uint64(c))
	f.hidden++
}

// Address appends the address of an array, or of a variable. The memory is pinned or not Go's, or
// the caller keeps it alive until the call has returned and it is not on a stack.
func (f *Fortran) Address(address uint64) {
	f.values[f.count] = address
	f.count++
}

// Int returns argument i, counted from 0, as the subroutine has left it: an integer of 32 bits.
func (f *Fortran) Int(i int) int { return int(int32(f.values[i])) }

// Bits returns the 8 bytes of argument i, counted from 0, as the subroutine has left them.
func (f *Fortran) Bits(i int) uint64 { return f.values[i] }

// Call calls the subroutine at an address that Symbol returned.
func (f *Fortran) Call(subroutine uint64) {
	f.Repeat(subroutine, 1, &[MaxArguments]int64{}, -1)
}

// Repeat calls the subroutine count times, as Call. After each call, Address arguments grow by
// steps, in bytes; the steps of Value arguments are 0. Calls end early when one has assigned
// another value than 0 to argument info; with -1 there is no such argument. It returns the number
// of calls before that.
func (f *Fortran) Repeat(subroutine uint64, count int, steps *[MaxArguments]int64, info int) int {
	for range f.hidden {
		f.Address(1)
	}
	return callFortran(subroutine, &f.values, f.scalars, steps, count, info)
}

// Address returns the address of memory for a call that gets it as a number. The memory stays in
// its place: the compiler never lays it on a stack, which moves when it grows. The caller keeps the
// memory alive until the call has returned (runtime.KeepAlive).
func Address(p unsafe.Pointer) uint64 {
	if never {
		escaped = p
	}
	return uint64(uintptr(p))
}

// never is always false, but the compiler does not know that: it has to assume that the memory of
// Address is still needed after the function that allocates it.
var (
	never   bool
	escaped unsafe.Pointer //nolint:unused // the assignment is what counts
)

// AddressOf returns the address of a value, which pinner keeps in place.
func AddressOf[T any](pinner *runtime.Pinner, p *T) uint64 {
	pinner.Pin(p)
	return uint64(uintptr(unsafe.Pointer(p)))
}

// CString returns the address of a copy of the text that ends with a zero byte.
func CString(pinner *runtime.Pinner, s string) uint64 {
	b := append([]byte(s), 0)
	return AddressOf(pinner, &b[0])
}
