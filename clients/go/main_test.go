package millrace

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/leaktest"
)

// TestMain starts a cluster for the examples. They find it by the environment, as any program does.
func TestMain(m *testing.M) {
	if slices.Contains(os.Args, "-test.fuzzworker") {
		os.Exit(m.Run()) // a process that only runs a fuzz target needs no cluster
	}
	stop, err := startCluster()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	if code == 0 {
		if err := leaktest.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	if err := stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// startCluster runs `millrace up` with the binary MILLRACE_BIN, or with one that is built here.
func startCluster() (stop func() error, err error) {
	dir, err := os.MkdirTemp("", "millrace-go-")
	if err != nil {
		return nil, err
	}
	remove := func() error { return os.RemoveAll(dir) }
	binary := os.Getenv("MILLRACE_BIN")
	if binary != "" {
		// go test repeats tests if files changed that they looked at. It does not see which
		// programs they run.
		if _, err := os.Stat(binary); err != nil {
			return nil, errors.Join(fmt.Errorf("MILLRACE_BIN: %w", err), remove())
		}
	} else {
		binary = filepath.Join(dir, "millrace")
		build := exec.Command("go", "build", "-o", binary, "github.com/millrace/millrace/cmd/millrace")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			return nil, errors.Join(fmt.Errorf("go build: %w\n%s", err, out), remove())
		}
	}
	file, log := filepath.Join(dir, "scheduler.json"), filepath.Join(dir, "log")
	out, err := os.Create(log)
	if err != nil {
		return nil, errors.Join(err, remove())
	}
	up := exec.Command(binary, "up", "--device", "host", "--workers", "1", "--memory-limit", "64MiB", "--worker-lease", eventTimeout.String(), "--scheduler-file", file)
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "MILLRACE_") {
			up.Env = append(up.Env, v)
		}
	}
	up.Stdout, up.Stderr = out, out
	up.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := up.Start(); err != nil {
		return nil, errors.Join(err, remove())
	}
	stop = func() error {
		err := up.Process.Signal(syscall.SIGTERM)
		return errors.Join(err, up.Wait(), out.Close(), remove())
	}
	for deadline := time.Now().Add(eventTimeout); ; time.Sleep(5 * time.Millisecond) {
		if _, err := os.Stat(file); err == nil {
			break
		}
		if time.Now().After(deadline) {
			text, _ := os.ReadFile(log) // best effort: the returned error is that the cluster is not ready
			return nil, errors.Join(fmt.Errorf("millrace up is not ready:\n%s", text), stop())
		}
	}
	if err := os.Setenv(EnvSchedulerFile, file); err != nil {
		return nil, errors.Join(err, stop())
	}
	return stop, nil
}
