//go:build cgo && linux

package ucx

// Allocations is the number of the shim's allocations that were not freed.
func Allocations() int64 { return allocations() }

// Connections is how many there are, of both directions.
func (c *Context) Connections() int {
	n, _ := ask(c, func(l *loop) int { return len(l.conns) })
	return n
}
