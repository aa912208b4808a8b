package server

import (
	"testing"
	"time"

	"github.com/millrace/millrace/internal/leader"
	"github.com/millrace/millrace/server/members"
)

// TestWorkersMayStayWithALeaderThatHangs: a worker notices after a while that its leader hangs, and
// only then its time to come back to the next one begins.
func TestWorkersMayStayWithALeaderThatHangs(t *testing.T) {
	for restart, want := range map[time.Duration]time.Duration{ // order-free: all are checked
		0:           members.DefaultRestartGrace + leader.PingAfter + leader.PingTimeout,
		time.Minute: time.Minute + leader.PingAfter + leader.PingTimeout,
	} {
		if got := takeoverGrace(restart); got != want {
			t.Errorf("after a grace of %s: %s, want %s", restart, got, want)
		}
	}
}
