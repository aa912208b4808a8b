//go:build rdma

// Package rdma is Test support: a cluster on two hosts with RDMA devices. Its tests run on the
// first of these hosts, inside the nodes that `make rdma` boots, and nowhere else.
package rdma

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	millrace "github.com/millrace/millrace/clients/go"
	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/memory/cuda/cudatest"
	"github.com/millrace/millrace/test/rdma/remote"
)

const (
	token = "rdma"
	// deadline is the time by which every request to a cluster must be complete. Emulated nodes are
	// slow.
	deadline = 5 * time.Minute
	// The tests kill a worker or node during a transfer of pieces objects of pieceBytes each.
	pieces     = 24
	pieceBytes = 6 << 20
)

// device is the device of the workers: host, or cuda for fake GPUs.
var device = cmp.Or(os.Getenv("MILLRACE_TEST_DEVICE"), "host")

// onGPUs says that the workers have fake GPUs. These compute only what moves bytes.
func onGPUs() bool { return device == "cuda" }

func TestMain(m *testing.M) {
	if !onGPUs() {
		os.Exit(m.Run())
	}
	fake, err := cudatest.Start(1, 1<<42)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	if err := fake.Close(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// ownAddress and otherAddress are the addresses of this host and the other one. labFolder is the
// directory through which we send requests to the machine that runs the nodes.
var ownAddress, otherAddress, labFolder = os.Getenv("ME"), os.Getenv("PEER"), "/run/lab"

// timedLog collects the output of processes, with the time of arrival of each line.
type timedLog struct {
	mu   sync.Mutex
	rest []byte
	at   []time.Time
	line []string
}

func (l *timedLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rest = append(l.rest, p...)
	for {
		line, rest, ok := bytes.Cut(l.rest, []byte("\n"))
		if !ok {
			return len(p), nil
		}
		l.at, l.line, l.rest = append(l.at, time.Now()), append(l.line, string(line)), rest
	}
}

// firstAfter returns the first line after a moment that contains a text, and how much later it
// arrived.
func (l *timedLog) firstAfter(moment time.Time, text string) (string, time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, line := range l.line {
		if l.at[i].After(moment) && strings.Contains(line, text) {
			return line, l.at[i].Sub(moment)
		}
	}
	return "", 0
}

func (l *timedLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.line, "\n")
}

type cluster struct {
	t       *testing.T
	binary  string
	address string
	client  *millrace.Client
	other   *remote.Host
	log     timedLog
	// key is the key of the last object that awaitRoute has made.
	key int64
}

// start runs a scheduler and worker a-0 here, and worker b-0 there.
func start(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{t: t, binary: os.Getenv("MILLRACE_BIN"), address: net.JoinHostPort(ownAddress, "7000"), key: 1 << 40}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the processes here wrote:\n%s", c.log.String())
		}
	})
	c.process("scheduler", "--listen", c.address, "--http", "", "--token", token)
	var err error
	if c.other, err = remote.Dial(net.JoinHostPort(otherAddress, "7700"), time.Minute); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.other.Close() })
	if c.client, err = millrace.Dial(c.ctx(), millrace.WithAddress(c.address), millrace.WithToken(token), millrace.WithoutSharedMemory()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.client.Close() })
	c.process(c.worker("a", ownAddress)...)
	if _, err := c.other.Start(remote.Order{Args: append([]string{c.binary}, c.worker("b", otherAddress)...), Env: []string{"MILLRACE_SCHEDULER_FILE="}}); err != nil {
		t.Fatal(err)
	}
	if err := c.client.WaitForWorkers(c.ctx(), 2); err != nil {
		t.Fatal(err)
	}
	return c
}

func (c *cluster) worker(name, host string) []string {
	args := []string{
		"worker", "--address", c.address, "--token", token, "--listen", net.JoinHostPort(host, "0"), "--name", name, "--workers", "1",
		"--slots", "1", "--spill-limit", "none", "--device", device, "--ucx-library", os.Getenv("MILLRACE_UCX_LIBRARY"), "--ucx-net-devices", "rxe0:1",
		"--python", os.Getenv("MILLRACE_PYTHON"),
	}
	if onGPUs() {
		return append(args, "--device-memory-limit", "256MiB", "--pinned-limit", "none")
	}
	return append(args, "--memory-limit", "256MiB")
}

