// Package e2e is Test support: acceptance tests with the real binary, in processes on loopback.
package e2e

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	millrace "github.com/millrace/millrace/clients/go"
)

// eventTimeout is the longest time that a test waits for an event on a very busy machine.
const eventTimeout = 5 * time.Minute

// binary is the tested program: MILLRACE_BIN, else TestMain builds it.
var binary string

// shared is the cluster of the tests that do not disturb other tests. Each of these tests has a
// namespace of its own.
var shared *cluster

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	if order := os.Getenv(otherEnv); order != "" {
		return otherProgram(order)
	}
	dir, err := os.MkdirTemp("", "millrace-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	binary = os.Getenv("MILLRACE_BIN")
	if binary == "" {
		binary = filepath.Join(dir, "millrace")
		build := exec.Command("go", "build", "-o", binary, "github.com/millrace/millrace/cmd/millrace")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "go build: %v\n%s", err, out)
			return 1
		}
	}
	if shared, err = startUp(dir, "--device", "host", "--workers", "2", "--slots", "1", "--memory-limit", "256MiB"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := m.Run()
	if err := shared.stop(syscall.SIGTERM); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	if code != 0 {
		fmt.Fprintf(os.Stderr, "the shared cluster wrote:\n%s\n", shared.log.String())
	}
	return code
}

// python is the interpreter in which millrace is installed.
func python() string {
	if p := os.Getenv("MILLRACE_PYTHON"); p != "" {
		return p
	}
	if p, err := filepath.Abs("../../.venv/bin/python"); err == nil {
		if _, err := os.Stat(p); err == nil {
			return p
		}
	}
	return "python3"
}

// cluster is one `millrace up`.
type cluster struct {
	millrace.SchedulerFile
	file  string
	cmd   *exec.Cmd
	log   *lockedBuffer
	ended chan struct{}
	// said is the text that it wrote to stdout before the line "ready".
	said *lockedBuffer
	// readyAfter is the time from the start to the line "ready".
	readyAfter time.Duration
}

// lockedBuffer collects the output of a process.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// patience is the settings that let commands, schedulers and workers go on where processes stand
// still for seconds. Tests of limits set their own.
var patience = []string{
	"MILLRACE_TIMEOUT=" + eventTimeout.String(), "MILLRACE_WORKER_LEASE=1m", "MILLRACE_RESTART_GRACE=10m", "MILLRACE_DEATH_TIMEOUT=10m", "MILLRACE_ELECTION_TIMEOUT=3s",
}

// environment returns our environment without the settings of Millrace, but with patience, and
// without GPUs unless a flag asks for them.
func environment(add ...string) []string {
	env := append([]string{"MILLRACE_DEVICE=host"}, patience...)
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "MILLRACE_") {
			env = append(env, v)
		}
	}
	return append(env, add...)
}

func startUp(dir string, args ...string) (*cluster, error) {
	return startUpOf(binary, environment(), dir, args...)
}

// startUpOf starts a cluster with the given program and environment.
func startUpOf(binary string, env []string, dir string, args ...string) (*cluster, error) {
	c := &cluster{file: filepath.Join(dir, "scheduler.json"), log: new(lockedBuffer), said: new(lockedBuffer), ended: make(chan struct{})}
	c.cmd = exec.Command(binary, append([]string{"up", "--scheduler-file", c.file, "--python", python()}, args...)...)
	c.cmd.Env = env
	c.cmd.Stderr = c.log
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	began := time.Now()
	if err := c.cmd.Start(); err != nil {
		return nil, err
	}
	ready := make(chan error, 1)
	go func() {
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			if strings.HasPrefix(lines.Text(), "ready") {
				c.readyAfter = time.Since(began)
				ready <- nil
				break
			}
			_, _ = fmt.Fprintln(c.said, lines.Text())
		}
		_, err := io.Copy(c.log, out)
		ready <- cmp.Or(lines.Err(), err, io.EOF)
		_ = c.cmd.Wait() // The exit code is in ProcessState.
		close(c.ended)
	}()
	select {
	case err = <-ready:
	case <-time.After(eventTimeout):
		err = fmt.Errorf("not ready within %v", eventTimeout)
	}
	if err == nil {
		c.SchedulerFile, err = millrace.ReadSchedulerFile(c.file)
	}
	if err != nil {
		_ = c.cmd.Process.Kill()
		return nil, fmt.Errorf("millrace up: %w\n%s", err, c.log.String())
	}
	return c, nil
}

