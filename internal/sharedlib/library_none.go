//go:build !cgo || !linux

package sharedlib

import "errors"

// Built says whether this program can load libraries.
const Built = false

func open(string, bool) (uint64, error) {
	return 0, errors.New("this program was built without cgo, or not for Linux; build with CGO_ENABLED=1")
}

func findSymbol(uint64, string) uint64 { return 0 }

func fileOf(uint64) string { return "" }

func textAt(uint64) string { return "" }

func call(uint64, *[MaxArguments]uint64) uint64 { return 0 }

func callFortran(uint64, *[MaxArguments]uint64, uint32, *[MaxArguments]int64, int, int) int {
	return 0
}
