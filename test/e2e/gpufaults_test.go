//go:build cgo && linux

package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	millrace "github.com/millrace/millrace/clients/go"
	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/memory/cuda"
)

// realGPUs returns the number of real GPUs that may be used.
var realGPUs = sync.OnceValues(func() (int, error) {
	driver, err := cuda.Load(cuda.Config{})
	if err != nil {
		return 0, err
	}
	return len(driver.Devices()), nil
})

// most returns count, or the number of real GPUs if that is smaller.
func most(t *testing.T, count int) int {
	t.Helper()
	if !onRealGPU() {
		return count
	}
	n, err := realGPUs()
	if err != nil {
		t.Fatal(err)
	}
	return min(n, count)
}

// needs skips a test that is meaningless with fewer GPUs.
func needs(t *testing.T, count int) {
	t.Helper()
	if n := most(t, count); n < count {
		t.Skipf("this needs %d GPUs, and there are %d", count, n)
	}
}

// withCompiler makes NVIDIA's compiler available without a CuPy that brings it.
func (m *gpus) withCompiler(t *testing.T) *gpus {
	t.Helper()
	if m.fake == nil {
		return m
	}
	folder := os.Getenv("MILLRACE_NVRTC")
	if folder == "" {
		folder = "../../.tools/nvrtc/lib"
	}
	folder, err := filepath.Abs(folder)
	if err != nil {
		t.Fatal(err)
	}
	m.env = append(m.env, "LD_LIBRARY_PATH="+folder, "XDG_CACHE_HOME="+t.TempDir())
	return m
}

// activeWorkers returns the active workers of a cluster, sorted by name.
func activeWorkers(t *testing.T, client *millrace.Client) []*millracev1.Worker {
	t.Helper()
	list, err := client.FullWorkers(soon(t), millracev1.WorkerState_WORKER_STATE_ACTIVE)
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(list, func(a, b *millracev1.Worker) int { return strings.Compare(a.GetName(), b.GetName()) })
	return list
}

// stamped holds objects whose bytes are known, also if they were computed again.
type stamped struct {
	client  *millrace.Client
	keys    []int64
	futures []*millrace.Future
}

// stamp makes some stamped objects, on the given worker if it is alive.
func stamp(t *testing.T, client *millrace.Client, worker string, first, count, bytes int) *stamped {
	t.Helper()
	s := &stamped{client: client}
	for i := range count {
		f, err := client.Submit(soon(t), millrace.Native("bench.stamp"), millrace.Args(first+i, bytes, []int64{}), millrace.WithPreferredWorkers(worker))
		if err != nil {
			t.Fatal(err)
		}
		s.keys, s.futures = append(s.keys, int64(first+i)), append(s.futures, f)
	}
	if err := millrace.WaitAll(soon(t), s.futures...); err != nil {
		t.Fatal(err)
	}
	return s
}

// check runs a task per object that checks all of its bytes.
func (s *stamped) check(t *testing.T, where ...millrace.TaskOption) {
	t.Helper()
	for i, f := range s.futures {
		done, err := s.client.Submit(soon(t), millrace.Native("bench.stamp"), millrace.Args(1<<20, 64, []int64{s.keys[i]}, f), where...)
		if err != nil {
			t.Fatal(err)
		}
		if err := done.Wait(soon(t)); err != nil {
			t.Errorf("object %d: %v", s.keys[i], err)
		}
		done.Release()
	}
}

