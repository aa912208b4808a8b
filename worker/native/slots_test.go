package native

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/millrace/millrace/worker/store"
)

// long returns a run that its slot waits for in a way that can be interrupted.
func long(task int, op string) *Run {
	r := runOf(task, op)
	r.Short = false
	return r
}

// A run that was not begun comes back as returned, at once if it is taken back and in its turn if
// it is stopped. One that runs is interrupted. Runs that follow are not affected.
func TestRunsAreStoppedAndTakenBack(t *testing.T) {
	s, o := newStream(), newOwner()
	n := slotsOf(t, Config{Slots: 1, Device: s})
	n.Open(o)
	hangs, back, stopped, last := long(1, "hangs"), long(2, "back"), long(3, "stopped"), long(4, "last")
	n.Start(0, hangs)
	s.until(t, 1)
	for _, r := range []*Run{back, stopped, last} {
		n.Start(0, r)
	}
	n.Stop(0, stopped)
	n.TakeBack(0, back)
	n.TakeBack(0, hangs) // it has begun
	if r := <-o.ended; r != back || !r.Returned {
		t.Fatalf("first came %s, returned %v", r.Call.Op, r.Returned)
	}
	n.Stop(0, hangs)
	if r := <-o.ended; r != hangs || r.Returned || r.Failure.GetReason() != "CANCELLED" {
		t.Fatalf("then came %s, returned %v, with %v", r.Call.Op, r.Returned, r.Failure)
	}
	if r := <-o.ended; r != stopped || !r.Returned {
		t.Fatalf("then came %s, returned %v", r.Call.Op, r.Returned)
	}
	if r := <-o.ended; r != last || r.Returned || r.Failure != nil {
		t.Fatalf("then came %s, returned %v, with %v", r.Call.Op, r.Returned, r.Failure)
	}
	if got, want := s.happened(), []string{"run hangs", "run last"}; !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}

func TestARunEndsAtItsTimeout(t *testing.T) {
	o := newOwner()
	n := slotsOf(t, Config{Slots: 1, Device: newStream()})
	n.Open(o)
	hangs := long(1, "hangs")
	hangs.Timeout = time.Millisecond
	n.Start(0, hangs)
	if r := <-o.ended; r.Failure.GetReason() != "TIMEOUT" {
		t.Errorf("it ended with %v", r.Failure)
	}
}

// A run for whose result there is no memory now does not wait in its slot.
func TestARunWithoutRoomIsNotBegun(t *testing.T) {
	s, o := newStream(), newOwner()
	n := slotsOf(t, Config{Slots: 1, Device: s})
	n.Open(o)
	taken, err := n.config.Store.ReserveWait(t.Context(), store.TaskHolder(9), []uint64{slabBytes - 1<<16}, 0)
	if err != nil {
		t.Fatal(err)
	}
	n.Start(0, long(1, "half"))
	if r := <-o.ended; !slices.Equal(r.NoRoom, []uint64{slabBytes / 2}) || r.Failure != nil {
		t.Errorf("it ended with %v, and needs %d", r.Failure, r.NoRoom)
	}
	n.config.Store.Release(taken)
	n.Start(0, long(2, "half"))
	if r := <-o.ended; r.NoRoom != nil || r.Failure != nil {
		t.Errorf("with room it ended with %v, and needs %d", r.Failure, r.NoRoom)
	}
	if got := s.happened(); !slices.Equal(got, []string{"run half"}) {
		t.Errorf("%q", got)
	}
}

// A run that fails because the device is lost is not handed back: the worker ends.
func TestAFailureOnALostDeviceIsNotReported(t *testing.T) {
	s, o := newStream(), newOwner()
	var lost error
	n := slotsOf(t, Config{Slots: 1, Device: s, Health: func() error { return lost }})
	n.Open(o)
	n.Start(0, long(1, "breaks"))
	if r := <-o.ended; r.Failure.GetReason() != "OP_FAILED" {
		t.Fatalf("while the device works, it ended with %v", r.Failure)
	}
	lost = errors.New("fell off the bus")
	n.Start(0, long(2, "breaks"))
	if why := <-o.lost; !errors.Is(why, lost) {
		t.Errorf("the device is lost because %v", why)
	}
	n.Close()
	select {
	case r := <-o.ended:
		t.Errorf("%s ended with %v", r.Ref, r.Failure)
	default:
	}
}

func TestSizesOfResultsAreKnownBeforeTheRun(t *testing.T) {
	n := slotsOf(t, Config{Slots: 1, Device: newStream()})
	if got := n.OutputBytes(runOf(1, "half").Call); !slices.Equal(got, []uint64{slabBytes / 2}) {
		t.Errorf("the result has %d", got)
	}
	if n.InPlace() != nil {
		t.Error("the device reads at peers")
	}
}
