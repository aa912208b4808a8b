//go:build cgo && linux

package cuda

/*
#cgo CFLAGS: -O2 -Wall -Wextra -std=gnu11
#cgo LDFLAGS: -ldl
#include <stdlib.h>
#include "shim.h"
*/
import "C"

import (
	"errors"
	"unsafe"
)

// openLibrary calls dlopen.
func openLibrary(path string) (uint64, error) {
	p := C.CString(path)
	defer C.free(unsafe.Pointer(p))
	var text [1024]C.char
	if h := C.mrk_open(p, &text[0], C.int(len(text))); h != 0 {
		return uint64(h), nil
	}
	return 0, errors.New(C.GoString(&text[0]))
}

// findSymbol calls dlsym; 0 means that there is no such symbol.
func findSymbol(library uint64, name string) uint64 {
	n := C.CString(name)
	defer C.free(unsafe.Pointer(n))
	return uint64(C.mrk_symbol(C.uint64_t(library), n))
}

// fileOf calls dladdr to find the file of a symbol.
func fileOf(symbol uint64) string {
	var path [4096]C.char
	C.mrk_where(C.uint64_t(symbol), &path[0], C.int(len(path)))
	return C.GoString(&path[0])
}

// callFunction calls a function that findSymbol found.
func callFunction(function uint64, arguments *[maxArguments]uint64) int32 {
	return int32(C.mrk_call(C.uint64_t(function), (*C.uint64_t)(unsafe.Pointer(&arguments[0]))))
}

var _ [maxArguments]byte = [C.MRK_ARGUMENTS]byte{}