// A user's kernel that accesses an illegal address ends the CUDA context of its worker. The worker
// is replaced, the cause is reported, its objects are available again, and the task is given up
// after three such deaths.
func TestGPUIllegalAddressInAWorker(t *testing.T) {
	count := most(t, 2)
	c := gpuMachine(t, count, 4<<30).withCompiler(t).start(t, count, "--device-memory-limit", "1GiB", "--pinned-limit", "64MiB")
	client := c.dial(t)
	victim := activeWorkers(t, client)[0]
	held := stamp(t, client, victim.GetName(), 1, 6, 3<<20)
	source := `extern "C" __global__ void illegal(double *out) { *(volatile double *)(out - (1ll << 45)) = 1; }`
	outputs := []any{map[string]any{"dtype": "float64", "shape": []int64{1000}}}
	bad, err := client.Submit(soon(t), millrace.Native("cuda.kernel"), millrace.Args(source, "illegal", 1, 1, outputs), millrace.WithWorkers(victim.GetName()))
	if err != nil {
		t.Fatal(err)
	}
	err = bad.Wait(soon(t))
	if !errors.Is(err, millrace.ErrPoisonTask) || !strings.Contains(err.Error(), "CUDA_ERROR_ILLEGAL_ADDRESS") {
		t.Errorf("the task ended with %v", err)
	}
	t.Log(err)
	within(t, "the worker to be back, with the causes of its deaths", func() bool {
		now := activeWorkers(t, client)
		return len(now) == count && slices.ContainsFunc(now, func(w *millracev1.Worker) bool {
			return w.GetName() == victim.GetName() && w.GetIncarnation() != victim.GetIncarnation() && len(w.GetDeaths()) > 0 &&
				strings.Contains(w.GetDeaths()[0].GetCause(), "CUDA_ERROR_ILLEGAL_ADDRESS")
		})
	})
	held.check(t)
	held.check(t, millrace.WithWorkers(victim.GetName()))
}

// fails runs `millrace up` and returns its output when it gives up.
func (m *gpus) fails(t *testing.T, args ...string) string {
	t.Helper()
	program, err := withCUDA()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(soon(t), program, append([]string{"up", "--python", python()}, args...)...)
	cmd.Env = m.env
	out, err := cmd.CombinedOutput()
	var ended *exec.ExitError
	if !errors.As(err, &ended) || ended.ExitCode() <= 0 {
		t.Fatalf("millrace up %v: %v\n%s", args, err, out)
	}
	return string(out)
}

// Wrong entries in CUDA_VISIBLE_DEVICES are refused, with a list of the GPUs that exist.
func TestGPUWrongVisibleDevices(t *testing.T) {
	m := gpuMachine(t, 1, 1<<30)
	env := m.env
	for _, visible := range []string{"0,9", "GPU-nonsense,0"} {
		m.env = append(slices.Clone(env), "CUDA_VISIBLE_DEVICES="+visible)
		said := m.fails(t, "--device", "cuda")
		for _, want := range []string{fmt.Sprintf("CUDA_VISIBLE_DEVICES=%q", visible), "(GPU-", "correct or unset it"} {
			if m.fake != nil && want == "(GPU-" {
				want = "GPU-fafafafa" // the fake driver's UUID
			}
			if !strings.Contains(said, want) {
				t.Errorf("it does not say %q:\n%s", want, said)
			}
		}
	}
	m.env = append(slices.Clone(env), "CUDA_VISIBLE_DEVICES=0")
	c := m.start(t, 1, "--device-memory-limit", "64MiB", "--pinned-limit", "64MiB")
	stamp(t, c.dial(t), "gpu-0", 1, 3, 1<<20).check(t)
}

// Another program uses a GPU, and then takes the rest of its memory. The worker reports that, and
// goes on in its own memory.
func TestGPUIsUsedByAnotherProgram(t *testing.T) {
	m := gpuMachine(t, 1, 8<<30)
	before := m.takes(t, 3<<30)
	limit, pinned := "128MiB", "64MiB"
	if m.fake == nil {
		limit, pinned = "8GiB", "4GiB"
	}
	c := m.start(t, 1, "--device-memory-limit", limit, "--pinned-limit", pinned, "--spill-limit", "16GiB")
	within(t, fmt.Sprintf("the other program is named, which is process %d", before.pid), func() bool {
		said := c.log.String()
		return strings.Contains(said, "others use memory of this GPU") && (m.fake != nil || strings.Contains(said, fmt.Sprintf("pid %d with ", before.pid)))
	})
	client := c.dial(t)
	held := stamp(t, client, "gpu-0", 1, 4, sized(8<<20, 64<<20))
	m.takes(t, -(64 << 20))
	// Twice the slab, in part on the disk.
	more := stamp(t, client, "gpu-0", 100, 24, sized(10<<20, 640<<20))
	held.check(t)
	more.check(t)
	if n := len(activeWorkers(t, client)[0].GetDeaths()); n > 0 {
		t.Errorf("the worker died %d times", n)
	}
}

func sized(onFake, onGPU int) int {
	if onRealGPU() {
		return onGPU
	}
	return onFake
}