func (c *cluster) process(args ...string) {
	c.t.Helper()
	cmd := exec.Command(c.binary, args...)
	cmd.Env = append(os.Environ(), "MILLRACE_SCHEDULER_FILE=")
	cmd.Stdout, cmd.Stderr = &c.log, &c.log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		killer := time.AfterFunc(10*time.Second, func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
		_ = cmd.Wait() // its exit status is not of interest
		killer.Stop()
	})
}

func (c *cluster) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	c.t.Cleanup(cancel)
	return ctx
}

func (c *cluster) until(what string, holds func() bool) {
	c.t.Helper()
	limit := time.Now().Add(deadline)
	for !holds() {
		if time.Now().After(limit) {
			c.t.Fatalf("not within %v: %s", deadline, what)
		}
		time.Sleep(20 * time.Millisecond) // the event is in another process
	}
}

func (c *cluster) find(name string) *millracev1.Worker {
	c.t.Helper()
	list, err := c.client.Workers(c.ctx(), millracev1.WorkerState_WORKER_STATE_ACTIVE)
	if err != nil {
		c.t.Fatal(err)
	}
	for _, w := range list {
		if w.GetName() == name {
			return w
		}
	}
	return nil
}

// stamp submits a task that checks its inputs, and makes an object of the given size and key. The
// keys of the inputs begin with first.
func (c *cluster) stamp(key, size int64, first int64, inputs []*millrace.Future, options ...millrace.TaskOption) *millrace.Future {
	c.t.Helper()
	keys, args := []int64{}, []any{key, size, nil}
	for i, in := range inputs {
		keys, args = append(keys, first+int64(i)), append(args, in)
	}
	args[2] = keys
	f, err := c.client.Submit(c.ctx(), millrace.Native("bench.stamp"), millrace.Args(args...), options...)
	if err != nil {
		c.t.Fatal(err)
	}
	return f
}

// makeObjects makes objects on b-0, with keys from first on. If they are lost, they may be made
// again on another worker.
func (c *cluster) makeObjects(first int64) (out []*millrace.Future) {
	c.t.Helper()
	for i := range int64(pieces) {
		out = append(out, c.stamp(first+i, pieceBytes, 0, nil, millrace.WithPreferredWorkers("b-0")))
	}
	for _, f := range out {
		if err := f.Wait(c.ctx()); err != nil {
			c.t.Fatal(err)
		}
	}
	return out
}

// check waits for a stamped object of 32 bytes.
func (c *cluster) check(f *millrace.Future, key int64) {
	c.t.Helper()
	a, err := f.Array(c.ctx())
	if err != nil {
		c.t.Fatal(err)
	}
	b, err := millrace.Slice[byte](a)
	if err != nil || len(b) != 32 || int64(binary.LittleEndian.Uint64(b)) != key {
		c.t.Fatalf("%x, %v", b, err)
	}
}

// route returns the path by which a reader reads from a source, according to topo.
func (c *cluster) route(probe bool, reader, source string) (path, transport string, all string) {
	c.t.Helper()
	out, err := exec.Command(c.binary, "topo", "--json", fmt.Sprint("--probe=", probe), "--address", c.address, "--token", token, "--timeout", "80s").Output()
	if err != nil {
		c.t.Fatalf("topo: %v: %s", err, out)
	}
	var answer struct {
		Pairs []struct{ Reader, Source, Path, Transport string }
	}
	if err := json.Unmarshal(out, &answer); err != nil {
		c.t.Fatal(err)
	}
	for _, p := range answer.Pairs {
		if p.Reader == reader && p.Source == source {
			path, transport = p.Path, p.Transport
		}
	}
	return path, transport, string(out)
}

