package e2e

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	millrace "github.com/millrace/millrace/clients/go"
	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

// rescueTimeout is how long the scheduler waits for copies of what a dead worker had.
const rescueTimeout = 2 * time.Second

// uneven returns the workers of a report that are farther than 8 % from the mean; empty: they are
// even. Workers that are lost do not count.
func uneven(r *millrace.RebalanceReport, active map[string]*millracev1.Worker) string {
	total := uint64(0)
	var workers []*millracev1.RebalancedWorker
	for _, w := range r.GetWorkers() {
		if now := active[w.GetName()]; now != nil && now.GetWorkerId() == w.GetWorkerId() {
			workers = append(workers, w)
			total += w.GetBytes()
		}
	}
	mean := float64(total) / float64(len(active))
	text := ""
	if len(workers) != len(active) {
		text = fmt.Sprintf("%d workers of %d; ", len(workers), len(active))
	}
	for _, w := range workers {
		if held := float64(w.GetBytes()); held < 0.92*mean || held > 1.08*mean {
			text += fmt.Sprintf("%s has %.0f of %.0f; ", w.GetName(), held, mean)
		}
	}
	return text
}

// TestRebalanceEvensOutInSpiteOfKills: all results are on one worker, and others join. A receiver
// is killed in the middle of the first rebalance, a source in the middle of the second one, while a
// client reads the results. In the end all workers hold as much, and every byte is right.
func TestRebalanceEvensOutInSpiteOfKills(t *testing.T) {
	limit := []string{"--memory-limit", "512MiB"}
	c := startCluster(t, append([]string{"--workers", "1"}, limit...)...)
	client := c.dial(t)
	active(t, client, "host-0")
	const size, each = 1 << 17, 45
	results := make(map[*millrace.Future]int)
	for i := range each {
		f, err := client.Scatter(soon(t), numbered(i, size))
		if err != nil {
			t.Fatal(err)
		}
		results[f] = i
		if f, err = client.Submit(soon(t), millrace.Native("array.arange"), millrace.Args(float64(i+1000), float64(i+1000+size), 1.0)); err != nil {
			t.Fatal(err)
		}
		results[f] = i + 1000
		if err := f.Wait(soon(t)); err != nil {
			t.Fatal(err)
		}
	}
	c.worker(t, append([]string{"--name", "second"}, limit...)...)
	c.worker(t, append([]string{"--name", "third"}, limit...)...)

	// evenOut rebalances, and kills a worker when the first moves begin. Then it waits until all
	// workers are back, and rebalances until they are even. A victim that only receives is stopped
	// before: an object that had moved to it would be lost with it, if a client has scattered it.
	evenOut := func(victim string, receives bool, names ...string) {
		t.Helper()
		pid := int(active(t, client, names...)[victim].GetPid())
		if receives {
			if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
		}
		var killed atomic.Pointer[time.Time]
		// Scattered data that were not copied out of a dead source in time are rightly lost.
		look := func() {
			for f, first := range results {
				_, err := millrace.Get[[]float64](soon(t), f)
				if at := killed.Load(); errors.Is(err, millrace.ErrObjectLost) && first < each && !receives && at != nil && time.Since(*at) > rescueTimeout {
					t.Logf("%s was lost with %s", f.Key(), victim)
					delete(results, f)
					continue
				}
				holds(t, f, first, size)
			}
		}
		var reading sync.WaitGroup
		reading.Go(look)
		var kill sync.Once
		report, err := client.Rebalance(soon(t), millrace.RebalanceOptions{Progress: func(r *millrace.RebalanceReport) {
			if r.GetPlannedObjects() == 0 {
				t.Errorf("nothing is planned: %v", r)
			}
			kill.Do(func() {
				now := time.Now()
				killed.Store(&now)
				// The supervisor may have killed a process that is stopped.
				if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !(receives && errors.Is(err, syscall.ESRCH)) {
					t.Error(err)
				}
			})
		}})
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("with the death of %s: %d planned, %d moved, %d failed %v", victim, report.GetPlannedObjects(), report.GetMovedObjects(), report.GetFailedObjects(), report.GetFailures())
		reading.Wait()
		within(t, victim+" is back", func() bool { return int(workerOf(t, client, victim).GetPid()) != pid })
		within(t, "all workers are even", func() bool {
			now := active(t, client, names...)
			report, err := client.Rebalance(soon(t), millrace.RebalanceOptions{})
			if err != nil {
				t.Fatal(err)
			}
			return uneven(report, now) == ""
		})
		look()
	}
	evenOut("second-0", true, "host-0", "second-0", "third-0")
	c.worker(t, append([]string{"--name", "fourth"}, limit...)...)
	evenOut("host-0", false, "host-0", "second-0", "third-0", "fourth-0")
}

// TestRebalanceOnTheCommandLine: the plan, the moves, and the refusals.
func TestRebalanceOnTheCommandLine(t *testing.T) {
	c := startCluster(t, "--workers", "1", "--memory-limit", "256MiB")
	client := c.dial(t)
	active(t, client, "host-0")
	const size, many = 1 << 16, 20
	for i := range many {
		if _, err := client.Scatter(soon(t), numbered(i, size)); err != nil {
			t.Fatal(err)
		}
	}
	c.worker(t, "--name", "second", "--memory-limit", "256MiB")
	active(t, client, "host-0", "second-0")
	if out, stderr, code := c.command(t, "", "rebalance", "--dry-run"); code != 0 || !strings.Contains(out, "planned 10 (5.0 MiB), moved -, failed -") || !strings.Contains(out, "second-0  0 B") {
		t.Errorf("the plan, with exit code %d: %s%s", code, out, stderr)
	}
	done := c.succeed(t, "rebalance", "host-0", "second-0", "-o", "json")
	if dig(done, "movedObjects") != "10" || dig(done, "done") != true || dig(done, "failedObjects") != "0" {
		t.Errorf("moved: %v", done)
	}
	if out, _, code := c.command(t, "", "rebalance"); code != 0 || !strings.Contains(out, "planned -, moved -, failed -") {
		t.Errorf("there is nothing to do, and the exit code is %d: %s", code, out)
	}
	if _, stderr, code := c.command(t, "", "rebalance", "second-0"); code != 2 || !strings.Contains(stderr, "at least two workers") {
		t.Errorf("one worker, with exit code %d: %s", code, stderr)
	}
	if _, stderr, code := c.command(t, "", "rebalance", "second-0", "nobody-0"); code != 3 || !strings.Contains(stderr, "nobody-0") {
		t.Errorf("an unknown worker, with exit code %d: %s", code, stderr)
	}
}