// Memory that other programs use is not available for the slab: a slab of the default size becomes
// smaller. If the size was given explicitly, nothing is started, and the error names the remedy and
// the processes that use the memory.
func TestGPUMemoryIsTakenByAnotherProgram(t *testing.T) {
	m := gpuMachine(t, 1, 8<<30)
	o := m.takes(t, int64(sized(5<<30, 90<<30)))
	said := m.fails(t, m.arguments(t, 1, "--device-memory-limit", "0.7")...)
	t.Log(said[max(0, len(said)-1500):])
	for _, want := range []string{"the device's memory is taken", "are in use", "end what else uses the GPU, or start with --device-memory-limit 0.2", "is not started again"} {
		if !strings.Contains(said, want) {
			t.Errorf("it does not say %q", want)
		}
	}
	if who := fmt.Sprintf("pid %d with ", o.pid); m.fake == nil && !strings.Contains(said, who) {
		t.Errorf("it does not say %q", who)
	}
	c := m.start(t, 1, "--pinned-limit", "1GiB")
	client := c.dial(t)
	worker := activeWorkers(t, client)[0]
	if share := float64(worker.GetMemoryLimitBytes()) / float64(worker.GetGpu().GetMemoryBytes()); share < 0.15 || share > 0.3 {
		t.Errorf("the slab takes %.2f of the GPU", share)
	}
	within(t, "the log says so", func() bool { return strings.Contains(c.log.String(), "the slab is smaller than usual") })
	stamp(t, client, worker.GetName(), 1, 4, 8<<20).check(t)
}

// Two clusters share the GPUs of a machine; each uses a part of their memory.
func TestGPUTwoClustersOnOneMachine(t *testing.T) {
	count := most(t, 2)
	m := gpuMachine(t, count, 8<<30)
	var clients []*millrace.Client
	var held []*stamped
	for i := range 2 {
		c := m.start(t, count, "--device-memory-limit", "0.35", "--pinned-limit", "256MiB")
		client := c.dial(t)
		for k, w := range activeWorkers(t, client) {
			if share := float64(w.GetMemoryLimitBytes()) / float64(w.GetGpu().GetMemoryBytes()); share < 0.34 || share > 0.35 {
				t.Errorf("a slab takes %.2f of the GPU", share)
			}
			held = append(held, stamp(t, client, w.GetName(), 1000*i+100*k, 5, 4<<20))
		}
		clients = append(clients, client)
	}
	// Each cluster knows only its own objects, and both run at the same time.
	var group sync.WaitGroup
	for _, h := range held {
		group.Go(func() {
			for range 3 {
				h.check(t)
			}
		})
	}
	group.Wait()
	for _, client := range clients {
		if now := activeWorkers(t, client); len(now) != count || slices.ContainsFunc(now, func(w *millracev1.Worker) bool { return len(w.GetDeaths()) > 0 }) {
			t.Errorf("its workers are %v", now)
		}
	}
}

// A worker on a GPU is stopped. Its mapped memory can still be read, other workers do the tasks
// that it does not finish in time, and it joins again when it continues.
func TestGPUStoppedWorker(t *testing.T) {
	needs(t, 2)
	c := gpuMachine(t, 2, 2<<30).start(t, 2, "--device-memory-limit", "256MiB", "--pinned-limit", "64MiB", "--worker-lease", "3s")
	client := c.dial(t)
	var list []*millracev1.Worker
	within(t, "both workers are active", func() bool {
		list = activeWorkers(t, client)
		return len(list) == 2
	})
	victim, survivor := list[0], list[1]
	held := stamp(t, client, victim.GetName(), 1, 8, 1<<20)
	held.check(t, millrace.WithWorkers(survivor.GetName())) // this maps its memory
	more := stamp(t, client, victim.GetName(), 100, 8, 1<<20)
	if err := syscall.Kill(int(victim.GetPid()), syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	more.check(t, millrace.WithWorkers(survivor.GetName()))
	within(t, "the scheduler notices that the worker is gone", func() bool { return len(activeWorkers(t, client)) == 1 })
	held.check(t)
	// The supervisor may have killed it, if all that took long.
	if err := syscall.Kill(int(victim.GetPid()), syscall.SIGCONT); err != nil && !errors.Is(err, syscall.ESRCH) {
		t.Fatal(err)
	}
	within(t, "the worker is back", func() bool { return len(activeWorkers(t, client)) == 2 })
	held.check(t, millrace.WithWorkers(victim.GetName()))
	more.check(t, millrace.WithWorkers(victim.GetName()))
}
