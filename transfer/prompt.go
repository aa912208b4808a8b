package transfer

import (
	"math"
	"time"
)

// Prompt is a Path that can begin a fetch without waiting for anything.
type Prompt interface {
	// Prompt says whether a fetch from a peer would begin to copy at once: the way there is open, and
	// what the peer has can be found without asking it. A fetch that has to wait all the same tells
	// its sink before, if that is a Waiter; so does one that waits for its copies.
	Prompt(peer Peer) bool
}

// Waiter is a Sink whose fetch is carried out by somebody who has other things to do as well.
type Waiter interface {
	Sink
	// Waits is called by the goroutine of the fetch before it waits, with how long that should take. Paths
	// that are Prompt do so, again if it takes longer than that. It waits for nothing.
	Waits(left time.Duration)
}

// Long is how long a fetch waits that does not know.
const Long = time.Duration(math.MaxInt64)

// Waits tells a sink that its fetch is going to wait, nobody knows for how long.
func Waits(s Sink) {
	if w, ok := s.(Waiter); ok {
		w.Waits(Long)
	}
}
