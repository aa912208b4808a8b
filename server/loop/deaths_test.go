package loop

import (
	"fmt"
	"testing"

	"github.com/millrace/millrace/server/sched"
	"github.com/millrace/millrace/server/schedapi"
)

func death(incarnation int) schedapi.Death {
	return schedapi.Death{Incarnation: fmt.Sprint(incarnation), Cause: "it died"}
}

func TestTheNamesThatDiedLongestAgoAreForgotten(t *testing.T) {
	l := New(Config{})
	for i := range deadNames {
		l.recordDeath(fmt.Sprint(i), death(i))
	}
	l.recordDeath("0", death(deadNames)) // The name that died first is the one that died last, too.
	for i := range 2 {
		l.recordDeath(fmt.Sprint(deadNames+i), death(deadNames+i))
	}
	for name, want := range map[string]int{"0": 2, "1": 0, "2": 0, "3": 1, fmt.Sprint(deadNames + 1): 1} {
		if n := len(l.workers.deaths.of(name)); n != want {
			t.Errorf("%d deaths of %s are remembered, want %d", n, name, want)
		}
	}
	if n := len(l.workers.deaths.byName); n != deadNames || len(l.workers.deaths.order) != n {
		t.Errorf("%d names are remembered, in a list of %d, want %d", n, len(l.workers.deaths.order), deadNames)
	}
}

// TestLostWorkersLeaveNothingBehind: a cluster whose workers are replaced for years.
func TestLostWorkersLeaveNothingBehind(t *testing.T) {
	l := New(Config{})
	for i := range 3000 {
		s, err := l.register(schedapi.Registration{Worker: sched.WorkerRegistered{
			Name: fmt.Sprint(i), Incarnation: fmt.Sprint(i), Slots: 1, Executors: []string{"native"},
		}})
		if err != nil {
			t.Fatal(err)
		}
		if s.worker.id != s.Worker() || int(s.Worker()) != i+1 || l.workers.get(s.Worker()) != s.worker {
			t.Fatalf("worker %d has the number %d", i+1, s.Worker())
		}
		if i%10 != 9 { // Every tenth worker lives for a while longer.
			l.loseWorker(s.worker, "test", nil, "")
		} else if i >= 100 {
			l.loseWorker(l.workers.all[0], "test", nil, "")
		}
		if l.commit(); len(l.workers.all) > 11 || l.workers.get(1) != nil || l.workers.get(100_000) != nil {
			t.Fatalf("%d workers are in the table", len(l.workers.all))
		}
	}
}
