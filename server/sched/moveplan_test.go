package sched_test

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/sched"
)

// TestPlannedMovesEvenOut plans rebalances of random workers and objects. No worker may become
// fuller than the fullest was, no worker takes more than it has room for, and if all objects are
// small, all workers come within 5 % of the mean.
func TestPlannedMovesEvenOut(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m, now := sched.New(sched.Config{InlineBudgetBytes: 1}), time.Unix(1_700_000_000, 0)
		step := func(ev sched.Event) { m.Step(now, ev, nil) }
		step(sched.ClientOpened{Client: 1, TTL: time.Hour})
		workers := rapid.IntRange(2, 8).Draw(t, "workers")
		limited := rapid.Bool().Draw(t, "limited")
		alike := rapid.Bool().Draw(t, "alike")
		small := rapid.Bool().Draw(t, "small")
		largest := uint64(5000)
		if small {
			largest = 20
		}
		limits, held, rooms := make([]uint64, workers), make([]uint64, workers), make([]uint64, workers)
		for i := range workers {
			if limited {
				limits[i] = 200_000
				if !alike {
					limits[i] = uint64(rapid.IntRange(100, 400).Draw(t, "limit")) * 1000
				}
			}
			step(sched.WorkerRegistered{Worker: ids.WorkerID(i + 1), Name: fmt.Sprint("n", i), Slots: 1, MemoryBytes: limits[i], Executors: []string{"native"}})
		}
		submit := sched.GraphSubmitted{Client: 1, Ops: []sched.OpSpec{{Kind: sched.OpData}}}
		objects := rapid.IntRange(0, 300).Draw(t, "objects")
		for i := range objects {
			submit.Tasks = append(submit.Tasks, sched.TaskSpec{Key: fmt.Sprint("k", i), Hold: true})
		}
		if objects > 0 {
			result, _, err := m.Submit(now, submit, nil)
			if err != nil {
				t.Fatal(err)
			}
			for _, id := range result.Tasks {
				at := rapid.IntRange(0, workers-1).Draw(t, "at")
				bytes := rapid.Uint64Range(1, largest).Draw(t, "bytes")
				held[at] += bytes
				step(sched.ObjectsReported{Worker: ids.WorkerID(at + 1), Gained: []sched.Stored{{Replica: sched.Replica{Task: id, Generation: 1, Bytes: bytes}, Written: true}}})
			}
		}
		roomy := true
		for i := range workers {
			used := held[i]
			if limited && rapid.IntRange(0, 3).Draw(t, "full") == 0 {
				used = limits[i] - min(limits[i], uint64(rapid.IntRange(0, 3000).Draw(t, "room")))
				roomy = false
			}
			rooms[i] = limits[i] - min(limits[i], used)
			step(sched.WorkerMeasured{Worker: ids.WorkerID(i + 1), MemoryUsedBytes: used})
		}
		plan, _, err := m.OrderRebalance(now, sched.RebalanceOrdered{DryRun: true}, nil)
		if err != nil {
			t.Fatal(err)
		}
		weight := func(i int) float64 {
			if limited {
				return float64(limits[i])
			}
			return 1
		}
		fullest, total, weights, after := 0.0, 0.0, 0.0, 0.0
		for i, w := range plan.Workers {
			if w.HeldBytes != held[i] || w.StayingBytes != 0 {
				t.Fatalf("worker %d holds %d bytes, and has the figures %+v", i, held[i], w)
			}
			if limited && w.PlannedBytes > held[i] && w.PlannedBytes-held[i] > rooms[i] {
				t.Fatalf("worker %d with room for %d bytes has the figures %+v", i, rooms[i], w)
			}
			fullest = max(fullest, float64(held[i])/weight(i))
			total, weights, after = total+float64(held[i]), weights+weight(i), after+float64(w.PlannedBytes)
		}
		if total != after {
			t.Fatalf("%v bytes become %v: %+v", total, after, plan)
		}
		mean := total / weights
		for i, w := range plan.Workers {
			fill := float64(w.PlannedBytes) / weight(i)
			if plan.PlannedObjects > 0 && fill > fullest {
				t.Errorf("worker %d is at %.3f, and the fullest was at %.3f: %+v", i, fill, fullest, plan)
			}
			// An object must not be as large as the distance.
			if small && roomy && mean*weight(i)*0.05 > float64(largest) && (fill < mean*0.949 || fill > mean*1.051) {
				t.Errorf("worker %d is at %.4f, and the mean is %.4f: %+v", i, fill, mean, plan)
			}
		}
	})
}
