//go:build cgo && linux

package cuda

// Allocations returns the number of the shim's allocations that were not freed.
func Allocations() int64 { return allocations() }

// WithThrowaways sets the number of small allocations that precede a slab.
func (c SlabConfig) WithThrowaways(n int) SlabConfig {
	c.throwaways = n
	return c
}
