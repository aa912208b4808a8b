package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	millrace "github.com/millrace/millrace/clients/go"
	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

// restarted is a scheduler with a journal, which tests kill and start again.
type restarted struct {
	*started
	// address is where it listens, and addresses is what workers and clients are given.
	address, addresses, journal string
	env, args                   []string
}

func withJournal(t *testing.T, args ...string) *restarted {
	t.Helper()
	address := fixedAddress(t)
	r := &restarted{address: address, addresses: address, journal: filepath.Join(t.TempDir(), "journal"), env: []string{"MILLRACE_TOKEN=t0ken"}, args: args}
	r.start(t)
	return r
}

// fixedAddresses are the addresses that tests were given. No other test gets one of them, because
// its scheduler may not listen yet, or may be about to start again.
var fixedAddresses sync.Map

// fixedAddress returns an address at which nobody listens, with a port below the kernel's range of
// ephemeral ports. One who dials a port of that range while nobody listens can be connected to
// himself, and occupy the port. The Python tests take ports above these.
func fixedAddress(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err != nil {
		t.Fatal(err)
	}
	lowest, err := strconv.Atoi(strings.Fields(string(text))[0])
	if err != nil {
		t.Fatal(err)
	}
	for {
		address := fmt.Sprintf("127.0.0.1:%d", max(lowest-12_000, 1024)+rand.IntN(6_000))
		if _, given := fixedAddresses.LoadOrStore(address, true); given {
			continue
		}
		if listener, err := net.Listen("tcp", address); err == nil {
			if err := listener.Close(); err != nil {
				t.Fatal(err)
			}
			return address
		}
	}
}

func (r *restarted) start(t *testing.T) {
	t.Helper()
	r.started = background(t, r.env, append([]string{"scheduler", "--listen", r.address, "--http", "", "--journal", r.journal}, r.args...)...)
	within(t, "the scheduler is ready", func() bool { return strings.Contains(r.log.String(), "\nready") })
}

// restart kills the scheduler by SIGKILL and starts the next one.
func (r *restarted) restart(t *testing.T) {
	t.Helper()
	if err := r.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-r.ended
	r.start(t)
}

func (r *restarted) dial(t *testing.T) *millrace.Client {
	t.Helper()
	c, err := millrace.Dial(soon(t), millrace.WithAddress(r.addresses), millrace.WithToken("t0ken"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() }) // its scheduler may be gone
	return c
}

func (r *restarted) workers(t *testing.T, c *millrace.Client) *started {
	t.Helper()
	w := background(t, append(r.env, "MILLRACE_ADDRESS="+r.addresses), "worker", "--workers", "2", "--slots", "1", "--memory-limit", "64MiB", "--name", "w", "--python", python())
	within(t, "both workers are there", func() bool {
		active, err := c.Workers(soon(t), millracev1.WorkerState_WORKER_STATE_ACTIVE)
		return err == nil && len(active) == 2
	})
	return w
}

// busy is a task that runs until the test ends it. A task that sleeps could end before a busy
// machine looks whether it runs.
type busy struct {
	*millrace.Future
	// file is there for as long as the task runs.
	file string
}