func startCluster(t *testing.T, args ...string) *cluster {
	t.Helper()
	c, err := startUp(t.TempDir(), args...)
	return watched(t, c, err)
}

// watched stops a cluster at the end of the test.
func watched(t *testing.T, c *cluster, err error) *cluster {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.stop(syscall.SIGTERM); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("the cluster wrote:\n%s", c.log.String())
		}
	})
	return c
}

// stop signals `up` and waits until it has ended. A second stop does nothing.
func (c *cluster) stop(signal syscall.Signal) error {
	if err := c.cmd.Process.Signal(signal); errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	select {
	case <-c.ended:
		return nil
	case <-time.After(eventTimeout):
		_ = c.cmd.Process.Kill()
		return fmt.Errorf("millrace up did not end within %v of %s\n%s", eventTimeout, signal, c.log.String())
	}
}

// descendants lists the processes below pid.
func descendants(pid int) []int {
	var pids []int
	lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		return nil
	}
	for _, list := range lists {
		text, err := os.ReadFile(list)
		if err != nil {
			continue // The thread has ended.
		}
		for _, field := range strings.Fields(string(text)) {
			if child, err := strconv.Atoi(field); err == nil {
				pids = append(append(pids, child), descendants(child)...)
			}
		}
	}
	return pids
}

func commandLine(pid int) string {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return ""
	}
	return strings.ReplaceAll(string(text), "\x00", " ")
}

// within polls until the condition holds, because the event happens in another process.
func within(t *testing.T, what string, holds func() bool) {
	t.Helper()
	deadline := time.Now().Add(eventTimeout)
	for !holds() {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", eventTimeout, what)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func soon(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), eventTimeout)
	t.Cleanup(cancel)
	return ctx
}

// dial connects to a cluster, in a namespace of the test.
func (c *cluster) dial(t *testing.T, options ...millrace.Option) *millrace.Client {
	t.Helper()
	options = append([]millrace.Option{millrace.WithSchedulerFile(c.file), millrace.WithNamespace(namespace(t))}, options...)
	client, err := millrace.Dial(soon(t), options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return client
}

func namespace(t *testing.T) string {
	t.Helper()
	return strings.ReplaceAll(t.Name(), "/", ".")
}

// command runs the binary against the cluster and returns its output and exit code.
func (c *cluster) command(t *testing.T, stdin string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	cmd := exec.CommandContext(soon(t), binary, args...)
	cmd.Env = environment(millrace.EnvSchedulerFile + "=" + c.file)
	cmd.Stdin = strings.NewReader(stdin)
	var out, err bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &err
	if e := cmd.Run(); e != nil {
		var exit *exec.ExitError
		if !errors.As(e, &exit) {
			t.Fatalf("millrace %s: %v", strings.Join(args, " "), e)
		}
	}
	return out.String(), err.String(), cmd.ProcessState.ExitCode()
}

// succeed runs the binary and decodes its JSON.
func (c *cluster) succeed(t *testing.T, args ...string) map[string]any {
	t.Helper()
	out, errs, code := c.command(t, "", args...)
	if code != 0 {
		t.Fatalf("millrace %s: exit code %d\n%s%s", strings.Join(args, " "), code, out, errs)
	}
	return decode(t, out)
}

func decode(t *testing.T, text string) map[string]any {
	t.Helper()
	var v map[string]any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("not one JSON object: %v\n%s", err, text)
	}
	return v
}

// dig follows names and indices into decoded JSON.
func dig(v any, path ...any) any {
	for _, p := range path {
		switch p := p.(type) {
		case string:
			m, _ := v.(map[string]any)
			v = m[p]
		case int:
			l, _ := v.([]any)
			if p >= len(l) {
				return nil
			}
			v = l[p]
		}
	}
	return v
}
