// Package chaos is Test support: it kills and stops real processes while they work.
package chaos

import (
	"bufio"
	"cmp"
	"context"
	"crypto/pbkdf2"
	"crypto/sha256"
	"encoding/json"
	"flag"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	millrace "github.com/millrace/millrace/clients/go"
	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/localdir"
)

var (
	seconds = flag.Int("chaos.seconds", 0, "repeat the graph for at least this long; 0: once")
	seed    = flag.Uint64("chaos.seed", 1, "which workers die, and when")
	// protocol is the protocol between workers.
	protocol = flag.String("chaos.protocol", "auto", "auto, borrow, ucx or grpc; ipc with GPUs")
	ucxTLS   = flag.String("chaos.ucx-tls", "", "UCX transports of the workers, as --ucx-tls")
	// device is the memory of the workers of TestStampedStencil.
	device = flag.String("chaos.device", "host", "host, or cuda: fake GPUs, one for each worker; apart: none of them reaches the memory of another")
)

const (
	workers    = 3
	iterations = 4_000
	fanIn      = 10
	// eventTimeout is the longest time that a test waits for an event on a very busy machine.
	eventTimeout = 5 * time.Minute
)

// leaves is the number of leaves of a graph; in short tests it lasts for about five seconds.
func leaves() int {
	if testing.Short() {
		return 2_500
	}
	return 9_500
}

// cluster is a `millrace up` for one test.
type cluster struct {
	client *millrace.Client
	up     *exec.Cmd
	file   string
	// disk is the local directory of its workers.
	disk string
}

// start runs `millrace up` with the given further flags.
func start(t *testing.T, flags ...string) *cluster {
	t.Helper()
	bin := os.Getenv("MILLRACE_BIN")
	if bin == "" {
		t.Fatal("MILLRACE_BIN is not set: run `make chaos` or `make e2e`")
	}
	file, disk := filepath.Join(t.TempDir(), "scheduler.json"), t.TempDir()
	args := []string{"up", "--device", "host", "--workers", strconv.Itoa(workers), "--memory-limit", "512MiB", "--scheduler-file", file, "--local-directory", disk}
	args = append(args, flags...)
	if python := os.Getenv("MILLRACE_PYTHON"); python != "" {
		args = append(args, "--python", python)
	}
	up := exec.Command(bin, args...)
	log, err := os.Create(filepath.Join(t.TempDir(), "up.log"))
	if err != nil {
		t.Fatal(err)
	}
	up.Stderr = log
	out, err := up.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := up.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = up.Process.Signal(syscall.SIGTERM)
		_ = up.Wait()
		_ = log.Close()
		if left := entries(t, disk); len(left) > 0 {
			t.Errorf("left in the local directory after the end: %v", left)
		}
		if t.Failed() {
			text, _ := os.ReadFile(log.Name())
			t.Logf("last lines of the cluster's log:\n%s", text[max(0, len(text)-16<<10):])
		}
	})
	ready := make(chan error, 1)
	go func() {
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			if strings.HasPrefix(lines.Text(), "ready") {
				ready <- nil
				break
			}
		}
		for lines.Scan() { // keep the pipe empty
		}
		ready <- fmt.Errorf("up ended before it was ready: %w", cmp.Or(lines.Err(), io.EOF))
	}()
	select {
	case err := <-ready:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(eventTimeout):
		t.Fatalf("up was not ready in %v", eventTimeout)
	}
	client, err := millrace.Dial(t.Context(), millrace.WithSchedulerFile(file))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return &cluster{client: client, up: up, file: file, disk: disk}
}

// entries returns the names in a directory.
func entries(t *testing.T, directory string) (names []string) {
	t.Helper()
	list, err := os.ReadDir(directory)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		names = append(names, e.Name())
	}
	return names
}

// workerPIDs asks the cluster for the process ids of its workers.
func (c *cluster) workerPIDs(ctx context.Context) ([]int, error) {
	list, err := c.active(ctx)
	if err != nil {
		return nil, err
	}
	return pidsOf(list), nil
}

