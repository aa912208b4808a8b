package native

import (
	"slices"
	"testing"
)

func TestProcessorsAreDividedBySlots(t *testing.T) {
	for _, x := range []struct {
		share, slots, free, running, width, want int
	}{
		{share: 8, slots: 8, free: 7, running: 1, width: 1, want: 8},  // alone on the worker
		{share: 8, slots: 8, free: 6, running: 2, width: 1, want: 4},  // one of two
		{share: 8, slots: 8, free: 0, running: 8, width: 1, want: 1},  // no slot is free
		{share: 8, slots: 8, free: 0, running: 1, width: 1, want: 1},  // Python has the other slots
		{share: 8, slots: 8, free: 0, running: 2, width: 4, want: 4},  // a task of several slots
		{share: 16, slots: 4, free: 0, running: 4, width: 1, want: 4}, // fewer slots than processors
		{share: 2, slots: 4, free: 0, running: 4, width: 1, want: 1},  // more slots than processors
		{share: 2, slots: 4, free: 3, running: 1, width: 1, want: 2},
		{share: 1, slots: 1, free: 0, running: 1, width: 9, want: 1}, // a width is cut to the slots
		{share: 4, slots: 4, free: 3, running: 0, width: 1, want: 4}, // the counts are read one by one
	} {
		c := cores{share: x.share, slots: x.slots}
		c.free.Store(int32(x.free))
		c.running.Store(int32(x.running))
		if got := c.of(x.width); got != x.want {
			t.Errorf("%+v: got %d", x, got)
		}
	}
}

// TestACallKnowsItsProcessors: the task takes two of four slots, and one is free.
func TestACallKnowsItsProcessors(t *testing.T) {
	s, o := newStream(), newOwner()
	n := slotsOf(t, Config{Slots: 4, Cores: 8, Device: s})
	n.Load(true, 1)
	n.Open(o)
	r := long(1, "cores")
	r.Width = 2
	n.Start(0, r)
	<-o.ended
	if got := s.happened(); !slices.Equal(got, []string{"run with 6 processors"}) || n.cores.running.Load() != 0 {
		t.Errorf("%q; %d calls run afterwards", got, n.cores.running.Load())
	}
}
