package cuda

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"unsafe"
)

const maxArguments = 32

// errNoLibrary says that one of NVIDIA's libraries was not found.
var errNoLibrary = errors.New("not found")

// library is a library that was loaded at run time. It is never closed: these libraries keep
// threads and state of their own.
type library struct {
	file    string
	handle  uint64
	mu      sync.Mutex // guards symbols
	symbols map[string]uint64
}

// call calls a function whose arguments are integers or addresses; memory at an address is pinned
// or not Go's. It returns the library's own status. The error means that the library has no such
// function.
func (l *library) call(function string, arguments ...uint64) (int32, error) {
	l.mu.Lock()
	address, known := l.symbols[function]
	if !known {
		address = findSymbol(l.handle, function)
		l.symbols[function] = address
	}
	l.mu.Unlock()
	if address == 0 {
		return 0, fmt.Errorf("%s has no %s: it is of another version", l.file, function)
	}
	var all [maxArguments]uint64
	copy(all[:], arguments)
	return callFunction(address, &all), nil
}

// mustCall is call; a status that is not 0 is an error, too.
func (l *library) mustCall(function string, arguments ...uint64) error {
	status, err := l.call(function, arguments...)
	if err == nil && status != 0 {
		err = fmt.Errorf("%s answers %d", function, status)
	}
	return err
}

// addressOf returns the address of a value, which pinner keeps in place.
func addressOf[T any](pinner *runtime.Pinner, p *T) uint64 {
	pinner.Pin(p)
	return uint64(uintptr(unsafe.Pointer(p)))
}

// cString returns the address of a copy of the text that ends with a zero byte.
func cString(pinner *runtime.Pinner, s string) uint64 {
	b := append([]byte(s), 0)
	return addressOf(pinner, &b[0])
}
