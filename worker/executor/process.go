package executor

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	executorv1 "github.com/millrace/millrace/gen/go/millrace/executor/v1"
	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/descriptors"
	"github.com/millrace/millrace/internal/exitcause"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/internal/orphans"
	"github.com/millrace/millrace/internal/text"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/ledger"
	"github.com/millrace/millrace/worker/lifecycle"
)

const (
	protocol        = 1
	maxMessageBytes = 64 << 20
	// watchInterval is the interval at which a working process is checked. It is also the precision
	// of timeouts.
	watchInterval = 5 * time.Millisecond
	// shutdownTimeout is how long a process may take to shut down.
	shutdownTimeout = 2 * time.Second
	// orphanTimeout is how long processes that an executor left behind may take to end after they
	// are killed.
	orphanTimeout = 500 * time.Millisecond
	// tailBytes of a process's output are kept, and quotedBytes of them are quoted when the process
	// dies: enough for the stack trace of a fault handler.
	tailBytes   = 8 << 10
	quotedBytes = 4 << 10
)

// process is one executor process, from its start to its end.
type process struct {
	pools *Pools
	kind  string
	// slot is set before joined is closed. Until then the process is a spare process, which has
	// been sent nothing but hello.
	slot   *slot
	joined chan struct{}
	// taken is closed when a slot has taken the process while it was a spare one; join follows.
	taken chan struct{}
	// exited is closed when the process has been reaped, together with the processes of its group.
	exited  chan struct{}
	cmd     *exec.Cmd
	conn    *net.UnixConn
	page    *page
	scratch string
	// oom is the value of exitcause.OOMKills when the process began to run tasks.
	oom atomic.Uint64
	// outputs are the read ends of its stdout and stderr.
	outputs []*os.File
	reading sync.WaitGroup
	// ready is closed by the reader when the process has answered hello.
	ready chan struct{}
	// broken is closed by the first of reader and writer that finds the link unusable.
	// fault is set before that; it is the reason if the process is at fault, else nil.
	broken chan struct{}
	once   sync.Once
	fault  error
	// outgoing has capacity 1. An entry means that pending is not empty.
	outgoing chan struct{}

	// The following fields are the process's own statements, fixed once ready is closed:
	// supportsSegments says whether it reads segments, supportsSplitRuns whether it accepts runs
	// split over several messages, and supportsSpare whether processes of its kind can be spare
	// ones. language is its programming language.
	supportsSegments, supportsSplitRuns, supportsSpare bool
	language                                           string

	// pending is the next message to send. rights are the descriptors that go with it, one for each
	// of its attach entries. pending and all fields below up to working are guarded by slot.mu.
	pending  *executorv1.ToExecutor
	rights   []int
	ordinal  uint64
	ops      map[*millracev1.Op]uint32
	opNames  map[opName]uint32
	lastOp   uint32
	sentFunc map[ids.FunctionHash]bool
	// segments are the segments that are attached or about to be; lastSegment is the last number
	// that was assigned.
	segments    map[memory.Space]*segment
	lastSegment uint32
	// leases are the memory that is allocated for the process itself, by request number.
	leases map[uint64]ledger.ObjectID
	// last is the run that ended last, zero before the first end. Output between two runs,
	// for example of its children, is attributed to it.
	last lifecycle.Ref
	// working has capacity 1. An entry means that the watcher has something to watch.
	working chan struct{}

	tailMu sync.Mutex
	// tail is the end of the output that the process wrote during the run tailOf, or after this run
	// and before the next one. tailOf is zero before the first run. Guarded by tailMu.
	tail   []byte
	tailOf lifecycle.Ref
	// closing: the reader's final deadline is set. Guarded by tailMu.
	closing bool
	// cause is how the process ended. It is set before exited is closed.
	cause exitcause.Cause
}

// startProcess starts a process that belongs to no slot yet. A spare process is told that it is
// one, and which modules to load in addition to Config.Preload.
func (p *Pools) startProcess(kind string, command []string, spare bool, load []string) (*process, error) {
	return startProcess(p, kind, command, &executorv1.ExecutorHello{PreloadModules: slices.Concat(p.config.Preload, load), Spare: spare})
}

