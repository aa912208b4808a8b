package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	millrace "github.com/millrace/millrace/clients/go"
	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/memory/cuda/cudatest"
)

const (
	// width and steps are those of the stencil, as in Task Bench: a task of step s needs three
	// tasks of step s-1.
	width = 40
	steps = 16
	// slab is the size of a worker's slab for objects of up to largest bytes. Much of a step is on
	// disk.
	slab    = "48MiB"
	largest = 8 << 20
)

// stampKey numbers the tasks of all rounds.
func stampKey(round, step, i int) int64 { return int64(round)<<32 | int64(step)<<16 | int64(i) }

// stencil adds a Task Bench stencil. Every object carries the number of its task, and every task
// checks the bytes of its inputs. With host memory, a Python task in each step keeps executors
// busy. Python has no library for arrays on fake GPUs.
func stencil(c *millrace.Client, random *rand.Rand, round int) *millrace.GraphBuilder {
	g := c.NewGraph(fmt.Sprintf("stencil-%d", round))
	sizes := []int{32, 100, 4 << 10, 64<<10 + 8, 1 << 20, largest}
	var last []millrace.Key
	for step := range steps {
		var next []millrace.Key
		for i := range width {
			keys, args := []int64{}, []any{stampKey(round, step, i), sizes[random.IntN(len(sizes))], nil}
			if step > 0 {
				for k := max(i-1, 0); k <= min(i+1, width-1); k++ {
					keys = append(keys, stampKey(round, step-1, k))
					args = append(args, last[k])
				}
			}
			args[2] = keys
			var options []millrace.TaskOption
			if step == steps-1 {
				options = append(options, millrace.Hold())
			}
			next = append(next, g.Add(fmt.Sprintf("s-%d-%d-%d", round, step, i), millrace.Native("bench.stamp"), millrace.Args(args...), options...))
		}
		if step > 0 && *device == "host" {
			g.Add(fmt.Sprintf("p-%d-%d", round, step), millrace.Python("zlib:crc32"), millrace.Args(last[random.IntN(width)]), millrace.Hold())
		}
		last = next
	}
	return g
}

// faultInjector injects a fault into the cluster at random times, until its context ends.
type faultInjector struct {
	t      *testing.T
	c      *cluster
	random *rand.Rand
	mu     sync.Mutex
	// counts are the numbers of faults by kind. restartTimes are the times until killed workers
	// were replaced.
	counts       map[string]int
	restartTimes []time.Duration
}

func (x *faultInjector) run(ctx context.Context) {
	for {
		pause := time.NewTimer(time.Duration(200+x.random.IntN(1300)) * time.Millisecond)
		select {
		case <-ctx.Done():
			pause.Stop()
			return
		case <-pause.C:
		}
		list, err := x.c.active(ctx)
		if err != nil || len(list) == 0 {
			continue
		}
		victim := list[x.random.IntN(len(list))]
		pid := int(victim.GetPid())
		switch k := x.random.IntN(10); {
		case k < 4:
			if syscall.Kill(pid, syscall.SIGKILL) == nil {
				x.count("workers killed")
				x.awaitRestart(ctx, victim.GetName(), victim.GetIncarnation())
			}
		case k < 8:
			if under := children(pid); len(under) > 0 && syscall.Kill(under[x.random.IntN(len(under))], syscall.SIGKILL) == nil {
				x.count("executors killed")
			}
		default:
			if syscall.Kill(pid, syscall.SIGSTOP) == nil {
				x.count("workers stopped")
				// The pause is the fault itself.
				time.Sleep(time.Duration(x.random.IntN(3000)) * time.Millisecond)
				// The supervisor may have killed it already.
				_ = syscall.Kill(pid, syscall.SIGCONT)
			}
		}
	}
}

func (x *faultInjector) count(what string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.counts[what]++
}

// awaitRestart records the time until a worker has a new incarnation.
func (x *faultInjector) awaitRestart(ctx context.Context, name, before string) {
	began := time.Now()
	for time.Since(began) < eventTimeout && ctx.Err() == nil {
		list, err := x.c.active(ctx)
		if err != nil {
			return
		}
		for _, w := range list {
			if w.GetName() == name && w.GetIncarnation() != before {
				x.mu.Lock()
				x.restartTimes = append(x.restartTimes, time.Since(began))
				x.mu.Unlock()
				return
			}
		}
		time.Sleep(2 * time.Millisecond) // the event is in another process
	}
	if ctx.Err() == nil {
		x.t.Errorf("worker %s did not come back within %v of its kill", name, eventTimeout)
	}
}

