package loop

import (
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/sched"
	"github.com/millrace/millrace/server/schedapi"
)

// still returns a loop without a running goroutine: the test itself advances its clock and runs its
// passes.
func still(t *testing.T) (l *Loop, connected, broken *worker, client ids.ClientID) {
	t.Helper()
	l = New(Config{})
	join := func(name string) *worker {
		s, err := l.register(schedapi.Registration{Worker: sched.WorkerRegistered{Name: name, Incarnation: name, Slots: 1}})
		if err != nil {
			t.Fatal(err)
		}
		return s.worker
	}
	connected, broken = join("connected"), join("broken")
	client = l.openClient(schedapi.ClientSpec{TTL: 6 * time.Second}).id
	l.disconnected(broken.session)
	return l, connected, broken, client
}

// turn advances the time by d. The loop runs at each of its alarms, or, if stalled, only at the
// end.
func (l *Loop) turn(d time.Duration, stalled bool) {
	end := l.now.Add(d)
	for at := l.nextAlarm(); !stalled && at.Before(end); at = l.nextAlarm() {
		if at.After(l.now) {
			l.now = at
		}
		l.fire()
		l.commit()
	}
	l.now = end
	l.fire()
	l.commit()
}

func (l *Loop) lost(w *worker) bool { return l.workers.get(w.id) != w }

func TestTheLoopsOwnStandstillEndsNoLease(t *testing.T) {
	l, connected, broken, client := still(t)
	l.turn(time.Second, false)
	l.turn(20*time.Second, true)
	if l.lost(connected) || l.lost(broken) || l.clients.get(client) == nil {
		t.Fatalf("after a standstill of the loop: worker lost %v, disconnected worker lost %v, client %v",
			l.lost(connected), l.lost(broken), l.clients.get(client))
	}
	l.turn(1900*time.Millisecond, false)
	if l.lost(broken) {
		t.Error("the disconnected worker did not get its grace anew")
	}
	l.turn(200*time.Millisecond, false)
	if !l.lost(broken) || l.lost(connected) {
		t.Errorf("after the grace: disconnected worker lost %v, worker lost %v", l.lost(broken), l.lost(connected))
	}
	l.turn(3*time.Second, false)
	if !l.lost(connected) || l.clients.get(client) == nil {
		t.Errorf("5.1 s after the standstill: silent worker lost %v, client %v", l.lost(connected), l.clients.get(client))
	}
	l.turn(time.Second, false)
	if l.clients.get(client) != nil {
		t.Error("the client's lease of 6 s has not ended")
	}
}

// TestLeasesAreMeasuredByTheMonotonicClock: a time without a reading of the monotonic clock is
// compared by the wall clock, which people and programs set. One such operand makes the whole
// comparison use the wall clock.
func TestLeasesAreMeasuredByTheMonotonicClock(t *testing.T) {
	l, connected, _, _ := still(t)
	monotonic := func(what string, at time.Time) {
		if !strings.Contains(at.String(), " m=") {
			t.Errorf("%s is %v, a time of the wall clock", what, at)
		}
	}
	connected.session.saw(l.now.Add(2 * time.Second))
	l.turn(6*time.Second, false) // The lease was checked once, and has a new end.
	monotonic("the last message", connected.session.seen())
	for _, timer := range l.timers.queue {
		monotonic("a timer", timer.at)
	}
	monotonic("the alarm", l.nextAlarm())
	if at, ok := l.machine.NextDeadline(); ok {
		monotonic("the machine's deadline", at)
	}
	if at, ok := l.workers.machine.NextDeadline(); !ok {
		t.Error("no lease has an end")
	} else {
		monotonic("the end of a lease", at)
	}
}

// TestAWatchThatComesAndGoesLeavesOneTimer: each reconnection of a watch used to leave a timer that
// renewed the lease for ever.
func TestAWatchThatComesAndGoesLeavesOneTimer(t *testing.T) {
	l := New(Config{})
	c := l.openClient(schedapi.ClientSpec{})
	for range 100 {
		w := l.openWatch(c, 0)
		c.watches = c.watches[:0]
		w.end()
	}
	if n := len(l.timers.queue); n != 1 {
		t.Errorf("%d timers renew one lease", n)
	}
}
