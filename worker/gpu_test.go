//go:build cgo && linux

package worker_test

import (
	"bytes"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/memory/cuda"
	"github.com/millrace/millrace/memory/cuda/cudatest"
	"github.com/millrace/millrace/worker"
	"github.com/millrace/millrace/worker/workertest"
)

// fakeGPU is the emulation of one GPU with 256 MiB; no hardware is needed. A process can load only
// one driver.
var fakeGPU = sync.OnceValues(func() (*cudatest.Fake, error) { return cudatest.Start(1, 256<<20) })

// onGPU returns a change of the configuration: a slab of 16 MiB on that GPU, 8 MiB of pinned memory
// below it, and the disk.
func onGPU(t *testing.T) (f *cudatest.Fake, change func(*worker.Config)) {
	t.Helper()
	f, err := fakeGPU()
	if err != nil {
		t.Fatal(err)
	}
	f.Heal()
	t.Cleanup(func() {
		f.Heal()
		f.Reap()
		if left := f.Left(); left != "" {
			t.Errorf("left in the driver: %s", left)
		}
	})
	return f, func(c *worker.Config) {
		small(c)
		c.Device, c.CUDALibrary = worker.DeviceCUDA, f.Library
		c.DeviceMemoryLimit = cuda.Size{Bytes: 16 << 20}
		c.PinnedLimitBytes = 10 << 20
	}
}

func TestWorkerOnAGPUTakesAndGivesObjects(t *testing.T) {
	_, change := onGPU(t)
	w := start(t, workertest.NewScheduler(t), change)
	r := w.Registration
	if r.GetDevice() != millracev1.DeviceKind_DEVICE_KIND_CUDA || !strings.HasPrefix(r.GetGpu().GetUuid(), "GPU-") ||
		r.GetGpu().GetName() == "" || r.GetGpu().GetMemoryBytes() != 256<<20 || r.GetMemoryLimitBytes() != 16<<20 {
		t.Errorf("registered as %v", r)
	}
	d := data(t, r.GetDataAddress())
	for i, n := range []int{0, 1, 100, 64 << 10, 1<<20 + 1, 9 << 20} {
		task, content := uint64(100+i), random(byte(i), n)
		if err := write(t, d, task, bytesTensor(n), content); err != nil {
			t.Fatal(err)
		}
		_, back, failed := read(t, d, task)
		if failed != nil || !bytes.Equal(back, content) {
			t.Fatalf("%d bytes came back as %d: %v", n, len(back), failed)
		}
		w.release(task, 1)
	}
	w.Until("the inline value of the small object", func() bool {
		for _, o := range w.Objects {
			if o.GetReplica().GetTaskId() == 102 {
				v := workertest.Decode(t, o.GetInlineResult())
				return bytes.Equal(v.GetTensorValue().GetInlineData(), random(2, 100))
			}
		}
		return false
	})
	w.end(t)
}

// Data of four times the slab's size moves through pinned memory to the disk, and back.
func TestWorkerOnAGPUSpillsThroughPinnedMemoryToDisk(t *testing.T) {
	for name, pinned := range map[string]uint64{"pinned and disk": 10 << 20, "disk alone": worker.NoSpill} {
		t.Run(name, func(t *testing.T) {
			_, change := onGPU(t)
			complete := make(chan struct{})
			w := start(t, workertest.NewScheduler(t), func(c *worker.Config) {
				change(c)
				c.PinnedLimitBytes = pinned
				c.Log = slog.New(slog.NewTextHandler(&listener{to: testWriter{t}, text: "pinned memory is complete", heard: complete}, nil))
			})
			if pinned != worker.NoSpill {
				// Before the memory is pinned, results may go to the disk directly.
				select {
				case <-complete:
				case <-time.After(workertest.EventTimeout):
					t.Fatal("the memory is not pinned")
				}
			}
			d := data(t, w.Registration.GetDataAddress())
			const n, size = 16, 4<<20 - 300
			for i := range n {
				if err := write(t, d, uint64(100+i), bytesTensor(size), random(byte(i), size)); err != nil {
					t.Fatal(i, err)
				}
			}
			tiers := describe(t, d)
			if last := tiers[len(tiers)-1]; last.GetName() != "disk" || last.GetWrittenBytes() == 0 {
				t.Errorf("nothing was written to disk: %v", tiers)
			}
			if pinned != worker.NoSpill && (tiers[1].GetName() != "pinned" || tiers[1].GetWrittenBytes() == 0 || tiers[1].GetObjectBytes() == 0) {
				t.Errorf("nothing was written to pinned memory: %v", tiers)
			}
			for range 2 {
				for i := range n {
					_, back, failed := read(t, d, uint64(100+i))
					if failed != nil || !bytes.Equal(back, random(byte(i), size)) {
						t.Fatalf("object %d of %d bytes came back as %d: %v", i, size, len(back), failed)
					}
				}
			}
			w.release(100, n)
			w.Until("an empty slab", func() bool { return w.Stats != nil && w.Stats.GetMemoryUsedBytes() == 0 })
			w.end(t)
		})
	}
}

// listener passes a log on, and closes heard at the first message that contains text.
type listener struct {
	to    io.Writer
	text  string
	heard chan struct{}
	once  sync.Once
}

func (l *listener) Write(b []byte) (int, error) {
	if bytes.Contains(b, []byte(l.text)) {
		l.once.Do(func() { close(l.heard) })
	}
	return l.to.Write(b)
}

