package monotonic

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func clock(t *testing.T) Time {
	t.Helper()
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		t.Fatal(err)
	}
	return Time(ts.Nano())
}

// TestItIsTheClockOfAllProcesses: the values agree with CLOCK_MONOTONIC itself, which all processes
// share.
func TestItIsTheClockOfAllProcesses(t *testing.T) {
	first := clock(t)
	now := time.Now()
	last := clock(t)
	// begin reads the two clocks one after the other, so Of is early by the time between the reads.
	if got := Of(now); got > last || got < first-Time(time.Minute) {
		t.Errorf("%d is not between %d and %d", got, first, last)
	}
	if d := Of(now.Add(time.Hour)) - Of(now); d != Time(time.Hour) {
		t.Errorf("an hour is %d", d)
	}
}