func pidsOf(list []*millracev1.Worker) (pids []int) {
	for _, w := range list {
		pids = append(pids, int(w.GetPid()))
	}
	return pids
}

func (c *cluster) active(ctx context.Context) ([]*millracev1.Worker, error) {
	return c.client.Workers(ctx, millracev1.WorkerState_WORKER_STATE_ACTIVE)
}

// children lists the processes whose parent is pid. The kernel lists a child under the thread that
// started it.
func children(pid int) (pids []int) {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, thread := range threads {
		text, err := os.ReadFile(thread)
		if err != nil {
			continue // the thread has ended
		}
		for _, field := range strings.Fields(string(text)) {
			if child, err := strconv.Atoi(field); err == nil {
				pids = append(pids, child)
			}
		}
	}
	return pids
}

// graph builds a graph of leaves that cost about a millisecond of Python each, and of reductions in
// Python and in native ops.
func graph(c *millrace.Client, round int) *millrace.GraphBuilder {
	g := c.NewGraph(fmt.Sprintf("chaos-%d", round))
	derive, crc := millrace.Python("hashlib:pbkdf2_hmac"), millrace.Python("zlib:crc32")
	var level []millrace.Key
	for i := range leaves() {
		salt := fmt.Appendf(nil, "salt-%d-%d", round, i)
		leaf := g.Add(fmt.Sprintf("leaf-%d-%d", round, i), derive, millrace.Args("sha256", []byte("millrace"), salt, iterations))
		level = append(level, g.Add(fmt.Sprintf("crc-%d-%d", round, i), crc, millrace.Args(leaf)))
	}
	for depth := 0; len(level) > 1; depth++ {
		var next []millrace.Key
		for i := 0; i < len(level); i += fanIn {
			part := level[i:min(i+fanIn, len(level))]
			terms := make([]string, len(part))
			args := make([]any, 1, fanIn+1)
			for j, key := range part {
				terms[j] = fmt.Sprintf("x%d", j)
				args = append(args, key)
			}
			args[0] = strings.Join(terms, "+")
			var options []millrace.TaskOption
			if len(level) <= fanIn {
				options = append(options, millrace.Hold())
			}
			next = append(next, g.Add(fmt.Sprintf("sum-%d-%d-%d", round, depth, i/fanIn), millrace.Native("array.map"), millrace.Args(args...), options...))
		}
		level = next
	}
	return g
}

// firstExpected is the right result of round 0, which several tests run.
var firstExpected = sync.OnceValues(func() (int64, error) { return expectedOf(0) })

// expected returns the right result of the graph.
func expected(t *testing.T, round int) int64 {
	t.Helper()
	sum, err := firstExpected()
	if round > 0 {
		sum, err = expectedOf(round)
	}
	if err != nil {
		t.Fatal(err)
	}
	return sum
}

func expectedOf(round int) (int64, error) {
	var sum int64
	for i := range leaves() {
		key, err := pbkdf2.Key(sha256.New, "millrace", fmt.Appendf(nil, "salt-%d-%d", round, i), iterations, sha256.Size)
		if err != nil {
			return 0, err
		}
		sum += int64(crc32.ChecksumIEEE(key))
	}
	return sum, nil
}

// allHaveFinishedTasks reports whether all workers are active and each of them has finished a task.
func allHaveFinishedTasks(list []*millracev1.Worker) bool {
	return len(list) == workers && !slices.ContainsFunc(list, func(w *millracev1.Worker) bool { return w.GetFinishedTasks() == 0 })
}

