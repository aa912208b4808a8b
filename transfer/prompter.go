package transfer

import (
	"math"
	"time"
)

// Prompter is a Path that can begin a fetch without waiting.
type Prompter interface {
	// Prompt reports whether a fetch from a peer would begin to copy at once: the connection is
	// open, and the path finds the peer's objects without a request. If such a fetch has to wait
	// all the same, also for its own copies, it first calls Waits of its sink, if the sink is a
	// Waiter.
	Prompt(peer Peer) bool
}

// Waiter is a Sink for fetches that run on a goroutine that also has other work. The sink can pass
// that work on before the goroutine blocks.
type Waiter interface {
	// Waits is called by the goroutine of the fetch before it waits; left is the expected duration.
	// A Prompter calls it, and calls it again if the wait takes longer than that. Waits does not
	// block.
	Waits(left time.Duration)
}

// Long is the argument of Waits if the duration of the wait is unknown.
const Long = time.Duration(math.MaxInt64)

// Waits announces to a sink that its fetch is going to wait for an unknown time.
func Waits(s Sink) {
	if w := s.Capabilities().Wait; w != nil {
		w.Waits(Long)
	}
}
