// Package monotonic is an Adapter: the clock that all processes of a host share and that nobody sets. Limits that one process
// keeps as a number, or tells another one, are of it: the wall clock may be set back, and would make them longer.
package monotonic

import (
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Time is in nanoseconds of CLOCK_MONOTONIC. It is never 0 on a host that runs.
type Time int64

// begin is one moment by both clocks. Go's own monotonic time is of the same clock, and only its difference can be had.
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

// Of returns a time that time.Now has returned, or that was made of it by Add.
func Of(t time.Time) Time {
	b := begin()
	return b.mono + Time(t.Sub(b.at))
}

// Now returns the time.
func Now() Time { return Of(time.Now()) }
