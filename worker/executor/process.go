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
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	executorv1 "github.com/millrace/millrace/gen/go/millrace/executor/v1"
	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/controlpage"
	"github.com/millrace/millrace/internal/descriptors"
	"github.com/millrace/millrace/internal/exitcause"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/internal/orphans"
	"github.com/millrace/millrace/internal/text"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/ledger"
	"github.com/millrace/millrace/worker/lifecycle"
	"github.com/millrace/millrace/worker/tasklog"
)

const (
	protocol = 1
	// maxMessageBytes bounds a message in both directions (docs/executor-protocol.md). A longer one
	// shows that the other side does not speak the protocol.
	maxMessageBytes = 64 << 20
	// watchInterval is the interval at which a working process is checked. It is also the precision
	// of timeouts.
	watchInterval = 5 * time.Millisecond
	// shutdownTimeout is how long a process may take to shut down.
	shutdownTimeout = 2 * time.Second
	// orphanTimeout is how long processes that an executor left behind may take to end after they
	// are killed.
	orphanTimeout = 500 * time.Millisecond
	// outputTimeout is how long the remaining output of a process that has ended is read: children
	// that outlive it may keep its pipes open. messageTimeout is the same for the messages that it
	// sent before it ended.
	outputTimeout  = 100 * time.Millisecond
	messageTimeout = time.Second
	// outputBuffer is the size of the buffer for output: the most that one log entry takes.
	outputBuffer = 16 << 10
	// mmapThreshold is the size from which malloc of a process gives freed memory back at once, in
	// bytes: the greatest that malloc accepts.
	mmapThreshold = 32 << 20
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
	exited chan struct{}
	// startedAt is the time at which it was started.
	startedAt time.Time

	cmd     *exec.Cmd
	conn    *net.UnixConn
	page    *controlpage.Page
	scratch string
	// oom is the value of exitcause.OOMKills when the process began to run tasks.
	oom atomic.Uint64
	// overLimit is the reason if the process was killed because functions used too much memory.
	// replaced: it was killed while it was idle, to free its memory.
	overLimit atomic.Pointer[string]
	replaced  atomic.Bool
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
	// split over several messages, supportsSpare whether processes of its kind can be spare ones,
	// supportsCalls whether it takes calls, and writesCalled whether the control page tells which
	// function it has called. language is its programming language.
	supportsSegments, supportsSplitRuns, supportsSpare, supportsCalls, writesCalled bool
	language                                                                        string

	calls calls
	// plugged are the plugins that the process has. It belongs to the slot's goroutine until the
	// process can take runs, then to ApplyPlugins.
	plugged []Plugin

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
	last tasklog.Source
	// ended is the number of runs that ended in it. idleSince is the time at which the last of them
	// did, or at which the process became ready.
	ended     uint64
	idleSince time.Time
	// retired: the process was told to end, because the slot does not need it any more.
	retired bool
	// needed: the process said that it must not end for being idle.
	needed bool
	// working has capacity 1. An entry means that the watcher has something to watch.
	working chan struct{}

	tailMu sync.Mutex
	// tail is the end of the output that the process wrote during the run tailOf, or after this run
	// and before the next one. tailOf is zero before the first run. Guarded by tailMu.
	tail   []byte
	tailOf lifecycle.Ref
	// closing: the reader's final deadline is set. Guarded by tailMu.
	closing bool
	// settled is closed when the slot has settled the runs of the process after its end.
	settled chan struct{}
	// renewed: the process was ended to start another one. It is set before the process is killed,
	// and read after its end.
	renewed atomic.Bool
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
		pools: pools, kind: kind, joined: make(chan struct{}), settled: make(chan struct{}), taken: make(chan struct{}), exited: make(chan struct{}),
		ready: make(chan struct{}), broken: make(chan struct{}), outgoing: make(chan struct{}, 1), working: make(chan struct{}, 1),
		ops: make(map[*millracev1.Op]uint32), opNames: make(map[opName]uint32), sentFunc: make(map[ids.FunctionHash]bool),
		segments: make(map[memory.Space]*segment), leases: make(map[uint64]ledger.ObjectID),
		calls: calls{open: make(map[uint64]chan *executorv1.ExecutorReturn)},
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
	if p.page, err = controlpage.New(); err != nil {
		return nil, err
	}
	cleanup = append(cleanup, p.page.Close)
	if c.ControlPage != nil {
		c.ControlPage(p.page.File)
	}
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
	p.cmd.Env = environment(os.Environ(), env, pools.config.Memory.kept(c.Processes))
	p.cmd.ExtraFiles = []*os.File{theirs, slab, p.page.File}
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
	p.startedAt = time.Now()
	for i, r := range p.outputs {
		p.reading.Add(1)
		go p.readOutput(r, i > 0)
	}
	p.reading.Add(2)
	pools.mu.Lock()
	hello.WorkerId, hello.MaxInlineBytes = uint32(pools.workerID), pools.inlineBytes
	pools.mu.Unlock()
	hello.ProtocolVersion, hello.WorkerName, hello.SlabBytes = protocol, c.Worker, c.Store.Space().Size()
	hello.SchedulerAddress, hello.DataAddress, hello.ScratchDirectory = c.Scheduler, c.Address, p.scratch
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

// Variables of the worker's environment that its processes get as well.
const (
	// asDistributed makes Python processes load the stand-in for the package distributed.
	asDistributed = "MILLRACE_AS_DISTRIBUTED"
	// profile says whether Python processes take samples of the stacks of tasks.
	profile = "MILLRACE_PROFILE"
)

// environment returns the worker's environment without the variables that are meant for the worker
// alone. Since the processes share the cores, libraries use one thread each unless the operator's
// environment says otherwise. kept is the freed memory in bytes that malloc of a process may keep.
func environment(from, add []string, kept uint64) []string {
	defaults := map[string]string{
		"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1",
		// Tasks allocate and free arrays of similar sizes. Memory that is returned to the system
		// after each must be cleared again for the next, which costs as much as computing in it.
		// Idle executors of Python return what they have kept.
		"MALLOC_TRIM_THRESHOLD_": strconv.FormatUint(kept, 10),
		"MALLOC_MMAP_THRESHOLD_": strconv.Itoa(mmapThreshold),
		"PYTHONUNBUFFERED":       "1",
	}
	var env []string
	for _, e := range from {
		name, _, _ := strings.Cut(e, "=")
		if strings.HasPrefix(name, "MILLRACE_") && name != asDistributed && name != profile {
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
	p.cause.OutOfMemory = p.cause.OutOfMemory || p.overLimit.Load() != nil
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
		p.killLate()
	case <-p.pools.closing:
		p.slot.mu.Lock()
		p.queue().Shutdown = true
		p.slot.mu.Unlock()
		// Shutdown does not wait for a running task: its result would not be used.
		if !p.idle() {
			p.kill()
		}
		p.killLate()
	case <-p.surplus():
		p.killLate()
	}
	<-p.exited
	<-watched
}

// killLate kills the process unless it ends soon.
func (p *process) killLate() {
	select {
	case <-p.exited:
	case <-time.After(shutdownTimeout):
		p.kill()
	}
}

// surplus returns a channel that is closed when the process was told to end because it was idle for
// long, and exists beside those of the worker's slots only because runs waited for other tasks. For
// any other process the channel is nil.
func (p *process) surplus() <-chan struct{} {
	if p.slot.index < p.pools.config.Processes {
		return nil
	}
	ended := make(chan struct{})
	go func() {
		ticks := time.NewTicker(p.pools.config.IdleTime)
		defer ticks.Stop()
		for last := uint64(0); ; {
			select {
			case <-p.exited:
				return
			case <-p.broken:
				return
			case <-p.pools.closing:
				return
			case <-ticks.C:
			}
			var retired bool
			if last, retired = p.retire(last); retired {
				close(ended)
				return
			}
		}
	}()
	return ended
}

// retire tells the process to end if it holds nothing and has had no run after the one of a given
// ordinal. It returns the ordinal of the last run.
func (p *process) retire(since uint64) (last uint64, retired bool) {
	s := p.slot
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.queue) > 0 || len(p.leases) > 0 || p.needed || p.ordinal != since || p.calls.any() {
		return p.ordinal, false
	}
	p.queue().Shutdown = true
	p.retired, s.process = true, nil // further runs go to the next process
	return p.ordinal, true
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
		_ = r.SetReadDeadline(time.Now().Add(outputTimeout)) // pipes support deadlines
	}
	// The messages that it sent before it died are in the socket. They are read to the end.
	p.tailMu.Lock()
	p.closing = true
	_ = p.conn.SetReadDeadline(time.Now().Add(messageTimeout))
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
	p.calls.end(p.deathError("called a function", p.describe(nil)))
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
	if over := p.overLimit.Load(); over != nil {
		text = *over
	}
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

// deathError returns the error of what the process did when it died ("ran the task").
func (p *process) deathError(did, cause string) *millracev1.TaskError {
	e := &millracev1.TaskError{
		Reason:   "EXECUTOR_DIED",
		Message:  fmt.Sprintf("the executor process (%s, pid %d) that %s died: %s", p.kind, p.pid(), did, cause),
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

// readOutput reads stdout or stderr of the process, and attributes it to the running task, or to
// the last one between two runs.
func (p *process) readOutput(r *os.File, stderr bool) {
	defer p.reading.Done()
	output := exitcause.Output{File: r}
	buffer := make([]byte, outputBuffer)
	for {
		n, err := output.Read(buffer)
		if n > 0 {
			var of tasklog.Source
			if p.hasSlot() {
				p.slot.mu.Lock()
				of = p.last
				if q := p.slot.atWork(p); q != nil {
					of = q.run.source()
				}
				p.slot.mu.Unlock()
			}
			p.tailMu.Lock()
			if ref := (lifecycle.Ref{Task: of.Task, Attempt: of.Attempt}); ref != p.tailOf {
				p.tail, p.tailOf = p.tail[:0], ref
			}
			p.tail = append(p.tail, buffer[:n]...)
			if over := len(p.tail) - tailBytes; over > 0 {
				p.tail = append(p.tail[:0], p.tail[over:]...)
			}
			p.tailMu.Unlock()
			if of.Task != 0 {
				p.pools.config.Logs.Write(of, stderr, buffer[:n])
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
	} else if !q.called && p.called(q) {
		q.called = true
		p.pools.config.Done([]Result{{Ref: q.run.Ref, Called: true}})
	}
	if q.run.Timeout > 0 && q.stopping == notStopped && now.Sub(q.begun) >= q.run.Timeout {
		q.stopping = stopTimeout
	}
	switch {
	case q.stopping == notStopped || q.killed:
	case q.stopAt.IsZero():
		q.stopAt = now
		p.page.SetStop(q.ordinal)
		if err := p.cmd.Process.Signal(syscall.SIGINT); err != nil && !errors.Is(err, os.ErrProcessDone) {
			p.pools.config.Log.Error("executor cannot be interrupted", "pid", p.pid(), "error", err)
		}
	case now.Sub(q.stopAt) >= p.pools.config.StopGrace:
		q.killed = true
		p.kill()
	}
	return true
}
