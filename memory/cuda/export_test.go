//go:build cgo && linux

package cuda

// Allocations is what the shim has not freed.
func Allocations() int64 { return allocations() }
