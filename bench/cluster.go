package bench

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	millrace "github.com/millrace/millrace/clients/go"
)

const (
	startTimeout = 2 * time.Minute
	stopTimeout  = 30 * time.Second
	pollEvery    = 2 * time.Millisecond
)

// ClusterConfig describes a cluster to measure.
type ClusterConfig struct {
	// Executable is the millrace binary. Default: this program.
	Executable string
	Workers    int
	// Slots of each worker. 0: the worker's share of the cores.
	Slots int
	// Zero makes workers that answer at once without running anything.
	Zero bool
	// MemoryLimit of each worker, in the notation of its flag. Empty: 256MiB.
	MemoryLimit string
	// GPUs: the memory is GPU memory, one GPU for each worker.
	GPUs bool
	// PinnedLimit, with GPUs, is the host memory that each of them spills to. Clients of the host
	// can read and write it, too. Empty: none, so that no object leaves the GPU.
	PinnedLimit string
	// Environment holds further variables for the processes.
	Environment []string
	// Python is the interpreter of executors. Empty: the command's default.
	Python string
	// Executors is the number of Python processes that each worker starts at once.
	Executors int
	// Dashboard makes the scheduler serve it, on a port that is free.
	Dashboard bool
	// Journal is the directory of the scheduler's journal. Empty: it has none.
	Journal string
	// Arguments are further arguments for the workers.
	Arguments []string
}

// Cluster is a scheduler and workers in processes of their own.
type Cluster struct {
	Scheduler, Supervisor *Process
	File                  string
	Client                *millrace.Client

	dir string
}

// Process is one child process.
type Process struct {
	*exec.Cmd
	done chan struct{} // closed when the process was reaped
	log  *tail
}

// tail keeps the last output of a process, for errors.
type tail struct {
	mu   sync.Mutex
	text []byte
}

// Write implements io.Writer.
func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, p...)
	if over := len(t.text) - 8<<10; over > 0 {
		t.text = bytes.Clone(t.text[over:])
	}
	return len(p), nil
}

// String returns the text that was kept.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.text)
}

// Start runs the program with arguments. The process dies with this one. It inherits none of our
// MILLRACE_ variables.
func Start(executable string, env []string, args ...string) (*Process, error) {
	p := &Process{Cmd: exec.Command(executable, args...), done: make(chan struct{}), log: new(tail)}
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "MILLRACE_") {
			p.Env = append(p.Env, v)
		}
	}
	p.Env = append(p.Env, env...)
	p.Stdout, p.Stderr = p.log, p.log
	p.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if err := p.Cmd.Start(); err != nil {
		return nil, fmt.Errorf("bench: start %s %s: %w", executable, strings.Join(args, " "), err)
	}
	go func() {
		defer close(p.done)
		_ = p.Wait() // The exit code is in ProcessState.
	}()
	return p, nil
}

// Exited is closed when the process has ended.
func (p *Process) Exited() <-chan struct{} { return p.done }

// PID returns the process id.
func (p *Process) PID() int { return p.Process.Pid }

// Log returns the end of the process's output.
func (p *Process) Log() string { return p.log.String() }

// Stop ends the process with SIGTERM, and with SIGKILL if that takes too long.
func (p *Process) Stop() error {
	if p == nil {
		return nil
	}
	if err := p.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-p.done:
		return nil
	case <-time.After(stopTimeout):
	}
	err := p.Process.Kill()
	<-p.done
	return errors.Join(err, fmt.Errorf("bench: %s did not stop within %s:\n%s", p.Path, stopTimeout, p.Log()))
}

