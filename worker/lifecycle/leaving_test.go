package lifecycle_test

import (
	"testing"
	"time"

	"github.com/millrace/millrace/worker/lifecycle"
)

func TestAWorkerLeavesWhenNothingIsLostWithIt(t *testing.T) {
	idle, busy := lifecycle.New(lifecycle.Config{Slots: 1}), lifecycle.New(lifecycle.Config{Slots: 1})
	busy.Step(time.Unix(1, 0), &lifecycle.Assigned{Ref: lifecycle.Ref{Task: 1, Attempt: 1}, Runner: "native", Slots: 1})
	if busy.Len() != 1 {
		t.Fatalf("the machine has %d attempts, and should have 1", busy.Len())
	}
	for _, c := range []struct {
		name    string
		m       *lifecycle.Machine
		pending lifecycle.Pending
		agreed  bool
		objects int
		leaves  bool
	}{
		{"no objects", idle, lifecycle.Pending{}, false, 0, true},
		{"objects, not agreed", idle, lifecycle.Pending{}, false, 1, false},
		{"objects, agreed", idle, lifecycle.Pending{}, true, 1, true},
		{"a request for leases", idle, lifecycle.Pending{Leases: true}, true, 0, false},
		{"a rescue", idle, lifecycle.Pending{Rescues: true}, true, 0, false},
		{"an attempt", busy, lifecycle.Pending{}, true, 0, false},
	} {
		if got := c.m.Leaves(c.pending, c.agreed, c.objects); got != c.leaves {
			t.Errorf("%s: leaves is %v, want %v", c.name, got, c.leaves)
		}
	}
}

func TestAWorkerThatIsAskedToLeaveWaitsForAnUnreachableScheduler(t *testing.T) {
	m := lifecycle.New(lifecycle.Config{Slots: 1})
	for _, c := range []struct {
		pending lifecycle.Pending
		away    time.Duration
		leaves  bool
	}{
		{lifecycle.Pending{}, lifecycle.AloneGrace - 1, false},
		{lifecycle.Pending{}, lifecycle.AloneGrace, true},
		{lifecycle.Pending{Rescues: true}, lifecycle.AloneGrace, false},
	} {
		if got := m.LeavesAlone(c.pending, c.away); got != c.leaves {
			t.Errorf("away for %v with %+v: leaves is %v, want %v", c.away, c.pending, got, c.leaves)
		}
	}
}

func TestARenewalEndsOrHangs(t *testing.T) {
	m := lifecycle.New(lifecycle.Config{Slots: 1})
	for _, c := range []struct {
		pending lifecycle.Pending
		took    time.Duration
		want    lifecycle.Renewal
	}{
		{lifecycle.Pending{}, 0, lifecycle.Renewable},
		{lifecycle.Pending{}, 2 * lifecycle.RenewLimit, lifecycle.Renewable},
		{lifecycle.Pending{Leases: true}, lifecycle.RenewLimit, lifecycle.Renewing},
		{lifecycle.Pending{Rescues: true}, lifecycle.RenewLimit + 1, lifecycle.RenewalHangs},
	} {
		if got := m.Renewal(c.pending, c.took); got != c.want {
			t.Errorf("after %v: %v, want %v", c.took, got, c.want)
		}
	}
}
