// Package monotonic is an Adapter: a clock that all processes of a host share and that cannot be
// set. Time limits that a process stores as a number, or sends to another process, use it: the wall
// clock may be set back, which would make the limits longer.
package monotonic

import (
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Time is in nanoseconds of CLOCK_MONOTONIC. It is never 0 on a running host.
type Time int64

// begin is the same moment by both clocks. Go's own monotonic time uses the same clock, but Go only
// gives access to differences of it.
var begin = sync.OnceValue(func() (b struct {
	at   time.Time
	mono Time
}) {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(fmt.Sprintf("CLOCK_MONOTONIC: %v", err)) // every Linux has it
	}
	b.at, b.mono = time.Now(), Time(ts.Nano())
	return b
})

// Of converts a time that time.Now returned, or that was made from such a time by Add.
func Of(t time.Time) Time {
	b := begin()
	return b.mono + Time(t.Sub(b.at))
}

// Now returns the current time.
func Now() Time { return Of(time.Now()) }
