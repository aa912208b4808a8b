//go:build cgo && linux

package e2e

import (
	"context"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	millrace "github.com/millrace/millrace/clients/go"
	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

// A large object reaches all GPUs of a host through a broadcast chain: each worker reads from the
// one before it while the bytes are still arriving there, so that the workers in the middle pass on
// their bytes. All copies are right, even if one of the workers dies during the broadcast. With two
// real GPUs, the first one has two workers.
func TestGPUBroadcastGoesThroughAChain(t *testing.T) {
	const gpus = 3 // a source, one in the middle, one at the end
	needs(t, gpus-1)
	large, limits := 66<<20, []string{"--device-memory-limit", "200MiB", "--pinned-limit", "32MiB"}
	if onRealGPU() {
		large, limits = 256<<20, []string{"--device-memory-limit", "16GiB", "--pinned-limit", "1GiB"}
	}
	m := gpuMachine(t, gpus, 1<<30)
	c := m.start(t, most(t, gpus), limits...)
	if most(t, gpus) < gpus {
		m.join(t, c, append(limits, "--gpu", "0", "--name", "more")...)
	}
	client := c.dial(t)
	ctx, cancel := context.WithTimeout(t.Context(), 4*eventTimeout) // for hundreds of rounds
	defer cancel()
	workers := func() []*millracev1.Worker {
		list, err := client.Workers(ctx, millracev1.WorkerState_WORKER_STATE_ACTIVE)
		if err != nil {
			t.Fatal(err)
		}
		slices.SortFunc(list, func(a, b *millracev1.Worker) int { return strings.Compare(a.GetName(), b.GetName()) })
		return list
	}
	within(t, "all workers are there", func() bool { return len(workers()) == gpus })
	all := workers()
	sum := func(f *millrace.Future, worker string) int64 {
		done, err := client.Submit(ctx, millrace.Native("bench.checksum"), millrace.Args(f), millrace.WithWorkers(worker))
		if err != nil {
			t.Fatal(err)
		}
		v, err := millrace.Get[int64](ctx, done)
		if err != nil {
			t.Fatal(err)
		}
		done.Release()
		return v
	}
	broadcast := func(round int, meanwhile func()) {
		t.Helper()
		f, err := client.Submit(ctx, millrace.Native("array.random"), millrace.Args([]int{large / 8}, round), millrace.WithWorkers(all[0].GetName()))
		if err != nil {
			t.Fatal(err)
		}
		want := sum(f, all[0].GetName())
		over := make(chan error, 1)
		go func() { over <- client.Replicate(ctx, gpus, f) }()
		meanwhile()
		if err := <-over; err != nil {
			t.Fatal(err)
		}
		for _, w := range all[1:] {
			if got := sum(f, w.GetName()); got != want {
				t.Errorf("round %d: the copy on %s has the checksum %d, not %d", round, w.GetName(), got, want)
			}
		}
		f.Release()
	}
	// A worker whose upstream is slow to begin reads from a holder instead, for example when memory
	// is mapped for the first time. So repeat until a worker in the middle has passed on bytes.
	given := func() (bytes uint64) {
		for _, w := range workers() {
			if w.GetName() != all[0].GetName() {
				bytes += w.GetSentBytes()
			}
		}
		return bytes
	}
	round := 0
	for ; given() < uint64(large); round++ {
		broadcast(round, func() {})
		if round == 200 {
			t.Fatalf("in %d rounds those in the middle gave %d bytes on", round, given())
		}
	}
	t.Logf("the chain was taken after %d rounds; %d bytes were given on", round, given())
	for round := range 3 {
		victim := workers()[1]
		broadcast(1000+round, func() {
			// at some moment of the broadcast
			time.Sleep(time.Duration(round) * 3 * time.Millisecond)
			if err := syscall.Kill(int(victim.GetPid()), syscall.SIGKILL); err != nil {
				t.Error(err)
			}
		})
		within(t, "all workers are back, also the one that was killed", func() bool {
			now := workers()
			return len(now) == gpus && !slices.ContainsFunc(now, func(w *millracev1.Worker) bool { return w.GetPid() == victim.GetPid() })
		})
	}
}
