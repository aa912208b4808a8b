package e2e

import (
	"fmt"
	"strings"
	"testing"

	millrace "github.com/millrace/millrace/clients/go"
	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

// A scheduler is killed and started again, while workers of its earlier life still hold objects and
// run tasks. None of their bytes is ever used as a result of the new tasks, even if task numbers of
// the two lives are equal.
func TestNothingOutlivesTheLifeOfAScheduler(t *testing.T) {
	address := fixedAddress(t)
	env := []string{"MILLRACE_TOKEN=t0ken"}
	start := func() *started {
		t.Helper()
		s := background(t, env, "scheduler", "--listen", address, "--http", "")
		within(t, "the scheduler is ready", func() bool { return strings.Contains(s.log.String(), "\nready") })
		return s
	}
	dial := func() *millrace.Client {
		t.Helper()
		c, err := millrace.Dial(soon(t), millrace.WithAddress(address), millrace.WithToken("t0ken"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() }) // its scheduler may be gone
		return c
	}
	scheduler := start()
	workers := background(t, append(env, "MILLRACE_ADDRESS="+address), "worker", "--workers", "2", "--slots", "1", "--memory-limit", "64MiB", "--name", "w", "--python", python())
	const tasks, length = 12, 20_000 // 160 KB each: not inline
	for life := 1; life <= 3; life++ {
		c := dial()
		within(t, "both workers are there", func() bool {
			w, err := c.Workers(soon(t), millracev1.WorkerState_WORKER_STATE_ACTIVE)
			return err == nil && len(w) == 2 && strings.Count(workers.log.String(), `"msg":"registered"`) == 2*life
		})
		var futures []*millrace.Future
		for i := range tasks {
			f, err := c.Submit(soon(t), millrace.Native("array.full"), millrace.Args([]int{length}, float64(100*life+i)), millrace.WithKey(fmt.Sprint("k", i)))
			if err != nil {
				t.Fatal(err)
			}
			futures = append(futures, f)
		}
		data, err := c.Scatter(soon(t), strings.Repeat(fmt.Sprint(life), 100_000))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := millrace.Get[string](soon(t), data); err != nil || got != strings.Repeat(fmt.Sprint(life), 100_000) {
			t.Errorf("life %d: of what was scattered came %d bytes, %v", life, len(got), err)
		}
		for i, f := range futures {
			a, err := f.Array(soon(t))
			if err != nil {
				t.Fatal(err)
			}
			values, err := millrace.Slice[float64](a)
			if err != nil {
				t.Fatal(err)
			}
			for _, x := range values {
				if x != float64(100*life+i) {
					t.Fatalf("life %d, task %d: an element is %v", life, i, x)
				}
			}
		}
		// These tasks run when the scheduler is killed, with the numbers of tasks of the next life.
		for range 2 {
			if _, err := c.Submit(soon(t), millrace.Python("time:sleep"), millrace.Args(1000)); err != nil {
				t.Fatal(err)
			}
		}
		// The client would submit again what the scheduler has not acknowledged.
		if err := c.Flush(soon(t)); err != nil {
			t.Fatal(err)
		}
		if err := scheduler.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		<-scheduler.ended
		scheduler = start()
	}
	if text := workers.log.String(); !strings.Contains(text, "the scheduler was started anew") {
		t.Errorf("the workers noticed nothing:\n%s", text)
	}
}