// TestKillEverySecond kills a worker and an executor every second. Results must not change, and
// every death must be explained.
func TestKillEverySecond(t *testing.T) {
	t.Parallel()
	c := start(t)
	ctx := t.Context()
	random := rand.New(rand.NewPCG(*seed, 0))
	want := expected(t, 0)

	killed := map[int]string{}
	var kills atomic.Int64 // of workers
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
			}
			list, err := c.active(ctx)
			// Kill no worker that has finished nothing: with slow starts no task would ever finish.
			if err != nil || !allHaveFinishedTasks(list) {
				continue
			}
			pids := pidsOf(list)
			victim := pids[random.IntN(len(pids))]
			if syscall.Kill(victim, syscall.SIGKILL) == nil {
				killed[victim] = "worker"
				kills.Add(1)
			}
			other := pids[random.IntN(len(pids))]
			for _, child := range children(other) {
				if other != victim && syscall.Kill(child, syscall.SIGKILL) == nil {
					killed[child] = "executor"
					break
				}
			}
		}
	}()

	end := time.Now().Add(time.Duration(*seconds) * time.Second)
	// On a quick machine a graph may end before the first worker is killed.
	for round := 0; kills.Load() == 0 || time.Now().Before(end); round++ {
		if round > 0 {
			want = expected(t, round)
		}
		g := graph(c.client, round)
		began := time.Now()
		run, err := g.Submit(ctx)
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		within, cancel := context.WithTimeout(ctx, 2*eventTimeout)
		sums, err := millrace.Gather[int64](within, run.Futures()...)
		cancel()
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		if len(sums) != 1 || sums[0] != want {
			t.Fatalf("round %d: got %v, want [%d]", round, sums, want)
		}
		run.Release()
		t.Logf("round %d: %d tasks, right after %s", round, g.Len(), time.Since(began).Round(time.Millisecond))
	}
	close(stop)
	<-stopped
	checkDeathsExplained(t, c, killed)
}

// checkDeathsExplained checks that every killed worker is listed as killed by SIGKILL, in the API
// and in the command's output.
func checkDeathsExplained(t *testing.T, c *cluster, killed map[int]string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), eventTimeout)
	defer cancel()
	dead := 0
	for _, what := range killed {
		if what == "worker" {
			dead++
		}
	}
	if dead == 0 {
		t.Error("no worker was killed: the graph was too short to test anything")
	}
	c.until(ctx, t, "the explanation of every death of a worker", func() bool {
		list, err := c.client.FullWorkers(ctx, millracev1.WorkerState_WORKER_STATE_ACTIVE, millracev1.WorkerState_WORKER_STATE_LOST)
		if err != nil {
			t.Fatal(err)
		}
		explained := map[int64]bool{}
		for _, w := range list {
			for _, d := range w.GetDeaths() {
				if d.GetSignal() == "SIGKILL" && d.GetCause() != "" {
					explained[d.GetPid()] = true
				}
			}
		}
		missing := 0
		for pid, what := range killed {
			if what == "worker" && !explained[int64(pid)] {
				missing++
			}
		}
		// The scheduler keeps sixteen deaths for each name. A long run has more.
		return missing == 0 || dead > 16*workers
	})
	t.Logf("killed %d workers and %d executors", dead, len(killed)-dead)
	// The command lists no lost workers. The last one that was killed is listed when it is back.
	c.until(ctx, t, "a cause of death in get workers -o wide", func() bool {
		cmd := exec.CommandContext(ctx, os.Getenv("MILLRACE_BIN"), "get", "workers", "-o", "wide", "--scheduler-file", c.file)
		out, err := cmd.CombinedOutput()
		if err != nil && ctx.Err() == nil {
			t.Fatalf("get workers: %v\n%s", err, out)
		}
		return strings.Contains(string(out), "SIGKILL")
	})
}

