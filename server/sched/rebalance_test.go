package sched_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/sched"
)

// mover carries out the orders to its workers at once.
type mover struct {
	t   *testing.T
	m   *sched.Machine
	now time.Time
	// most is the largest number of copies that were under way together.
	most int
}

func (v *mover) step(ev sched.Event) { v.carryOut(v.m.Step(v.now, ev, nil)) }

func (v *mover) carryOut(effects []sched.Effect) {
	v.t.Helper()
	copies := 0
	var events []sched.Event
	for _, e := range effects {
		switch e.Kind {
		case sched.EffectAssign:
			var a sched.Assignment
			if !v.m.AssignmentOf(e.Task, &a) {
				continue
			}
			copies++
			in := a.Inputs[0].Replica
			events = append(events, sched.ObjectsReported{Worker: e.Worker, Gained: []sched.Stored{{Replica: in}}},
				sched.TasksReported{Worker: e.Worker, Reports: []sched.Report{{Task: e.Task, Attempt: e.Attempt, Outcome: sched.OutcomeSucceeded}}})
		case sched.EffectKeep:
			r, _, _ := v.m.ReplicasOf(e.Task, nil)
			events = append(events, sched.ObjectsReported{Worker: e.Worker, Gained: []sched.Stored{{Replica: r, Kept: true}}})
		default:
		}
	}
	v.most = max(v.most, copies)
	for _, ev := range events {
		v.step(ev)
	}
	if err := v.m.Check(); err != nil {
		v.t.Fatal(err)
	}
}

// pass lets time pass.
func (v *mover) pass(d time.Duration) {
	v.t.Helper()
	for end := v.now.Add(d); v.now.Before(end); {
		v.now = v.now.Add(50 * time.Millisecond)
		v.step(sched.TimePassed{})
	}
}

// skewed makes a worker with n objects of 10 bytes, and an empty one. Both have 1000 bytes.
func skewed(t *testing.T, n int) *mover {
	t.Helper()
	v := &mover{t: t, m: sched.New(sched.Config{}), now: time.Unix(1_700_000_000, 0)}
	v.step(sched.ClientOpened{Client: 1, TTL: time.Hour})
	for i := range 2 {
		v.step(sched.WorkerRegistered{Worker: ids.WorkerID(i + 1), Name: fmt.Sprint("n", i+1), Slots: 1, MemoryBytes: 1000, Executors: []string{"native"}})
	}
	submit := sched.GraphSubmitted{Client: 1, Ops: []sched.OpSpec{{Kind: sched.OpData}}}
	for i := range n {
		submit.Tasks = append(submit.Tasks, sched.TaskSpec{Key: fmt.Sprint("k", i), Hold: true})
	}
	result, _, err := v.m.Submit(v.now, submit, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range result.Tasks {
		v.step(sched.ObjectsReported{Worker: 1, Gained: []sched.Stored{{Replica: sched.Replica{Task: id, Generation: 1, Bytes: 10}, Written: true}}})
	}
	return v
}

// The room of a receiver may go while others of its moves are under way. The rest waits for some
// time, and goes on or fails.
func TestMovesWaitForRoom(t *testing.T) {
	for name, comes := range map[string]bool{"that comes": true, "that does not come": false} {
		t.Run(name, func(t *testing.T) {
			v := skewed(t, 60)
			info, effects, err := v.m.OrderRebalance(v.now, sched.RebalanceOrdered{}, nil)
			if err != nil || info.PlannedObjects < 29 || info.PlannedObjects > 31 {
				t.Fatalf("%+v, %v", info, err)
			}
			full := v.m.Step(v.now, sched.WorkerMeasured{Worker: 2, MemoryUsedBytes: 1000}, nil)
			v.carryOut(append(effects, full...))
			v.pass(5 * time.Second)
			if now := v.m.Rebalance(); now.Done || now.MovedObjects != 16 || v.most != 16 {
				t.Fatalf("without room: %+v; %d copies at once", now, v.most)
			}
			if comes {
				v.step(sched.WorkerMeasured{Worker: 2, MemoryUsedBytes: 160})
			}
			v.pass(6 * time.Second)
			now := v.m.Rebalance()
			if comes && (!now.Done || now.MovedObjects != info.PlannedObjects || now.FailedObjects > 0) {
				t.Errorf("with room: %+v", now)
			}
			if !comes && (!now.Done || now.MovedObjects != 16 || now.FailedObjects != info.PlannedObjects-16 || !strings.Contains(now.Failures[0].Reason, "n2 had no room for it for 10s")) {
				t.Errorf("without room for too long: %+v", now)
			}
			held := uint64(0)
			for _, w := range now.Workers {
				held += w.HeldBytes
			}
			if held != 600 {
				t.Errorf("600 bytes became %d", held)
			}
		})
	}
}
