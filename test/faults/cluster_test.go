package faults

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	millrace "github.com/millrace/millrace/clients/go"
	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/test/netlab"
)

const (
	token = "partition"
	port  = "7000"
	// eventTimeout is the longest time that a test waits for an event on a very busy machine. Every
	// request to a cluster must be complete by then.
	eventTimeout = 5 * time.Minute
)

// cluster is a scheduler on host 0 and the processes that were started with it.
type cluster struct {
	t      *testing.T
	lab    *netlab.Lab
	binary string
	client *millrace.Client
	log    syncBuffer
}

// syncBuffer collects the output of all processes.
type syncBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// start runs a scheduler on host 0 of a new lab, and a client outside of the hosts.
func start(t *testing.T, hosts int) *cluster {
	t.Helper()
	c := &cluster{t: t, binary: cmp.Or(os.Getenv("MILLRACE_BIN"), filepath.Join("..", "..", "bin", "millrace")), lab: netlab.New(t, hosts)}
	t.Cleanup(func() {
		if t.Failed() || *logFlag {
			t.Logf("the processes wrote:\n%s", c.log.String())
		}
	})
	address := c.lab.Host(0).Address() + ":" + port
	c.process(0, "scheduler", "--listen", address, "--http", "", "--token", token)
	client, err := millrace.Dial(c.ctx(), millrace.WithAddress(address), millrace.WithToken(token), millrace.WithoutSharedMemory())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() }) // the scheduler may be gone
	c.client = client
	return c
}

// spec describes one worker.
type spec struct {
	host int
	// name is the prefix of the worker's name; default: w and the number of the host.
	name string
	// protocol is the protocol that the worker reads with; default: auto.
	protocol protocol
	// slab is the size of the slab; default: 256MiB.
	slab string
	// listen is the port of its DataService; default: any.
	listen string
	// wrapper is a command that runs the command line appended to it.
	wrapper []string
	// child is the name of the worker if the test starts it like the child of a supervisor; "": the
	// command `worker` starts it.
	child string
	env   []string
	args  []string
}

// worker runs one worker on a host, and waits until it is registered.
func (c *cluster) worker(host int, args ...string) *exec.Cmd {
	c.t.Helper()
	return c.run(spec{host: host, args: args})
}

// run runs one worker, and waits until it is registered.
func (c *cluster) run(s spec) *exec.Cmd {
	c.t.Helper()
	name := cmp.Or(s.name, fmt.Sprint("w", s.host))
	line := append([]string(nil), s.wrapper...)
	line = append(line, c.binary, "worker", "--address", c.lab.Host(0).Address()+":"+port, "--token", token,
		"--listen", c.lab.Host(s.host).Address()+":"+cmp.Or(s.listen, "0"), "--name", name, "--workers", "1", "--slots", "1",
		"--memory-limit", cmp.Or(s.slab, "256MiB"))
	line = append(line, s.protocol.flags...)
	line = append(line, s.args...)
	env := s.env
	var files []*os.File
	if s.child != "" {
		env = append(slices.Clone(env), "MILLRACE_WORKER_CHILD="+s.child, "MILLRACE_WORKER_INCARNATION=")
		files = supervisorFiles(c.t, token)
	}
	cmd := c.processWith(s.host, env, files, line...)
	c.until("worker "+name+" is registered", func() bool { return c.find(name+"-0") != nil })
	return cmd
}

func (c *cluster) process(host int, args ...string) *exec.Cmd {
	c.t.Helper()
	return c.processWith(host, nil, nil, append([]string{c.binary}, args...)...)
}

// processWith runs a program on a host with these additional variables and open files.
func (c *cluster) processWith(host int, env []string, files []*os.File, line ...string) *exec.Cmd {
	c.t.Helper()
	cmd := c.lab.Host(host).Command(context.Background(), line[0], line[1:]...)
	cmd.Env = append(append(os.Environ(), "MILLRACE_SCHEDULER_FILE=", "MILLRACE_DEVICE=host"), env...)
	cmd.ExtraFiles = files
	cmd.Stdout, cmd.Stderr = &c.log, &c.log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGCONT) // in case the test stopped it
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Process.Signal(syscall.SIGINT) // a second signal: end at once, without saving objects
		killer := time.AfterFunc(30*time.Second, func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
		_ = cmd.Wait() // its exit status is not of interest
		killer.Stop()
	})
	return cmd
}

