package loop

import (
	"fmt"
	"testing"

	"github.com/millrace/millrace/server/members"
	"github.com/millrace/millrace/server/sched"
	"github.com/millrace/millrace/server/schedapi"
)

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
			l.member(members.Left{Session: s.number})
		} else if i >= 100 {
			l.member(members.Left{Session: l.workers.all[0].session.number})
		}
		if l.commit(); len(l.workers.all) > 11 || l.workers.get(1) != nil || l.workers.get(100_000) != nil {
			t.Fatalf("%d workers are in the table", len(l.workers.all))
		}
		if n := l.workers.machine.Len(); n != len(l.workers.all) || len(l.workers.sessions) != n {
			t.Fatalf("%d members are in the machine, %d workers in the table, with %d sessions", n, len(l.workers.all), len(l.workers.sessions))
		}
	}
}
