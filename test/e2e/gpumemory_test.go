//go:build cgo && linux

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	millrace "github.com/millrace/millrace/clients/go"
	"github.com/millrace/millrace/memory/cuda/cudatest"
	"github.com/millrace/millrace/worker/topology/nvml"
)

// The GPU memory that a worker and its executors use besides the slab, as docs/gpu-operations.md
// states it: contexts, scratch memory, kernels and libraries.
const (
	besideTheSlab = 1 << 30
	eachExecutor  = 1 << 30
)

// withCuPy gives Python tasks a replacement for CuPy if there is no GPU.
func (m *gpus) withCuPy(t *testing.T) *gpus {
	t.Helper()
	if m.fake == nil {
		return m
	}
	fakes, err := filepath.Abs("../../clients/python/tests/fakes")
	if err != nil {
		t.Fatal(err)
	}
	m.env = append(m.env, "PYTHONPATH="+fakes, "FAKE_LIBCUDA="+m.fake.Library, "FAKE_CUDA_STATE="+os.Getenv(cudatest.Environment))
	return m
}

// used returns a function that reads how much of a GPU's memory is in use by all processes.
func (m *gpus) used(t *testing.T, uuid string) func() uint64 {
	t.Helper()
	if m.fake != nil {
		return func() uint64 { return m.fake.Taken(0) }
	}
	library, err := nvml.Open("")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := library.Close(); err != nil {
			t.Error(err)
		}
	})
	return func() uint64 {
		s, err := library.Sample(uuid)
		if err != nil {
			t.Error(err)
		}
		return s.UsedBytes
	}
}

// Operations and functions make three times the bytes of the slab, and all are kept. The memory in
// use on the GPU stays within the limit and the documented amount besides it.
func TestGPUMemoryStaysWithinItsLimit(t *testing.T) {
	const executors, parts = 2, 12
	limit := sized(96<<20, 12<<30)
	m := gpuMachine(t, 1, 8<<30).withCompiler(t).withCuPy(t)
	c := m.start(t, 1, "--device-memory-limit", fmt.Sprint(limit), "--pinned-limit", fmt.Sprint(4*limit), "--spill-limit", "1GiB",
		"--slots", fmt.Sprint(executors), "--executors", fmt.Sprint(executors))
	client := c.dial(t)
	worker := activeWorkers(t, client)[0]
	used := m.used(t, worker.GetGpu().GetUuid())

	var highest uint64
	done := make(chan struct{})
	var looking sync.WaitGroup
	looking.Go(func() {
		for {
			highest = max(highest, used())
			select {
			case <-done:
				return
			case <-time.After(2 * time.Millisecond):
			}
		}
	})
	var kept []*millrace.Future
	for range 3 {
		for i := range parts {
			op, args := millrace.Native("array.full"), millrace.Args([]int{limit / parts / 8}, 1.0)
			if i%2 == 1 {
				op = millrace.Python("cupy:ones")
				args = millrace.Args(limit / parts / 8)
			}
			f, err := client.Submit(soon(t), op, args)
			if err != nil {
				t.Fatal(err)
			}
			kept = append(kept, f)
		}
	}
	err := millrace.WaitAll(soon(t), kept...)
	close(done)
	looking.Wait()
	if err != nil {
		t.Fatal(err)
	}
	// CuPy keeps the memory of the results that each process made, at most one at a time.
	libraries := uint64(executors * 2 * limit / parts)
	if most := uint64(limit) + besideTheSlab + executors*eachExecutor + libraries; highest < uint64(limit) || highest > most {
		t.Errorf("%d bytes were in use, of a limit of %d and %d in all", highest, limit, most)
	}
	note(t, "memory of the GPU beside the slab, with 2 executors", float64(highest-uint64(limit))/(1<<30), "GiB")
	if n := len(activeWorkers(t, client)[0].GetDeaths()); n > 0 {
		t.Errorf("the worker died %d times", n)
	}
}
