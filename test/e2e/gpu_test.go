//go:build cgo && linux

package e2e

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
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

// onRealGPU reports whether the machine's driver is used, with sizes that show the speed of the
// hardware.
func onRealGPU() bool { return os.Getenv("MILLRACE_CUDA_REAL") != "" }

// withCUDA builds the program with cgo, as a release is built. TestMain builds it without cgo,
// which shows that that works, too.
var withCUDA = sync.OnceValues(func() (string, error) {
	if os.Getenv("MILLRACE_BIN") != "" {
		return binary, nil
	}
	program := binary + "-cuda" // TestMain removes the folder
	build := exec.Command("go", "build", "-o", program, "github.com/millrace/millrace/cmd/millrace")
	build.Env = append(os.Environ(), "CGO_ENABLED=1")
	out, err := build.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("go build: %w\n%s", err, out)
	}
	return program, err
})

// startGPUs starts a cluster of workers on GPUs. The GPUs are fake unless the machine's are to be
// used.
func startGPUs(t *testing.T, gpus int, args ...string) (*cluster, *cudatest.Fake) {
	t.Helper()
	return startGPUsOf(t, gpus, 256<<20, args...)
}

// startGPUsOf is startGPUs with the given memory per fake GPU.
func startGPUsOf(t *testing.T, gpus int, memory uint64, args ...string) (*cluster, *cudatest.Fake) {
	t.Helper()
	m := gpuMachine(t, gpus, memory)
	return m.start(t, gpus, args...), m.fake
}

// gpus describes the GPUs of this machine, which clusters and other processes share.
type gpus struct {
	fake *cudatest.Fake // nil if they are real
	env  []string
}

// gpuMachine returns a machine with the given number of fake GPUs and memory per GPU, or the
// machine's real GPUs.
func gpuMachine(t *testing.T, count int, memory uint64) *gpus {
	t.Helper()
	m := &gpus{env: environment()}
	if onRealGPU() {
		return m
	}
	var err error
	if m.fake, err = cudatest.Start(count, memory); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.fake.Close(); err != nil {
			t.Error(err)
		}
	})
	m.env = environment(cudatest.Environment+"="+os.Getenv(cudatest.Environment), "MILLRACE_CUDA_LIBRARY="+m.fake.Library)
	return m
}

// arguments returns the arguments of `millrace up` for the given number of workers on GPUs.
func (m *gpus) arguments(t *testing.T, workers int, args ...string) []string {
	t.Helper()
	return append([]string{"--device", "cuda", "--workers", fmt.Sprint(workers), "--slots", "2", "--local-directory", t.TempDir()}, args...)
}

// start starts a cluster on the given number of GPUs. The test is skipped if there are fewer.
func (m *gpus) start(t *testing.T, workers int, args ...string) *cluster {
	t.Helper()
	needs(t, workers)
	program, err := withCUDA()
	if err != nil {
		t.Fatal(err)
	}
	c, err := startUpOf(program, m.env, t.TempDir(), m.arguments(t, workers, args...)...)
	return watched(t, c, err)
}

// join adds a worker to a cluster until the test ends.
func (m *gpus) join(t *testing.T, c *cluster, args ...string) {
	t.Helper()
	program, err := withCUDA()
	if err != nil {
		t.Fatal(err)
	}
	args = append([]string{"worker", "--device", "cuda", "--scheduler-file", c.file, "--slots", "2", "--local-directory", t.TempDir()}, args...)
	cmd := exec.Command(program, args...)
	cmd.Env, cmd.Stdout, cmd.Stderr = m.env, c.log, c.log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(cmd.Process.Signal(syscall.SIGTERM), cmd.Wait()); err != nil {
			t.Errorf("millrace worker: %v", err)
		}
	})
}

func someBytes(seed byte, n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{seed}).Read(b) // it never fails
	return b
}

