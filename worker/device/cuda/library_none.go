//go:build !cgo || !linux

package cuda

import "errors"

func openLibrary(string) (uint64, error) {
	return 0, errors.New("this program was built without cgo, or not for Linux; build with CGO_ENABLED=1")
}

func findSymbol(uint64, string) uint64 { return 0 }

func fileOf(uint64) string { return "" }

func callFunction(uint64, *[maxArguments]uint64) int32 { return -1 }