// awaitRoute waits until the reader reads from the source over rc. With read, it makes the reader
// read until then, because a connection that was slow to open is not used for half a minute.
// Without read, earlier reads decide.
func (c *cluster) awaitRoute(reader, source string, read bool) {
	c.t.Helper()
	// Workers report once a second.
	c.until(reader+" reads from "+source+" over rc_verbs", func() bool {
		path, transport, _ := c.route(false, reader, source)
		if path == "ucx" && transport == "rc_verbs" {
			return true
		}
		if read {
			c.key += 2
			made := c.stamp(c.key, 1<<20, 0, nil, millrace.WithWorkers(source))
			read := c.stamp(c.key+1, 32, c.key, []*millrace.Future{made}, millrace.WithWorkers(reader))
			c.check(read, c.key+1)
			made.Release() // the slab has no room for many of them
			read.Release()
		}
		return false
	})
}

// startReading starts to read many bytes of b-0 on a-0, and returns when some of them have arrived.
func (c *cluster) startReading(first, key int64) (*millrace.Future, []*millrace.Future) {
	c.t.Helper()
	// On emulated processors the connection takes seconds to open. Until then bytes would come by
	// streams.
	c.awaitRoute("a-0", "b-0", true)
	kept := c.makeObjects(first)
	had := c.find("a-0").GetReceivedBytes()
	read := c.stamp(key, 32, first, kept, millrace.WithWorkers("a-0"))
	c.until("bytes arrive", func() bool { return c.find("a-0").GetReceivedBytes() >= had+pieceBytes })
	if got := c.find("a-0").GetReceivedBytes() - had; got >= pieces*pieceBytes {
		c.t.Fatalf("all %d bytes have arrived before the fault", got)
	}
	return read, kept
}

// TestConnectionIsProved: topo shows that both workers read from each other over rc.
func TestConnectionIsProved(t *testing.T) {
	c := start(t)
	var all string
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the last output of topo:\n%s", all)
		}
	})
	// This probe is enough if both workers have opened UCX.
	_, _, all = c.route(true, "a-0", "b-0")
	for _, p := range [][2]string{{"a-0", "b-0"}, {"b-0", "a-0"}} {
		c.awaitRoute(p[0], p[1], true)
	}
	if _, _, all = c.route(false, "a-0", "b-0"); strings.Count(all, `"rc_verbs"`) != 2 {
		t.Error("the two workers do not both read over rc_verbs")
	}
	table, err := exec.Command(c.binary, "topo", "--address", c.address, "--token", token).CombinedOutput()
	t.Logf("millrace topo: %v\n%s", err, table)
	lane := "ucx (rc_verbs)"
	if onGPUs() {
		lane = "ucx (rc_verbs, staged at both ends)"
	}
	if strings.Count(string(table), lane) != 2 {
		t.Errorf("topo does not name %q for both directions", lane)
	}
	doctor, _ := exec.Command(c.binary, "doctor", "--ucx-library", os.Getenv("MILLRACE_UCX_LIBRARY"), "--ucx-net-devices", "rxe0:1").CombinedOutput()
	t.Logf("millrace doctor:\n%s", doctor)
}

// TestMainJob: the digits of the main job, by Python functions and native operations on both hosts.
func TestMainJob(t *testing.T) {
	c := start(t)
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Getenv("MILLRACE_PYTHON"), os.Getenv("MILLRACE_EXAMPLES")+"/digits.py", "--rows", "0", "--picture", t.TempDir()+"/digits.png")
	cmd.Env = append(os.Environ(), "MILLRACE_ADDRESS="+c.address, "MILLRACE_TOKEN="+token)
	began := time.Now()
	out, err := cmd.CombinedOutput()
	t.Logf("after %v:\n%s", time.Since(began).Round(time.Second), out)
	if lines := strings.Split(strings.TrimSpace(string(out)), "\n"); err != nil || !strings.HasPrefix(lines[len(lines)-1], "ok") {
		t.Fatal(err)
	}
	for _, name := range []string{"a-0", "b-0"} {
		if w := c.find(name); w == nil || w.GetFinishedTasks() == 0 || w.GetReceivedBytes() == 0 {
			t.Errorf("worker %s did not take part: %v", name, w)
		}
	}
	c.awaitRoute("a-0", "b-0", true)
}