func describe(t *testing.T, d millracev1.DataServiceClient) []*millracev1.MemoryTier {
	t.Helper()
	m, err := d.DescribeMemory(t.Context(), &millracev1.DescribeMemoryRequest{})
	if err != nil {
		t.Fatal(err)
	}
	return m.GetTiers()
}

// If the driver cannot share GPU memory between processes, the worker still runs native operations,
// and reports which kinds of tasks cannot run.
func TestWorkerWhoseGPUCannotBeSharedSaysSo(t *testing.T) {
	f, change := onGPU(t)
	f.NoSharing.Store(1)
	w := echo(t, change, "upper")
	d := data(t, w.Registration.GetDataAddress())
	content := random(1, 1<<20)
	if err := write(t, d, 101, bytesTensor(len(content)), content); err != nil {
		t.Fatal(err)
	}
	if _, back, failed := read(t, d, 101); failed != nil || !bytes.Equal(back, content) {
		t.Errorf("%d bytes came back: %v", len(back), failed)
	}
	w.release(101, 1)
	w.call(7, 1, "abc")
	if m := w.Report(7).GetError().GetMessage(); !strings.Contains(m, "cannot be shared with other processes") || !strings.Contains(m, "CUDA_ERROR_NOT_SUPPORTED") {
		t.Errorf("a task of an executor ends with %q", m)
	}
	w.end(t)
}

// A MIG UUID with the prefix GPU- names no device; with it, every task of an executor would fail.
func TestExecutorsSeeTheInstanceThatTheirWorkerHas(t *testing.T) {
	const instance = "MIG-fafafafa-fafa-fafa-fafa-fafafafafa00"
	for name, c := range map[string]struct {
		given *string
		want  string
	}{
		"nothing is hidden":       {nil, instance},
		"the older notation":      {new("MIG-GPU-fafafafa-fafa-fafa-fafa-fafafafafa00/1/0"), "MIG-GPU-fafafafa-fafa-fafa-fafa-fafafafafa00/1/0"},
		"an instance of the host": {new(instance), instance},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("CUDA_VISIBLE_DEVICES", "") // so that the test framework restores it
			if c.given == nil {
				if err := os.Unsetenv("CUDA_VISIBLE_DEVICES"); err != nil {
					t.Fatal(err)
				}
			} else {
				t.Setenv("CUDA_VISIBLE_DEVICES", *c.given)
			}
			f, change := onGPU(t)
			f.MIG.Store(1)
			w := echo(t, func(c *worker.Config) {
				change(c)
				c.ExecutorEnv = []string{"ECHO_DEVICE=yes"}
			}, "env")
			if got := w.Registration.GetGpu().GetUuid(); got != instance {
				t.Errorf("registered as %s", got)
			}
			w.call(1, 1, "CUDA_VISIBLE_DEVICES")
			if got := w.text(t, 1); got != c.want {
				t.Errorf("executors are shown %q, want %q", got, c.want)
			}
			w.end(t)
		})
	}
}

func TestWorkerWithoutItsGPUSaysWhatIsMissing(t *testing.T) {
	f, change := onGPU(t)
	for name, c := range map[string]struct {
		change func(*worker.Config)
		want   string
	}{
		"no such GPU":               {func(c *worker.Config) { c.GPU = "7" }, "CUDA_VISIBLE_DEVICES"},
		"no such UUID":              {func(c *worker.Config) { c.GPU = "GPU-00000000-0000-0000-0000-000000000000" }, "GPU-0000"},
		"arenas that fill the slab": {func(c *worker.Config) { c.ExecutorArenaBytes, c.Slots = 4<<20, 4 }, "4 executors with 4.0 MiB each (--executor-arena) are 16 MiB together: at most 75 % of the slab of 16 MiB"},
		"arenas of two libraries": {func(c *worker.Config) {
			c.ExecutorArenaBytes, c.Slots, c.ExecutorArenaLibraries = 2<<20, 4, []string{"cupy", "torch"}
		}, "4 executors with 2.0 MiB for each of 2 libraries (--executor-arena, --executor-arena-for) are 16 MiB together"},
		"arenas without end": {func(c *worker.Config) { c.ExecutorArenaBytes, c.Slots = 1<<63, 4 }, "--executor-arena 3MiB or less"},
		"tiny pinned":        {func(c *worker.Config) { c.PinnedLimitBytes = 1 << 20 }, "--pinned-limit"},
	} {
		t.Run(name, func(t *testing.T) {
			config := worker.Config{
				Name: "host-0", Scheduler: "127.0.0.1:1", Slots: 1, BLASLibrary: "none", PythonCommand: []string{""}, LocalDirectory: t.TempDir(), Log: slog.New(slog.DiscardHandler),
			}
			change(&config)
			c.change(&config)
			if err := worker.Run(t.Context(), config); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v", err)
			}
		})
	}
	f.Fail("cuStreamCreateWithPriority", cudatest.OutOfMemory, 0, 1<<20)
	config := worker.Config{Name: "host-0", Scheduler: "127.0.0.1:1", BLASLibrary: "none", PythonCommand: []string{""}, Log: slog.New(slog.DiscardHandler)}
	change(&config)
	if err := worker.Run(t.Context(), config); err == nil {
		t.Error("a worker ran without a slab")
	}
}