func startProcess(pools *Pools, kind string, command []string, hello *executorv1.ExecutorHello) (p *process, err error) {
	c := &pools.config
	p = &process{
		pools: pools, kind: kind, joined: make(chan struct{}), taken: make(chan struct{}), exited: make(chan struct{}),
		ready: make(chan struct{}), broken: make(chan struct{}), outgoing: make(chan struct{}, 1), working: make(chan struct{}, 1),
		ops: make(map[*millracev1.Op]uint32), opNames: make(map[opName]uint32), sentFunc: make(map[ids.FunctionHash]bool),
		segments: make(map[memory.Space]*segment), leases: make(map[uint64]ledger.ObjectID),
	}
	p.oom.Store(exitcause.OOMKills())
	var cleanup []func()
	defer func() {
		if err != nil {
			for _, f := range cleanup {
				f()
			}
		}
	}()
	// NB: the results are nil when cleanup runs, so the cleanup functions use their own variables.
	scratch, err := os.MkdirTemp(c.Scratch, "executor-")
	if err != nil {
		return nil, fmt.Errorf("executor: scratch directory: %w; look at --local-directory", err)
	}
	p.scratch = scratch
	cleanup = append(cleanup, func() { _ = os.RemoveAll(scratch) }) // it is ours and empty
	if p.page, err = newPage(); err != nil {
		return nil, err
	}
	cleanup = append(cleanup, p.page.close)
	conn, theirs, err := descriptors.Pair()
	if err != nil {
		return nil, fmt.Errorf("executor: link: %w", err)
	}
	defer theirs.Close()
	p.conn = conn
	cleanup = append(cleanup, func() { _ = conn.Close() }) // nothing was sent
	slab, err := pools.sharedFile()
	if err != nil {
		return nil, err
	}
	defer slab.Close()

	p.cmd = exec.Command(command[0], command[1:]...)
	p.cmd.Dir = p.scratch
	env := append([]string{p.mark(), "MILLRACE_EXECUTOR=" + kind, "MILLRACE_WORKER=" + c.Worker}, c.Env...)
	if c.Device != nil {
		env = append(env, "CUDA_VISIBLE_DEVICES="+c.Device.Visible)
	}
	p.cmd.Env = environment(os.Environ(), env)
	p.cmd.ExtraFiles = []*os.File{theirs, slab, p.page.file}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	for _, to := range []*io.Writer{&p.cmd.Stdout, &p.cmd.Stderr} {
		r, w, err := os.Pipe()
		if err != nil {
			return nil, fmt.Errorf("executor: pipe: %w", err)
		}
		defer w.Close()
		cleanup = append(cleanup, func() { _ = r.Close() }) // only read from
		*to = w
		p.outputs = append(p.outputs, r)
	}
	if err := descriptors.CloseOnExec(); err != nil {
		return nil, fmt.Errorf("executor: %w", err)
	}
	if err := orphans.Start(p.cmd, p.cmd.Start); err != nil {
		return nil, fmt.Errorf("could not be started: %w; the command is %q", err, strings.Join(command, " "))
	}
	for _, r := range p.outputs {
		p.reading.Add(1)
		go p.readOutput(r)
	}
	p.reading.Add(2)
	pools.mu.Lock()
	hello.WorkerId, hello.MaxInlineBytes = uint32(pools.workerID), pools.inlineBytes
	pools.mu.Unlock()
	hello.ProtocolVersion, hello.WorkerName, hello.SlabBytes = protocol, c.Worker, c.Store.Space().Size()
	hello.SchedulerAddress, hello.ScratchDirectory = c.Scheduler, p.scratch
	if c.Device != nil {
		hello.Device = c.Device.describe(c.Store.Space(), len(pools.slots)*c.Processes)
	}
	go p.write(hello)
	go p.read()
	go p.wait()
	return p, nil
}

// join assigns the process to a slot. From then on, the slot can send it runs.
func (p *process) join(s *slot) {
	p.oom.Store(exitcause.OOMKills())
	p.slot = s
	close(p.joined)
}

// hasSlot reports whether the process belongs to a slot.
func (p *process) hasSlot() bool {
	select {
	case <-p.joined:
		return true
	default:
		return false
	}
}