// TestWorkerIsKilledInTheMiddle: its objects are computed again, and the reader gets the right
// bytes.
func TestWorkerIsKilledInTheMiddle(t *testing.T) {
	c := start(t)
	read, kept := c.startReading(100, 1)
	c.awaitRoute("a-0", "b-0", false)
	victim := c.find("b-0")
	killed := time.Now()
	if err := c.other.SignalPid(int(victim.GetPid()), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	c.check(read, 1)
	t.Logf("the right bytes were there %v after the kill", time.Since(killed).Round(time.Millisecond))
	c.logPathFailure(killed)
	c.until("b-0 is back", func() bool {
		w := c.find("b-0")
		return w != nil && w.GetIncarnation() != victim.GetIncarnation()
	})
	t.Logf("b-0 is back %v after the kill", time.Since(killed).Round(time.Millisecond))
	for _, f := range kept { // a-0 has no room for these and the next ones
		f.Release()
	}
	again := c.makeObjects(200)
	c.check(c.stamp(2, 32, 200, again, millrace.WithWorkers("a-0")), 2)
	// The new process may have been opening UCX, so read again if necessary.
	c.awaitRoute("a-0", "b-0", true)
}

// TestWorkerIsStoppedInTheMiddle: a worker that is silent for longer than its lease is given up,
// and its objects are computed again. When it continues, it comes back, and is read over rc again.
func TestWorkerIsStoppedInTheMiddle(t *testing.T) {
	c := start(t)
	read, kept := c.startReading(100, 1)
	victim := c.find("b-0")
	stopped := time.Now()
	if err := c.other.SignalPid(int(victim.GetPid()), syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	c.check(read, 1)
	t.Logf("the right bytes were there %v after the stop", time.Since(stopped).Round(time.Millisecond))
	c.logPathFailure(stopped)
	c.until("b-0 is given up", func() bool { return c.find("b-0") == nil })
	if err := c.other.SignalPid(int(victim.GetPid()), syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	continued := time.Now()
	c.until("b-0 is back", func() bool { return c.find("b-0") != nil })
	t.Logf("b-0 is back %v after it went on", time.Since(continued).Round(time.Millisecond))
	for _, f := range kept { // a-0 has no room for these and the next ones
		f.Release()
	}
	again := c.makeObjects(200)
	c.check(c.stamp(2, 32, 200, again, millrace.WithWorkers("a-0")), 2)
	c.awaitRoute("a-0", "b-0", true)
}

// logPathFailure logs the time at which the reader's connection failed. If it did not fail, all
// bytes had arrived before the kill, which is an error of the test.
func (c *cluster) logPathFailure(killed time.Time) {
	c.t.Helper()
	line, after := c.log.firstAfter(killed, `"msg":"a path failed","worker":"a-0","path":"ucx"`)
	if line == "" {
		c.t.Error("no read over ucx failed: all bytes had arrived before")
		return
	}
	c.t.Logf("the route failed after %v: %s", after.Round(time.Millisecond), line)
}

// TestNodeIsKilledInTheMiddle must be the last test, because the other host loses its power.
func TestNodeIsKilledInTheMiddle(t *testing.T) {
	c := start(t)
	read, _ := c.startReading(100, 1)
	c.awaitRoute("a-0", "b-0", false)
	if err := os.WriteFile(labFolder+"/kill-1", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	c.until("the power is cut", func() bool { _, err := os.Stat(labFolder + "/killed-1"); return err == nil })
	killed := time.Now()
	c.check(read, 1)
	t.Logf("the right bytes are there %v after the power cut", time.Since(killed).Round(time.Millisecond))
	c.logPathFailure(killed)
	c.until("b-0 is given up", func() bool { return c.find("b-0") == nil })
	t.Logf("b-0 is given up %v after the power cut", time.Since(killed).Round(time.Millisecond))
}