func array(t *testing.T, content []byte) millrace.Array {
	t.Helper()
	a, err := millrace.FromSlice(content)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// checkArray checks an array that a client reads.
func checkArray(t *testing.T, f *millrace.Future, want []byte) {
	t.Helper()
	a, err := f.Array(soon(t))
	if err != nil {
		t.Fatalf("%d bytes: %v", len(want), err)
	}
	if got, err := millrace.Slice[uint8](a); err != nil || string(got) != string(want) {
		t.Fatalf("%d bytes came back as %d: %v", len(want), len(got), err)
	}
}

// Objects of any size go to workers on GPUs and come back, through shared memory and through
// streams. There are more objects than the slabs and the pinned memory hold.
func TestGPUWorkersHoldWhatClientsScatter(t *testing.T) {
	count := most(t, 2)
	c, _ := startGPUs(t, count, "--rmm-pool-size", "16MiB", "--pinned-limit", "16MiB", "--spill-limit", "1GiB")
	for name, options := range map[string][]millrace.Option{"shared memory": nil, "streams": {millrace.WithoutSharedMemory()}} {
		t.Run(name, func(t *testing.T) {
			client := c.dial(t, options...)
			var all []*millrace.Future
			var want [][]byte
			for i := range 24 {
				content := someBytes(byte(i), []int{0, 1, 1000, 300 << 10, 3<<20 + 1, 5 << 20}[i%6])
				f, err := client.Scatter(soon(t), array(t, content))
				if err != nil {
					t.Fatal(err)
				}
				all, want = append(all, f), append(want, content)
			}
			for range 2 {
				for i, f := range all {
					checkArray(t, f, want[i])
				}
			}
		})
	}
	workers, err := c.dial(t).Workers(soon(t))
	if err != nil || len(workers) != count {
		t.Fatalf("%d workers, %v", len(workers), err)
	}
	for _, w := range workers {
		if w.GetDevice() != millracev1.DeviceKind_DEVICE_KIND_CUDA || !strings.HasPrefix(w.GetGpu().GetUuid(), "GPU-") || w.GetMemoryLimitBytes() != 16<<20 {
			t.Errorf("a worker is described as %v", w)
		}
	}
	if count > 1 && workers[0].GetGpu().GetUuid() == workers[1].GetGpu().GetUuid() {
		t.Error("both workers have the same GPU")
	}
}

// A worker that is killed, and one whose GPU fails, are started again, and the cause is reported.
func TestGPUWorkersAreStartedAgain(t *testing.T) {
	c, fake := startGPUs(t, 1, "--device-memory-limit", "16MiB", "--pinned-limit", "16MiB")
	client := c.dial(t)
	one := func() *millracev1.Worker {
		t.Helper()
		var w *millracev1.Worker
		within(t, "one active worker", func() bool {
			all, err := client.FullWorkers(soon(t), millracev1.WorkerState_WORKER_STATE_ACTIVE)
			if err == nil && len(all) == 1 {
				w = all[0]
			}
			return w != nil
		})
		return w
	}
	use := func() {
		t.Helper()
		content := someBytes(1, 3<<20)
		f, err := client.Scatter(soon(t), array(t, content))
		if err != nil {
			t.Fatal(err)
		}
		checkArray(t, f, content)
	}
	next := func(w *millracev1.Worker, cause string) {
		t.Helper()
		within(t, "another life of the worker, and the cause: "+cause, func() bool {
			all, err := client.FullWorkers(soon(t), millracev1.WorkerState_WORKER_STATE_ACTIVE)
			if err != nil || len(all) != 1 || all[0].GetIncarnation() == w.GetIncarnation() {
				return false
			}
			// A life that begins before the memory of the one before is free dies of that.
			return slices.ContainsFunc(all[0].GetDeaths(), func(d *millracev1.WorkerDeath) bool {
				return strings.Contains(d.GetCause()+d.GetLogTail(), cause)
			})
		})
		use()
	}
	use()
	w := one()
	if err := syscall.Kill(int(w.GetPid()), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	next(w, "SIGKILL")
	if fake == nil {
		return // a real GPU cannot be broken for this
	}
	w = one()
	fake.StickyPID.Store(uint64(w.GetPid()))
	fake.StickyCode.Store(cudatest.ECCUncorrectable)
	defer fake.Heal()
	next(w, "CUDA_ERROR_ECC_UNCORRECTABLE")
}

// TestGPUClientRates measures a client that scatters and gathers 256 MiB.
func TestGPUClientRates(t *testing.T) {
	size, times, limits := 5<<20, 1, []string{"--device-memory-limit", "16MiB", "--pinned-limit", "32MiB"}
	if onRealGPU() {
		size, times, limits = 256<<20, 4, []string{"--device-memory-limit", "4GiB", "--pinned-limit", "8GiB"}
	}
	c, _ := startGPUs(t, 1, limits...)
	content := someBytes(1, size)
	for name, options := range map[string][]millrace.Option{"shared memory": nil, "streams": {millrace.WithoutSharedMemory()}} {
		client := c.dial(t, options...)
		into := make([]byte, size)
		for range times {
			begin := time.Now()
			f, err := client.Scatter(soon(t), array(t, content))
			if err != nil {
				t.Fatal(err)
			}
			noteRate(t, "go client, "+name+": scatter 256 MiB", size, time.Since(begin))
			begin = time.Now()
			a, err := f.Array(soon(t))
			if err != nil {
				t.Fatal(err)
			}
			noteRate(t, "go client, "+name+": gather 256 MiB", size, time.Since(begin))
			if got, err := millrace.Slice[uint8](a); err != nil || string(got) != string(content) {
				t.Errorf("other bytes came back: %v", err)
			}
			begin = time.Now()
			if _, err := f.ArrayInto(soon(t), into); err != nil {
				t.Fatal(err)
			}
			noteRate(t, "go client, "+name+": gather 256 MiB into a slice", size, time.Since(begin))
			if string(into) != string(content) {
				t.Error("other bytes came into the slice")
			}
			f.Release()
		}
	}
}

// noteRate records a rate of a real GPU.
func noteRate(t *testing.T, name string, bytes int, took time.Duration) {
	t.Helper()
	note(t, name, float64(bytes)/float64(took), "GB/s")
}

// note records a figure of a real GPU.
func note(t *testing.T, name string, value float64, unit string) {
	t.Helper()
	if !onRealGPU() {
		return
	}
	t.Logf("%-55s %8.2f %s", name, value, unit)
	file, err := os.OpenFile(os.Getenv("MILLRACE_RATES"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return // no file was asked for
	}
	_, err = fmt.Fprintf(file, "%-55s %8.2f %s\n", name, value, unit)
	if err = errors.Join(err, file.Close()); err != nil {
		t.Error(err)
	}
}