// find returns the active worker of a name, nil if there is none.
func (c *cluster) find(name string) *millracev1.Worker {
	c.t.Helper()
	list, err := c.client.FullWorkers(c.t.Context(), millracev1.WorkerState_WORKER_STATE_ACTIVE)
	if err != nil {
		c.t.Fatalf("the workers: %v", err)
	}
	for _, w := range list {
		if w.GetName() == name {
			return w
		}
	}
	return nil
}

// awaitWorker returns the active worker of a name. It waits for it, because on a busy machine a
// worker may be lost for a moment.
func (c *cluster) awaitWorker(name string) *millracev1.Worker {
	c.t.Helper()
	var w *millracev1.Worker
	c.until("worker "+name+" is active", func() bool {
		w = c.find(name)
		return w != nil
	})
	return w
}

// awaitLogLine waits until a line of the processes' logs contains all the words, and returns all
// such lines. A line arrives some time after the event that it reports.
func (c *cluster) awaitLogLine(words ...string) (lines []string) {
	c.t.Helper()
	c.until(fmt.Sprintf("a line of a log has %q", words), func() bool {
		for line := range strings.Lines(c.log.String()) {
			if strings.HasSuffix(line, "\n") && !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(line, w) }) {
				lines = append(lines, line)
			}
		}
		return len(lines) > 0
	})
	return lines
}

// awaitRestart waits until a worker has another incarnation than before, and logs the time.
func (c *cluster) awaitRestart(before *millracev1.Worker) *millracev1.Worker {
	c.t.Helper()
	var w *millracev1.Worker
	began := time.Now()
	c.until("worker "+before.GetName()+" is back", func() bool {
		w = c.find(before.GetName())
		return w != nil && w.GetIncarnation() != before.GetIncarnation()
	})
	c.t.Logf("%s is back after %v", w.GetName(), time.Since(began).Round(time.Millisecond))
	return w
}

func (c *cluster) signal(w *millracev1.Worker, s syscall.Signal) {
	c.t.Helper()
	if w.GetPid() < 100 {
		c.t.Fatalf("%s is process %d, which the test did not start", w.GetName(), w.GetPid())
	}
	if err := syscall.Kill(int(w.GetPid()), s); err != nil {
		c.t.Fatalf("%v to %s: %v", s, w.GetName(), err)
	}
}

// until waits until a condition holds. what is the condition in words.
func (c *cluster) until(what string, holds func() bool) {
	c.t.Helper()
	end := time.Now().Add(eventTimeout)
	for !holds() {
		if time.Now().After(end) {
			c.t.Fatalf("not within %v: %s", eventTimeout, what)
		}
		time.Sleep(20 * time.Millisecond) // the event is in another process
	}
}

// ctx returns a context that ends after eventTimeout.
func (c *cluster) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), eventTimeout)
	c.t.Cleanup(cancel)
	return ctx
}

// arange submits a task that makes the numbers from 0 to n-1.
func (c *cluster) arange(n float64, options ...millrace.TaskOption) *millrace.Future {
	return c.submit("array.arange", millrace.Args(n), options...)
}

func (c *cluster) sum(of *millrace.Future, options ...millrace.TaskOption) *millrace.Future {
	return c.submit("array.reduce", millrace.Args(of, "sum"), options...)
}

func (c *cluster) submit(op string, args millrace.Arguments, options ...millrace.TaskOption) *millrace.Future {
	c.t.Helper()
	f, err := c.client.Submit(c.ctx(), millrace.Native(op), args, options...)
	if err != nil {
		c.t.Fatal(err)
	}
	return f
}

// value waits for a result of one number, and logs the time.
func (c *cluster) value(f *millrace.Future) float64 {
	c.t.Helper()
	began := time.Now()
	a, err := f.Array(c.ctx())
	if err != nil {
		c.t.Fatalf("%s: %v", f.Key(), err)
	}
	c.t.Logf("%s after %v", f.Key(), time.Since(began).Round(time.Millisecond))
	v, err := millrace.Slice[float64](a)
	if err != nil || len(v) != 1 {
		c.t.Fatalf("%s: %v %v", f.Key(), v, err)
	}
	return v[0]
}
