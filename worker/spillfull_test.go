package worker_test

import (
	"errors"
	"os"
	osexec "os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/worker"
	"github.com/millrace/millrace/worker/workertest"
)

// The disk tier is a file system of 8 MiB, the slab has 16 MiB. A task whose result has no room in
// either fails with the reason; the worker reports the full disk, survives, and continues when
// there is room again.
func TestFullDiskFailsTheSpillNotTheWorker(t *testing.T) {
	const child = "MILLRACE_TEST_FULL_DISK"
	if os.Getenv(child) == "" {
		// A mount that no other process sees needs a namespace of its own.
		cmd := osexec.Command(os.Args[0], "-test.run=^TestFullDiskFailsTheSpillNotTheWorker$", "-test.v")
		cmd.Env = append(os.Environ(), child+"=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
		}
		out, err := cmd.CombinedOutput()
		if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSPC) {
			t.Logf("no namespaces here: %v; the same is tested in worker/store with a file that fails", err)
			return
		}
		if err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	directory := t.TempDir()
	if err := unix.Mount("tmpfs", directory, "tmpfs", 0, "size=8m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(directory, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	w := start(t, workertest.NewScheduler(t), func(c *worker.Config) {
		small(c)
		c.LocalDirectory, c.MemoryWait = directory, 30*time.Second // long enough to write 2 MiB
	})
	w.Op(1, native, "bench.bytes")
	w.Op(2, native, "bench.noop")
	const bytes = 2 << 20
	fits, failed := []uint64{}, 0
	// All tasks without room wait for it at the same time.
	for task := uint64(100); task < 116; task++ {
		w.Assign(&workerv1.Assignment{TaskId: task, Attempt: 1, OpId: 1, Rank: task, Arguments: workertest.Arguments(bytes, int(task))})
	}
	for task := uint64(100); task < 116; task++ {
		r := w.Report(task)
		if r.GetOutcome() == workerv1.TaskOutcome_TASK_OUTCOME_SUCCEEDED {
			fits = append(fits, task)
			continue
		}
		failed++
		if e := r.GetError(); e.GetReason() != "OUT_OF_MEMORY" || !strings.Contains(e.GetMessage(), "no space left on device") || !strings.Contains(e.GetMessage(), "largest holders: t1") {
			t.Fatalf("task %d: %v", task, e)
		}
	}
	// 7 blocks of 2 MiB are in the slab, 3 or 4 on disk.
	if len(fits) < 10 || failed < 4 {
		t.Errorf("%d fit, %d failed", len(fits), failed)
	}
	w.Until("a word of the full disk", func() bool { return strings.Contains(w.Stats.GetSpillFailure(), "no space left") })
	w.Assign(&workerv1.Assignment{TaskId: 200, Attempt: 1, OpId: 2})
	if r := w.Report(200); r.GetOutcome() != workerv1.TaskOutcome_TASK_OUTCOME_SUCCEEDED {
		t.Errorf("noop: %v", r)
	}
	for _, task := range fits {
		w.release(task, 1)
	}
	w.chunks(t, 300, 8, bytes)
}
