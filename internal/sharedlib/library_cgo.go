//go:build cgo && linux

package sharedlib

/*
#cgo CFLAGS: -O2 -Wall -Wextra -std=gnu11
#cgo LDFLAGS: -ldl
#include <stdlib.h>
#include "call.h"
*/
import "C"

import (
	"errors"
	"unsafe"
)

// Built says whether this program can load libraries.
const Built = true

func open(path string, global bool) (uint64, error) {
	p := C.CString(path)
	defer C.free(unsafe.Pointer(p))
	var text [1024]C.char
	var visible C.int
	if global {
		visible = 1
	}
	if h := C.msl_open(p, visible, &text[0], C.int(len(text))); h != 0 {
		return uint64(h), nil
	}
	return 0, errors.New(C.GoString(&text[0]))
}

func findSymbol(library uint64, name string) uint64 {
	n := C.CString(name)
	defer C.free(unsafe.Pointer(n))
	return uint64(C.msl_symbol(C.uint64_t(library), n))
}

func fileOf(symbol uint64) string {
	var path [4096]C.char
	C.msl_where(C.uint64_t(symbol), &path[0], C.int(len(path)))
	return C.GoString(&path[0])
}

func textAt(address uint64) string {
	var text [1024]C.char
	C.msl_text(C.uint64_t(address), &text[0], C.int(len(text)))
	return C.GoString(&text[0])
}

func call(function uint64, arguments *[MaxArguments]uint64) uint64 {
	return uint64(C.msl_call(C.uint64_t(function), (*C.uint64_t)(unsafe.Pointer(&arguments[0]))))
}

func callFortran(function uint64, arguments *[MaxArguments]uint64, scalars uint32, steps *[MaxArguments]int64, count, info int) int {
	return int(C.msl_call_fortran(C.uint64_t(function), (*C.uint64_t)(unsafe.Pointer(&arguments[0])), C.uint32_t(scalars),
		(*C.int64_t)(unsafe.Pointer(&steps[0])), C.int64_t(count), C.int(info)))
}

var _ [MaxArguments]byte = [C.MSL_ARGUMENTS]byte{}