// StartCluster starts a cluster, waits until its workers are active, and connects to it.
func StartCluster(ctx context.Context, c ClusterConfig) (_ *Cluster, err error) {
	if c.Executable == "" {
		if c.Executable, err = os.Executable(); err != nil {
			return nil, err
		}
	}
	if c.MemoryLimit == "" {
		c.MemoryLimit = "256MiB"
	}
	dir, err := os.MkdirTemp("", "millrace-bench-")
	if err != nil {
		return nil, err
	}
	out := &Cluster{dir: dir, File: filepath.Join(dir, "scheduler.json")}
	defer func() {
		if err != nil {
			err = errors.Join(err, out.Close())
		}
	}()
	page := ""
	if c.Dashboard {
		page = "127.0.0.1:0"
	}
	scheduler := []string{"scheduler", "--http", page, "--scheduler-file", out.File}
	if c.Journal != "" {
		scheduler = append(scheduler, "--journal", c.Journal)
	}
	if out.Scheduler, err = Start(c.Executable, c.Environment, scheduler...); err != nil {
		return nil, err
	}
	if err := waitForFile(ctx, out.File, out.Scheduler); err != nil {
		return nil, err
	}
	args := []string{"worker", "--scheduler-file", out.File, "--workers", strconv.Itoa(c.Workers), "--log-level", "warn", "--name", "host"}
	if c.GPUs {
		args = append(args, "--device", "cuda", "--device-memory-limit", c.MemoryLimit, "--pinned-limit", cmp.Or(c.PinnedLimit, "none"))
	} else {
		args = append(args, "--device", "host", "--memory-limit", c.MemoryLimit)
	}
	if c.Slots > 0 {
		args = append(args, "--slots", strconv.Itoa(c.Slots))
	}
	if c.Zero {
		args = append(args, "--zero")
	}
	if c.Python != "" {
		args = append(args, "--python", c.Python)
	}
	if c.Executors > 0 {
		args = append(args, "--executors", strconv.Itoa(c.Executors))
	}
	args = append(args, c.Arguments...)
	if out.Supervisor, err = Start(c.Executable, c.Environment, args...); err != nil {
		return nil, err
	}
	if out.Client, err = millrace.Dial(ctx, millrace.WithSchedulerFile(out.File), millrace.WithName("bench")); err != nil {
		return nil, err
	}
	if err := out.waitForWorkers(ctx, c.Workers); err != nil {
		return nil, err
	}
	return out, nil
}

// waitForWorkers returns when n workers are active. If they are late, or a process has ended, it
// returns an error with the processes' output.
func (c *Cluster) waitForWorkers(ctx context.Context, n int) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	var err error
	active := make(chan struct{})
	go func() {
		defer close(active)
		err = c.Client.WaitForWorkers(ctx, n)
	}()
	select {
	case <-active:
		if err != nil {
			return fmt.Errorf("%w; the workers said:\n%s", err, c.Supervisor.Log())
		}
		return nil
	case <-c.Supervisor.Exited():
		cancel()
		<-active
		return fmt.Errorf("bench: the workers ended:\n%s", c.Supervisor.Log())
	}
}

func waitForFile(ctx context.Context, name string, p *Process) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for {
		if _, err := os.Stat(name); err == nil {
			return nil
		}
		select {
		case <-p.Exited():
			return fmt.Errorf("bench: the scheduler ended:\n%s", p.Log())
		case <-ctx.Done():
			return fmt.Errorf("bench: the scheduler is not ready: %w\n%s", ctx.Err(), p.Log())
		case <-time.After(pollEvery):
		}
	}
}

// WorkerPIDs returns the process ids of the workers.
func (c *Cluster) WorkerPIDs(ctx context.Context) ([]int, error) {
	workers, err := c.Client.Workers(ctx)
	if err != nil {
		return nil, err
	}
	pids := make([]int, len(workers))
	for i, w := range workers {
		pids[i] = int(w.GetPid())
	}
	return pids, nil
}

// Close stops all processes and removes their directory.
func (c *Cluster) Close() error {
	var errs []error
	if c.Client != nil {
		errs = append(errs, c.Client.Close())
	}
	errs = append(errs, c.Supervisor.Stop(), c.Scheduler.Stop(), os.RemoveAll(c.dir))
	return errors.Join(errs...)
}

// settle waits until the scheduler holds no live or successful task.
func (c *Cluster) settle(ctx context.Context) error {
	for {
		info, err := c.Client.ClusterInfo(ctx)
		if err != nil {
			return err
		}
		n := info.GetTasks()
		if n.GetWaiting()+n.GetReady()+n.GetAssigned()+n.GetRunning()+n.GetSucceeded() == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pollEvery):
		}
	}
}
