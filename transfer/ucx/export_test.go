//go:build cgo && linux

package ucx

// Allocations is the number of the shim's allocations that were not freed.
func Allocations() int64 { return allocations() }
