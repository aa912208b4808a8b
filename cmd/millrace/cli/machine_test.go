//go:build cgo && linux

package cli

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/millrace/millrace/memory/cuda/cudatest"
	"github.com/millrace/millrace/worker/supervisor"
)

// asProgram is the environment variable that makes the test binary run as the millrace program.
const asProgram = "MILLRACE_CLI_TEST_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" || os.Getenv(supervisor.ChildEnv) != "" {
		os.Exit(Main(os.Args[1:]))
	}
	code := m.Run()
	if gpus != nil {
		if err := gpus.Close(); err != nil && code == 0 {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

var (
	gpus *cudatest.Fake // nil until twoGPUs was called
	// twoGPUs starts two fake GPUs of 256 MiB each, without real GPUs. A process can have one
	// driver.
	twoGPUs = sync.OnceValues(func() (_ *cudatest.Fake, err error) {
		gpus, err = cudatest.Start(2, 256<<20)
		return gpus, err
	})
)

// patience is the longest time that a test waits for an event.
const patience = 5 * time.Minute

func program(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	f, err := twoGPUs()
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithTimeout(context.Background(), 4*patience) // a program of several waits
	t.Cleanup(stop)
	cmd := exec.CommandContext(ctx, os.Args[0], args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	cmd.Env = append(os.Environ(), asProgram+"=1", "MILLRACE_CUDA_LIBRARY="+f.Library, "MILLRACE_NVML_LIBRARY=none", "MILLRACE_PINNED_LIMIT=10MiB",
		"MILLRACE_DEVICE_MEMORY_LIMIT=16MiB", "MILLRACE_LOCAL_DIRECTORY="+t.TempDir(), "MILLRACE_SPILL_LIMIT=16MiB", "MILLRACE_PROTOCOL=grpc",
		"MILLRACE_WORKER_LEASE=1m", "MILLRACE_TIMEOUT=5m") // no more than a busy machine may need
	return cmd
}

// says runs the program and returns its output.
func says(t *testing.T, env []string, args ...string) (string, error) {
	t.Helper()
	cmd := program(t, args...)
	cmd.Env = append(cmd.Env, env...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// cluster is a running `millrace up`.
type cluster struct {
	greeting string
	env      []string
	cmd      *exec.Cmd
	log      *bytes.Buffer
}

func up(t *testing.T, args ...string) *cluster {
	t.Helper()
	return upOf(t, program(t, append([]string{"up"}, args...)...), nil)
}

// upOf is up with further environment variables.
func upOf(t *testing.T, cmd *exec.Cmd, env []string) *cluster {
	t.Helper()
	cmd.Env = append(cmd.Env, env...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c := &cluster{cmd: cmd, log: &log}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("said:\n%s\n%s", c.greeting, log.String())
		}
	})
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		c.greeting += lines.Text() + "\n"
		if env, ok := strings.CutPrefix(strings.TrimSpace(lines.Text()), "shell    export "); ok {
			c.env = strings.Fields(env)
		}
		if strings.HasPrefix(lines.Text(), "ready ") {
			return c
		}
	}
	t.Fatal("it was never ready")
	return nil
}

type listed struct {
	Workers []struct {
		Name, State, Device, Pid string
		Gpu                      struct {
			UUID, Placement string
			Links           []struct {
				UUID       string
				PeerAccess bool
			}
		}
	}
}

func TestUpStartsAWorkerOnEachGPU(t *testing.T) {
	c := up(t) // --device auto
	if !strings.Contains(c.greeting, "device   cuda: 2 x ") {
		t.Errorf("greeting: %s", c.greeting)
	}
	text, err := says(t, c.env, "get", "workers", "-o", "json")
	var got listed
	if err != nil || json.Unmarshal([]byte(text), &got) != nil || len(got.Workers) != 2 {
		t.Fatalf("%v: %s", err, text)
	}
	for i, w := range got.Workers {
		if !strings.HasPrefix(w.Name, "gpu-") || w.Gpu.UUID == "" || w.Gpu.Placement == "" || len(w.Gpu.Links) != 1 || !w.Gpu.Links[0].PeerAccess ||
			w.Gpu.Links[0].UUID != got.Workers[1-i].Gpu.UUID {
			t.Errorf("%+v", w)
		}
	}
	if a, b := got.Workers[0], got.Workers[1]; (a.Name < b.Name) != (a.Gpu.UUID < b.Gpu.UUID) {
		t.Errorf("names do not follow UUIDs: %+v", got.Workers)
	}
	for _, wide := range [][]string{{"get", "workers", "-o", "wide"}, {"topo"}} {
		text, err := says(t, c.env, wide...)
		if err != nil || !strings.Contains(text, got.Workers[0].Gpu.UUID) {
			t.Errorf("%v: %v: %s", wide, err, text)
		}
	}
}

// active lists the workers that are not lost.
func (c *cluster) active(t *testing.T) listed {
	t.Helper()
	text, err := says(t, c.env, "get", "workers", "--state", "ACTIVE", "-o", "json")
	var got listed
	if err != nil || json.Unmarshal([]byte(text), &got) != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return got
}

func (l listed) pid(t *testing.T) (pid int) {
	t.Helper()
	if len(l.Workers) != 1 {
		t.Fatalf("want one worker: %+v", l)
	}
	if _, err := fmt.Sscan(l.Workers[0].Pid, &pid); err != nil {
		t.Fatal(err)
	}
	return pid
}

// another waits until the only worker has another process id.
func (c *cluster) another(t *testing.T, than int) listed {
	t.Helper()
	for deadline := time.Now().Add(patience); ; {
		now := c.active(t)
		if len(now.Workers) == 1 && now.pid(t) != than {
			return now
		}
		if time.Now().After(deadline) {
			t.Fatalf("it did not come back: %+v", now)
		}
	}
}

func TestAWorkerIsPutBackOnItsGPU(t *testing.T) {
	c := up(t, "--device", "cuda", "--gpu", "1")
	before := c.active(t)
	if err := syscall.Kill(before.pid(t), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	after := c.another(t, before.pid(t))
	if after.Workers[0].Gpu.UUID != before.Workers[0].Gpu.UUID || after.Workers[0].Name != before.Workers[0].Name {
		t.Errorf("before %+v, after %+v", before, after)
	}
}

func TestADeviceThatDiesIsReplacedThenRetired(t *testing.T) {
	f, err := twoGPUs()
	if err != nil {
		t.Fatal(err)
	}
	c := up(t, "--device", "cuda", "--gpu", "0")
	worker := c.active(t)
	defer f.Heal()
	for range 2 {
		pid := worker.pid(t)
		f.StickyPID.Store(uint64(pid))
		f.StickyCode.Store(cudatest.ECCUncorrectable)
		worker = c.another(t, pid)
		// The report of the death may arrive after the next process has started.
		for deadline := time.Now().Add(patience); ; {
			text, err := says(t, c.env, "get", "workers", "-o", "wide")
			if err == nil && strings.Contains(text, "CUDA_ERROR_ECC_UNCORRECTABLE") {
				break
			}
			if err != nil || time.Now().After(deadline) {
				t.Fatalf("the cause is not shown: %v: %s", err, text)
			}
		}
	}
	f.StickyPID.Store(uint64(worker.pid(t)))
	// The only worker is retired; the cluster goes on, and shows the reason.
	retired := "gpu-0 is retired: " + worker.Workers[0].Gpu.UUID
	for deadline := time.Now().Add(patience); ; {
		text, err := says(t, c.env, "get", "workers", "--state", "LOST", "-o", "wide")
		if err == nil && strings.Contains(text, retired) {
			break
		}
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("the retirement is not shown: %v: %s", err, text)
		}
	}
	if err := c.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := c.cmd.Wait(); err != nil || !strings.Contains(c.log.String(), retired) {
		t.Errorf("%v: %s", err, c.log.String())
	}
}

func TestGPUProblemsAreReported(t *testing.T) {
	// It is below a directory of this test: a fixed name, such as /nonexistent, may exist on a
	// machine.
	missing := filepath.Join(t.TempDir(), "missing")
	for name, c := range map[string]struct {
		env  []string
		args []string
		want string
	}{
		"too many workers":   {nil, []string{"up", "--device", "cuda", "--workers", "3"}, "there are 2 GPUs"},
		"no such GPU":        {nil, []string{"up", "--gpu", "7"}, "--gpu 7: there are 0 (GPU-"},
		"no such device":     {nil, []string{"up", "--device", "tpu"}, "auto, host or cuda"},
		"no driver":          {nil, []string{"up", "--device", "cuda", "--cuda-library", "/nonexistent/libcuda.so.1"}, "--device host"},
		"too many visible":   {[]string{"CUDA_VISIBLE_DEVICES=0,1,9"}, []string{"up"}, `CUDA_VISIBLE_DEVICES="0,1,9" names 3 GPUs, of which the driver knows 2`},
		"nonsense as a size": {nil, []string{"up", "--device-memory-limit", "much"}, "--device-memory-limit"},
		"no such directory":  {nil, []string{"up", "--device", "host", "--working-directory", missing}, "--working-directory: stat " + missing + ": no such file or directory; name"},
		"no directory":       {nil, []string{"up", "--device", "host", "--working-directory", "/dev/null"}, "--working-directory: /dev/null is not a directory; name"},
		"no such library":    {nil, []string{"up", "--executor-arena-for", "cupy,numba"}, "--executor-arena-for numba: some of cupy, rmm and torch"},
	} {
		t.Run(name, func(t *testing.T) {
			if text, err := says(t, c.env, c.args...); err == nil || !strings.Contains(text, c.want) {
				t.Errorf("%v: %s", err, text)
			}
		})
	}
}

func TestDoctorLooksAtGPUs(t *testing.T) {
	text, _ := says(t, nil, "doctor") // this test does not depend on the machine's health
	for _, want := range []string{"gpu-driver", "2 GPUs", "workers would be started on 2", "gpu GPU-", "gpu-peers", "nvrtc", "cublas", "cusolver", "cufft", "pinned-memory", "dev-shm"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing in\n%s", want, text)
		}
	}
	gpus.NoSharing.Store(1)
	text, _ = says(t, nil, "doctor")
	gpus.Heal()
	if !strings.Contains(text, "cannot be shared with other processes") || !strings.Contains(text, "--device host") {
		t.Errorf("it does not say that memory cannot be shared:\n%s", text)
	}
	text, err := says(t, []string{"CUDA_VISIBLE_DEVICES=0,1,9"}, "doctor")
	if err == nil || !strings.Contains(text, "correct or unset CUDA_VISIBLE_DEVICES") {
		t.Errorf("%v: %s", err, text)
	}
	text, _ = says(t, []string{"MILLRACE_CUDA_LIBRARY=/nonexistent/libcuda.so.1"}, "doctor")
	if !strings.Contains(text, "none: workers use host memory") {
		t.Errorf("without a driver: %s", text)
	}
}