// occupied submits a task that runs until it is told to end, and returns when it runs.
func occupied(t *testing.T, c *millrace.Client, key string) *busy {
	t.Helper()
	b := &busy{file: filepath.Join(t.TempDir(), key)}
	if err := os.WriteFile(b.file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	code := fmt.Sprintf("len([__import__('time').sleep(0.02) for _ in iter(lambda: __import__('os').path.exists(%q), False)]) * 0", b.file)
	b.Future = submitted(t, c, millrace.Python("builtins:eval"), key, code)
	within(t, "the task "+key+" runs", func() bool {
		task, err := c.Task(soon(t), key)
		return err == nil && task.GetState() == millracev1.TaskState_TASK_STATE_RUNNING
	})
	return b
}

// end lets the task end.
func (b *busy) end(t *testing.T) {
	t.Helper()
	if err := os.Remove(b.file); err != nil {
		t.Fatal(err)
	}
}

// ends lets the task end, and waits until it has a result.
func (b *busy) ends(t *testing.T) {
	t.Helper()
	b.end(t)
	if err := b.Wait(soon(t)); err != nil {
		t.Errorf("the task %s: %v", b.Key(), err)
	}
}

// afterRestart is the number of the first attempt that a scheduler makes after its first restart.
const afterRestart = 4097

func submitted(t *testing.T, c *millrace.Client, op millrace.Op, key string, args ...any) *millrace.Future {
	t.Helper()
	f, err := c.Submit(soon(t), op, millrace.Args(args...), millrace.WithKey(key))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// A scheduler is killed in the middle of a graph and started again. The client goes on as if
// nothing had happened, what workers hold is not computed again, and what runs goes on.
func TestAGraphOutlivesItsScheduler(t *testing.T) {
	t.Parallel()
	scheduler := withJournal(t)
	c := scheduler.dial(t)
	scheduler.workers(t, c)
	const parts, length = 8, 20_000 // 160 KB each: not inline
	var inputs, sums []*millrace.Future
	for i := range parts {
		inputs = append(inputs, submitted(t, c, millrace.Native("array.full"), fmt.Sprint("part", i), []int{length}, float64(i)))
	}
	for _, f := range inputs {
		if _, err := f.Array(soon(t)); err != nil {
			t.Fatal(err)
		}
	}
	failed := submitted(t, c, millrace.Python("operator:truediv"), "failed", 1, 0)
	if err := failed.Wait(soon(t)); err == nil {
		t.Fatal("1/0 has a result")
	}
	data, err := c.Scatter(soon(t), strings.Repeat("s", 100_000))
	if err != nil {
		t.Fatal(err)
	}
	// Both workers are busy.
	running := []*busy{occupied(t, c, "busy0"), occupied(t, c, "busy1")}
	for i, f := range inputs {
		sums = append(sums, submitted(t, c, millrace.Python("operator:add"), fmt.Sprint("sum", i), f, inputs[(i+1)%parts]))
	}

	scheduler.restart(t)

	for _, b := range running {
		b.ends(t)
	}
	for i, f := range sums {
		a, err := f.Array(soon(t))
		if err != nil {
			t.Fatal(err)
		}
		values, err := millrace.Slice[float64](a)
		if err != nil {
			t.Fatal(err)
		}
		if want := float64(i + (i+1)%parts); len(values) != length || values[0] != want || values[length-1] != want {
			t.Errorf("sum %d has %d elements, the first is %v and not %v", i, len(values), values[0], want)
		}
	}
	if got, err := millrace.Get[string](soon(t), data); err != nil || len(got) != 100_000 {
		t.Errorf("of what was scattered came %d bytes, %v", len(got), err)
	}
	if err := failed.Wait(soon(t)); err == nil || !strings.Contains(err.Error(), "ZeroDivisionError") {
		t.Errorf("the task that had failed ends with %v", err)
	}
	for i := range parts {
		firstAttempt(t, c, fmt.Sprint("part", i))
	}
	for _, b := range running {
		firstAttempt(t, c, b.Key())
	}
	firstAttempt(t, c, "failed")
	if text := scheduler.log.String(); !strings.Contains(text, "goes on from its journal") {
		t.Errorf("the scheduler does not say that it was restarted:\n%s", text)
	}
}

// A scheduler is killed again and again while a client submits, releases and publishes. Each result
// comes, and a request that was answered is never forgotten.
func TestKillsOfASchedulerLoseNothing(t *testing.T) {
	t.Parallel()
	scheduler := withJournal(t)
	c := scheduler.dial(t)
	scheduler.workers(t, c)
	const rounds, chains, length = 3, 20, 5
	var futures []*millrace.Future
	var want []float64
	for round := range rounds {
		var inner []*millrace.Future
		for chain := range chains {
			value := float64(100*round + chain)
			f := submitted(t, c, millrace.Python("operator:add"), fmt.Sprintf("r%d-c%d-0", round, chain), value, 0)
			for i := range length {
				next := submitted(t, c, millrace.Python("operator:add"), fmt.Sprintf("r%d-c%d-%d", round, chain, i+1), f, 1)
				inner = append(inner, f)
				f = next
			}
			futures, want = append(futures, f), append(want, value+length)
		}
		last := futures[len(futures)-1]
		within(t, "the last task has arrived", func() bool {
			_, err := c.Task(soon(t), last.Key())
			return err == nil
		})
		for _, f := range inner {
			f.Release()
		}
		name := fmt.Sprint("last-", round)
		if err := c.Publish(soon(t), name, last, false); err != nil {
			t.Fatal(err)
		}
		scheduler.restart(t)
		within(t, "the dataset is there again", func() bool {
			_, err := c.Dataset(soon(t), name)
			if err != nil && !errors.Is(err, millrace.ErrUnavailable) {
				t.Fatalf("round %d: the published dataset: %v", round, err)
			}
			return err == nil
		})
	}
	for i, f := range futures {
		if got, err := millrace.Get[float64](soon(t), f); err != nil || got != want[i] {
			t.Errorf("result %d is %v, not %v; %v", i, got, want[i], err)
		}
	}
}

// firstAttempt fails the test if a task was run again after a restart.
func firstAttempt(t *testing.T, c *millrace.Client, key string) {
	t.Helper()
	task, err := c.Task(context.WithoutCancel(soon(t)), key)
	if err != nil {
		t.Error(err)
	} else if task.GetAttempt() >= afterRestart {
		t.Errorf("task %s was run again: attempt %d, %s", key, task.GetAttempt(), task.GetState())
	}
}
