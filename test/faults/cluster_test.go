// Package faults is Test support: what happens to a cluster of several hosts when the network between them, or a host,
// fails. The hosts are network namespaces; the processes are real.
package faults

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	millrace "github.com/millrace/millrace/clients/go"
	"github.com/millrace/millrace/test/netlab"
)

func TestMain(m *testing.M) { os.Exit(netlab.Main(m)) }

const (
	token = "partition"
	port  = "7000"
)

// cluster is a scheduler on host 0 and what was started beside it.
type cluster struct {
	t      *testing.T
	lab    *netlab.Lab
	binary string
	client *millrace.Client
	log    syncBuffer
}

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

// start runs a scheduler on host 0 of a lab, and a client beside the hosts.
func start(t *testing.T, hosts int) *cluster {
	t.Helper()
	c := &cluster{t: t, binary: cmp.Or(os.Getenv("MILLRACE_BIN"), filepath.Join("..", "..", "bin", "millrace")), lab: netlab.New(t, hosts)}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the processes wrote:\n%s", c.log.String())
		}
	})
	address := c.lab.Host(0).Address() + ":" + port
	c.process(0, "scheduler", "--listen", address, "--http", "", "--token", token)
	client, err := millrace.Dial(c.soon(), millrace.WithAddress(address), millrace.WithToken(token))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() }) // the scheduler may be gone
	c.client = client
	return c
}

// worker runs one worker on a host, and waits until it is registered.
func (c *cluster) worker(host int, args ...string) *exec.Cmd {
	c.t.Helper()
	address := c.lab.Host(host).Address()
	name := fmt.Sprint("w", host)
	cmd := c.process(host, append([]string{
		"worker", "--address", c.lab.Host(0).Address() + ":" + port, "--token", token,
		"--listen", address + ":0", "--name", name, "--workers", "1", "--slots", "1", "--memory-limit", "256MiB",
	}, args...)...)
	c.until("worker "+name+" is registered", func() bool {
		for _, w := range c.workers() {
			if w.Name == name+"-0" && w.State == "WORKER_STATE_ACTIVE" {
				return true
			}
		}
		return false
	})
	return cmd
}

func (c *cluster) process(host int, args ...string) *exec.Cmd {
	c.t.Helper()
	cmd := c.lab.Host(host).Command(context.Background(), c.binary, args...)
	cmd.Env = append(os.Environ(), "MILLRACE_SCHEDULER_FILE=")
	cmd.Stdout, cmd.Stderr = &c.log, &c.log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGCONT) // in case the test stopped it
		_ = cmd.Process.Signal(syscall.SIGTERM)
		killer := time.AfterFunc(10*time.Second, func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
		_ = cmd.Wait() // what it died of is the test's doing
		killer.Stop()
	})
	return cmd
}

type workerRow struct{ Name, State string }

func (c *cluster) workers() []workerRow {
	cmd := exec.CommandContext(c.soon(), c.binary, "get", "workers", "-o", "json", "--address", c.lab.Host(0).Address()+":"+port, "--token", token)
	out, err := cmd.Output()
	if err != nil {
		return nil
	}
	var list struct{ Workers []workerRow }
	if err := json.Unmarshal(out, &list); err != nil {
		c.t.Fatalf("get workers: %v\n%s", err, out)
	}
	return list.Workers
}

func (c *cluster) until(what string, holds func() bool) {
	c.t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for !holds() {
		if time.Now().After(deadline) {
			c.t.Fatalf("not within 30 s: %s", what)
		}
		time.Sleep(20 * time.Millisecond) // it happens in other processes
	}
}

func (c *cluster) soon() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 90*time.Second)
	c.t.Cleanup(cancel)
	return ctx
}

// numbers submits the numbers from 0 to n.
func (c *cluster) numbers(n float64, options ...millrace.TaskOption) *millrace.Future {
	return c.submit("array.arange", millrace.Args(n), options...)
}

func (c *cluster) sum(of *millrace.Future, options ...millrace.TaskOption) *millrace.Future {
	return c.submit("array.reduce", millrace.Args(of, "sum"), options...)
}

func (c *cluster) submit(op string, args millrace.Arguments, options ...millrace.TaskOption) *millrace.Future {
	c.t.Helper()
	f, err := c.client.Submit(c.soon(), millrace.Native(op), args, options...)
	if err != nil {
		c.t.Fatal(err)
	}
	return f
}

// value waits for a number, and logs how long that took.
func (c *cluster) value(f *millrace.Future) float64 {
	c.t.Helper()
	began := time.Now()
	a, err := f.Array(c.soon())
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
