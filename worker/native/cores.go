package native

import "sync/atomic"

// cores divides the processors of the worker among the native operations that run. A task that
// takes one of four slots gets a quarter of them. The processors of slots that nothing occupies are
// divided evenly among the operations that run, until another task takes these slots. Together, the
// tasks use no more than the worker's share of the host's processors.
type cores struct {
	// share is the number of processors of the worker, slots its number of slots; both at least 1.
	share, slots int
	free         atomic.Int32 // slots that no task occupies
	running      atomic.Int32 // native operations that run
}

// of returns how many processors an operation may use at this moment, at least 1. width is the
// number of slots that its task takes.
func (c *cores) of(width int) int {
	width += int(c.free.Load()) / max(int(c.running.Load()), 1)
	return max(c.share*min(width, c.slots)/c.slots, 1)
}
