//go:build cgo && linux

package cuda

// Allocations is what the shim has not freed.
func Allocations() int64 { return allocations() }

// WithThrowaways makes a slab come after so many small allocations.
func (c SlabConfig) WithThrowaways(n int) SlabConfig {
	c.throwaways = n
	return c
}