// stencilFlags returns the flags of a cluster with small slabs on the chosen device.
func stencilFlags(t *testing.T) []string {
	t.Helper()
	flags := []string{"--spill-limit", "4GiB", "--protocol", *protocol, "--ucx-tls", *ucxTLS}
	if *device == "host" {
		return append(flags, "--memory-limit", slab)
	}
	fake, err := cudatest.Start(workers, 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := fake.Close(); err != nil {
			t.Error(err)
		}
	})
	if *device == "apart" {
		fake.RefusePeer.Store(1)
	}
	return append(flags, "--device", "cuda", "--cuda-library", fake.Library, "--device-memory-limit", slab, "--pinned-limit", slab)
}

// TestStampedStencil: no reader ever gets bytes of another object or another generation, or a
// mixture, whatever happens to the workers in the meantime. When all objects are released, slabs
// and disks are empty.
func TestStampedStencil(t *testing.T) {
	t.Parallel()
	c := start(t, stencilFlags(t)...)
	random := rand.New(rand.NewPCG(*seed, 1))
	ctx, cancel := context.WithCancel(t.Context())
	x := &faultInjector{t: t, c: c, random: rand.New(rand.NewPCG(*seed, 2)), counts: map[string]int{}}
	done := make(chan struct{})
	go func() {
		defer close(done)
		x.run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	received := map[string]uint64{}
	end := time.Now().Add(time.Duration(*seconds) * time.Second)
	for round := 0; round == 0 || time.Now().Before(end); round++ {
		g := stencil(c.client, random, round)
		began := time.Now()
		run, err := g.Submit(t.Context())
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		within, stop := context.WithTimeout(t.Context(), 2*eventTimeout)
		for _, f := range run.Futures() {
			if err := f.Wait(within); err != nil {
				t.Fatalf("round %d: %s: %v", round, f.Key(), err)
			}
		}
		stop()
		run.Release()
		t.Logf("round %d: %d tasks, all bytes right after %s", round, g.Len(), time.Since(began).Round(time.Millisecond))
		addReceived(t, c, received)
	}
	cancel()
	<-done
	t.Logf("bytes received by living workers, added up after each round: %v", received)
	slices.Sort(x.restartTimes)
	if n := len(x.restartTimes); n > 0 {
		t.Logf("%v; killed workers were back after %s (median), %s (longest)", x.counts, x.restartTimes[n/2].Round(time.Millisecond), x.restartTimes[n-1].Round(time.Millisecond))
	}
	awaitEmpty(t, c)
}

// addReceived adds the bytes that the workers have received, by the path that they took.
func addReceived(t *testing.T, c *cluster, sums map[string]uint64) {
	t.Helper()
	list, err := c.client.FullWorkers(t.Context(), millracev1.WorkerState_WORKER_STATE_ACTIVE)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range list {
		for _, r := range w.GetRoutes() {
			sums[strings.ToLower(strings.TrimPrefix(r.GetPath().String(), "TRANSFER_PATH_"))] += r.GetReceivedBytes()
		}
	}
}

// awaitEmpty waits until no worker has a byte in its slab, or more than a little on its disk, and
// the directories of killed workers are removed.
func awaitEmpty(t *testing.T, c *cluster) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), eventTimeout)
	defer cancel()
	if err := c.client.WaitForWorkers(ctx, workers); err != nil {
		t.Fatal(err)
	}
	for {
		list, err := c.active(ctx)
		if err != nil {
			t.Fatalf("slabs are not empty: %v", err)
		}
		used, rows := uint64(0), ""
		for _, w := range list {
			used += w.GetMemoryUsedBytes()
			rows += fmt.Sprintf(" %s: %d bytes, %d objects, %d tasks;", w.GetName(), w.GetMemoryUsedBytes(), w.GetObjects(), w.GetAssignedTasks())
		}
		directories := entries(t, c.disk)
		bytes := int64(0)
		err = filepath.Walk(c.disk, func(_ string, info os.FileInfo, err error) error {
			if err == nil && info.Mode().IsRegular() {
				bytes += diskBytes(info)
			}
			return nil // files that vanish during the walk are not ours
		})
		if err != nil {
			t.Fatal(err)
		}
		if used == 0 && bytes <= 1<<20 && len(list) == workers && len(directories) == workers {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%v after everything was released slabs and files should be empty, and there should be a directory for each worker:%s %v, %d bytes in files",
				eventTimeout, rows, directories, bytes)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// diskBytes is the space that a file occupies.
func diskBytes(info os.FileInfo) int64 {
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		return s.Blocks * 512
	}
	return info.Size()
}
