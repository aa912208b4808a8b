package soak

import (
	"syscall"
	"testing"
	"time"
)

// TestRollingRestart stops each of three schedulers in turn and starts it again, as an upgrade
// does, while clients work. Nothing that they were told is forgotten, and each kind of request goes
// on between the stops.
func TestRollingRestart(t *testing.T) {
	c := startCluster(t)
	tr := startTraffic(c, 20*time.Millisecond)
	tr.goesOn()
	rounds := 5
	if testing.Short() {
		rounds = 1
	}
	for range rounds {
		for _, p := range c.all {
			c.leader() // All follow it, so one may be stopped.
			if code := p.stop(syscall.SIGTERM); code != 0 {
				t.Errorf("%s ends with code %d", p.name, code)
			}
			tr.goesOn()
			p.start()
		}
	}
	c.leader()
	tr.goesOn()
	tr.end()
	t.Logf("acknowledged: %v; unanswered: %d; longest times between two: %v", tr.acknowledged, tr.unanswered, tr.longest)
}