// environment returns the worker's environment without the variables that are meant for the worker
// alone. Since the processes share the cores, libraries use one thread each unless the operator's
// environment says otherwise.
func environment(from, add []string) []string {
	defaults := map[string]string{
		"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1",
		// Return memory to the system, because processes live long.
		"MALLOC_TRIM_THRESHOLD_": "65536",
		"PYTHONUNBUFFERED":       "1",
	}
	var env []string
	for _, e := range from {
		name, _, _ := strings.Cut(e, "=")
		if strings.HasPrefix(name, "MILLRACE_") {
			continue
		}
		delete(defaults, name)
		env = append(env, e)
	}
	for name, v := range defaults {
		env = append(env, name+"="+v)
	}
	return append(env, add...)
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// mark returns an environment variable that only this process and its descendants have.
func (p *process) mark() string { return "MILLRACE_EXECUTOR_DIRECTORY=" + p.scratch }

// wait reaps the process and ends all that it left behind: its process group, and descendants that
// have left the group.
func (p *process) wait() {
	// As long as the process is not reaped, its pid is not reused, so the group is still its own.
	for unix.Waitid(unix.P_PID, p.pid(), nil, unix.WEXITED|unix.WNOWAIT, nil) == unix.EINTR {
		continue
	}
	_ = unix.Kill(-p.pid(), unix.SIGKILL)
	_ = p.cmd.Wait() // the process state holds the result
	p.cause = exitcause.Of(p.cmd.ProcessState, p.oom.Load())
	orphans.Waited(p.cmd)
	if left := orphans.End(func(pid int) bool { return orphans.Marked(pid, p.mark()+"\x00") }, orphanTimeout); len(left) > 0 {
		p.pools.config.Log.Warn("processes that an executor has left do not end", "kind", p.kind, "pid", p.pid(), "left", left)
	}
	close(p.exited)
}

// kill ends the process and its group.
func (p *process) kill() { _ = unix.Kill(-p.pid(), unix.SIGKILL) }

// awaitReady waits until the process is ready. It returns false if that does not happen.
func (p *process) awaitReady() bool {
	limit := time.NewTimer(p.pools.config.ReadyTimeout)
	defer limit.Stop()
	select {
	case <-p.ready:
		return true
	case <-limit.C:
		p.breakOff(fmt.Errorf("it said nothing for %v", p.pools.config.ReadyTimeout))
	case <-p.broken:
		// The process is about to exit, or violates the protocol. Its output may give the reason,
		// so wait a moment for it.
		select {
		case <-p.exited:
		case <-time.After(shutdownTimeout):
		}
	case <-p.exited:
	case <-p.pools.closing:
	}
	return false
}

// serve watches a ready process until it has ended.
func (p *process) serve() {
	watched := make(chan struct{})
	go p.watch(watched)
	select {
	case <-p.exited:
	case <-p.broken:
		if p.fault != nil {
			p.kill()
		}
		select {
		case <-p.exited:
		case <-time.After(shutdownTimeout):
			p.kill()
		}
	case <-p.pools.closing:
		p.slot.mu.Lock()
		p.queue().Shutdown = true
		p.slot.mu.Unlock()
		// Shutdown does not wait for a running task: its result would not be used.
		if !p.idle() {
			p.kill()
		}
		select {
		case <-p.exited:
		case <-time.After(shutdownTimeout):
			p.kill()
		}
	}
	<-p.exited
	<-watched
}

func (p *process) idle() bool {
	p.slot.mu.Lock()
	defer p.slot.mu.Unlock()
	return len(p.slot.queue) == 0
}

// close releases the resources of a process that has exited, except for the control page,
// which tells later which run is to blame. It first reads the remaining output, except for output
// of children that outlive the process.
func (p *process) close() {
	for _, r := range p.outputs {
		_ = r.SetReadDeadline(time.Now().Add(100 * time.Millisecond)) // pipes support deadlines
	}
	// The messages that it sent before it died are in the socket. They are read to the end.
	p.tailMu.Lock()
	p.closing = true
	_ = p.conn.SetReadDeadline(time.Now().Add(time.Second))
	p.tailMu.Unlock()
	p.breakOff(nil)
	p.reading.Wait()
	for _, r := range p.outputs {
		_ = r.Close() // only read from
	}
	// The GPU work that the process had submitted ended before its exit became visible,
	// so its memory can be reused.
	for _, id := range p.leases {
		p.pools.config.Store.Drop(id)
	}
	clear(p.leases)
	_ = p.conn.Close()          // the other end is gone
	_ = os.RemoveAll(p.scratch) // a file that cannot be removed was made so by a task
}

// breakOff ends the link. The first reason counts.
func (p *process) breakOff(fault error) {
	p.once.Do(func() {
		p.fault = fault
		close(p.broken)
	})
}

// readWithin sets the deadline for reading the rest of a message; the zero time removes it.
func (p *process) readWithin(limit time.Time) {
	p.tailMu.Lock()
	defer p.tailMu.Unlock()
	if !p.closing {
		_ = p.conn.SetReadDeadline(limit) // sockets support deadlines
	}
}

// describe returns a sentence on how the process ended. blamed is the run in which it died,
// nil if none. Only output of that run is quoted, not output of earlier ones.
// REQUIRES: close has returned.
func (p *process) describe(blamed *queued) string {
	text := p.cause.String()
	if p.fault != nil {
		text += ", after " + p.fault.Error()
	}
	if tail := p.lastOutput(blamed); tail != "" {
		text += "; its last output: " + tail
	}
	return text
}

func (p *process) lastOutput(blamed *queued) string {
	p.tailMu.Lock()
	defer p.tailMu.Unlock()
	if blamed != nil && blamed.run.Ref != p.tailOf {
		return ""
	}
	tail := bytes.TrimSpace(p.tail)
	if len(tail) > quotedBytes {
		return "…" + text.Tail(tail, quotedBytes)
	}
	return text.Valid(string(tail))
}

// deathError returns the error that blames a run for the death of the process.
func (p *process) deathError(cause string) *millracev1.TaskError {
	e := &millracev1.TaskError{
		Reason:   "EXECUTOR_DIED",
		Message:  fmt.Sprintf("the executor process (%s, pid %d) that ran the task died: %s", p.kind, p.pid(), cause),
		Metadata: map[string]string{"pid": fmt.Sprint(p.pid())},
	}
	if p.cause.Signal != "" {
		e.Metadata["signal"] = p.cause.Signal
	} else {
		e.Metadata["exit_code"] = fmt.Sprint(p.cause.ExitCode)
	}
	if p.cause.OutOfMemory {
		e.Metadata["out_of_memory"] = "true"
	}
	return e
}

// readOutput reads one output of the process, and attributes it to the running task, or to the last
// one between two runs.
func (p *process) readOutput(r *os.File) {
	defer p.reading.Done()
	output := exitcause.Output{File: r}
	buffer := make([]byte, 16<<10)
	for {
		n, err := output.Read(buffer)
		if n > 0 {
			var of lifecycle.Ref
			if p.hasSlot() {
				p.slot.mu.Lock()
				of = p.last
				if q := p.slot.atWork(p); q != nil {
					of = q.run.Ref
				}
				p.slot.mu.Unlock()
			}
			p.tailMu.Lock()
			if of != p.tailOf {
				p.tail, p.tailOf = p.tail[:0], of
			}
			p.tail = append(p.tail, buffer[:n]...)
			if over := len(p.tail) - tailBytes; over > 0 {
				p.tail = append(p.tail[:0], p.tail[over:]...)
			}
			p.tailMu.Unlock()
			if of.Task != 0 {
				p.pools.config.Logs.Write(of.Task, of.Attempt, buffer[:n])
			}
		}
		if err != nil {
			return
		}
	}
}

// watch checks the process periodically while it has runs. It enforces timeouts and stops runs that
// must stop.
func (p *process) watch(watched chan<- struct{}) {
	defer close(watched)
	ticks := time.NewTicker(watchInterval)
	defer ticks.Stop()
	for {
		select {
		case <-p.exited:
			return
		case <-ticks.C:
		}
		if p.check(time.Now()) {
			continue
		}
		// There is nothing to watch: block until there is.
		ticks.Stop()
		select {
		case <-p.exited:
			return
		case <-p.working:
		}
		ticks.Reset(watchInterval)
	}
}

// check checks the process once, and returns whether there is anything left to watch.
func (p *process) check(now time.Time) bool {
	p.slot.mu.Lock()
	defer p.slot.mu.Unlock()
	idle := p.detachIdle(now)
	if len(p.slot.queue) == 0 {
		return idle
	}
	q := p.slot.atWork(p)
	if q == nil {
		return true
	}
	if q.begun.IsZero() {
		q.begun = now
	}
	if q.run.Timeout > 0 && q.stopping == notStopped && now.Sub(q.begun) >= q.run.Timeout {
		q.stopping = stopTimeout
	}
	switch {
	case q.stopping == notStopped || q.killed:
	case q.stopAt.IsZero():
		q.stopAt = now
		p.page.setStop(q.ordinal)
		if err := p.cmd.Process.Signal(syscall.SIGINT); err != nil && !errors.Is(err, os.ErrProcessDone) {
			p.pools.config.Log.Error("executor cannot be interrupted", "pid", p.pid(), "error", err)
		}
	case now.Sub(q.stopAt) >= p.pools.config.StopGrace:
		q.killed = true
		p.kill()
	}
	return true
}