// TestStoppedWorker: a worker that is stopped for ten seconds does not delay the graph, and its
// late reports are ignored.
func TestStoppedWorker(t *testing.T) {
	c := start(t)
	ctx := t.Context()
	want := expected(t, 0)
	pids, err := c.workerPIDs(ctx)
	if err != nil || len(pids) != workers {
		t.Fatalf("workers: %v, %v", pids, err)
	}
	g := graph(c.client, 0)
	run, err := g.Submit(ctx)
	if err != nil {
		t.Fatal(err)
	}
	victim := pids[0]
	woken := make(chan struct{})
	// Stop it when it has objects.
	if err := awaitFinishedTask(ctx, c, victim); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(victim, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(10*time.Second, func() {
		_ = syscall.Kill(victim, syscall.SIGCONT)
		close(woken)
	})
	defer func() { <-woken }()
	within, cancel := context.WithTimeout(ctx, 2*eventTimeout)
	defer cancel()
	sums, err := millrace.Gather[int64](within, run.Futures()...)
	if err != nil {
		t.Fatal(err)
	}
	if len(sums) != 1 || sums[0] != want {
		t.Fatalf("got %v, want [%d]", sums, want)
	}
	<-woken
	if err := c.client.WaitForWorkers(within, workers); err != nil {
		t.Fatalf("the stopped worker did not come back: %v", err)
	}
	// The worker works again: submit one task for each worker.
	list, err := c.client.Workers(within, millracev1.WorkerState_WORKER_STATE_ACTIVE)
	if err != nil {
		t.Fatal(err)
	}
	for i, w := range list {
		f, err := c.client.Submit(within, millrace.Python("operator:add"), millrace.Args(i, 1), millrace.WithWorkers(w.GetName()))
		if err != nil {
			t.Fatal(err)
		}
		if sum, err := millrace.Get[int](within, f); err != nil || sum != i+1 {
			t.Fatalf("on %s: %d, %v", w.GetName(), sum, err)
		}
	}
}

// awaitFinishedTask returns when the worker has finished a task.
func awaitFinishedTask(ctx context.Context, c *cluster, pid int) error {
	stream, err := c.client.Scheduler().Watch(ctx, &millracev1.WatchRequest{Workers: true})
	if err != nil {
		return err
	}
	for {
		batch, err := stream.Recv()
		if err != nil {
			return err
		}
		for _, w := range batch.GetWorkers() {
			if int(w.GetPid()) == pid && w.GetFinishedTasks() > 0 {
				return nil
			}
		}
	}
}

// TestUpLeavesNothingBehind: when `up` ends by any signal, its processes end, too.
func TestUpLeavesNothingBehind(t *testing.T) {
	for _, signal := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGKILL} {
		t.Run(signal.String(), func(t *testing.T) {
			c := start(t)
			f, err := c.client.Submit(t.Context(), millrace.Python("os:getpid"), millrace.Args())
			if err != nil {
				t.Fatal(err)
			}
			executor, err := millrace.Get[int](t.Context(), f)
			if err != nil {
				t.Fatal(err)
			}
			pids, err := c.workerPIDs(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			pids = append(pids, executor, c.up.Process.Pid)
			if err := syscall.Kill(c.up.Process.Pid, signal); err != nil {
				t.Fatal(err)
			}
			_ = c.up.Wait()
			deadline := time.Now().Add(eventTimeout)
			for _, pid := range pids {
				for alive(pid) {
					if time.Now().After(deadline) {
						t.Fatalf("process %d outlived up by %v", pid, eventTimeout)
					}
					// The test cannot wait for a process that is not its child.
					time.Sleep(20 * time.Millisecond)
				}
			}
			if signal == syscall.SIGKILL {
				// After SIGKILL no process could remove the directories, so the next process that
				// starts does. NB: a process keeps its lock until its last thread has ended, which
				// may be after the first thread has become a zombie.
				removed := localdir.Clean(c.disk)
				for removed < workers && time.Now().Before(deadline) {
					time.Sleep(20 * time.Millisecond) // no event tells that a lock is free
					removed += localdir.Clean(c.disk)
				}
				if removed != workers {
					t.Errorf("%d of %d directories could be removed; there are %v", removed, workers, entries(t, c.disk))
				}
			} else {
				if _, err := os.Stat(c.file); !os.IsNotExist(err) {
					t.Errorf("the scheduler file is still there: %v", err)
				}
			}
		})
	}
}

// alive reports whether the process is running (a zombie is not).
func alive(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	return len(fields) > 0 && fields[0] != "Z" && fields[0] != "X"
}

// TestSchedulerFileIsComplete: the scheduler file has all the promised fields.
func TestSchedulerFileIsComplete(t *testing.T) {
	c := start(t)
	text, err := os.ReadFile(c.file)
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		ID, Address, HTTP, Token string
		PID                      int
	}
	if err := json.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	if file.ID == "" || file.Address == "" || file.Token == "" || file.PID != c.up.Process.Pid {
		t.Errorf("incomplete: %s", text)
	}
}
