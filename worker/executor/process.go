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
	// watchEvery is how often a process at work is looked at: the precision of
	// timeouts.
	watchEvery = 5 * time.Millisecond
	// farewell is how long a process may take to shut down.
	farewell = 2 * time.Second
	// orphanPatience is how long what a process left behind may take to end when it is killed.
	orphanPatience = 500 * time.Millisecond
	// tailBytes of its output are kept, and quotedBytes of them quoted when a
	// process dies: room for the stack of a fault handler.
	tailBytes   = 8 << 10
	quotedBytes = 4 << 10
)

// process is one life of an executor process.
type process struct {
	pools *Pools
	kind  string
	// lane is set when joined is closed: until then it is a spare process, which nobody sends anything but hello.
	lane   *lane
	joined chan struct{}
	// taken is closed when a lane has taken it, a spare process, and is about to adopt it.
	taken chan struct{}
	// exited is closed when it was reaped, with what it left in its group.
	exited  chan struct{}
	cmd     *exec.Cmd
	conn    *net.UnixConn
	page    *page
	scratch string
	// oom is what exitcause.OOMKills said when it began to run tasks.
	oom atomic.Uint64
	// outputs are the reading ends of its stdout and stderr.
	outputs []*os.File
	reading sync.WaitGroup
	// hello was answered; closed by the reader.
	ready chan struct{}
	// broken is closed by the first of reader and writer that finds the link
	// useless; fault, set before, says why if that was the process's doing.
	broken chan struct{}
	once   sync.Once
	fault  error
	// outgoing has room for one: pending is not empty.
	outgoing chan struct{}

	// understands says whether it said that it knows segments, pieces whether it takes runs in pieces, knowsSpares whether others of
	// its kind can be spare ones; language is what it is written in. Fixed once ready.
	understands, pieces, knowsSpares bool
	language                         string

	// pending is what to send next, rights the descriptors that go with it, one for
	// each of its attach. Guarded by lane.mu, as is what follows.
	pending  *millracev1.ToExecutor
	rights   []int
	ordinal  uint64
	ops      map[*millracev1.Op]uint32
	opNames  map[opName]uint32
	lastOp   uint32
	sentFunc map[ids.FunctionHash]bool
	// segments are attached, or are about to be; lastSegment is the number given last.
	segments    map[memory.Space]*segment
	lastSegment uint32
	// leases are what is allocated for the process itself, by request.
	leases map[uint64]ledger.ObjectID
	// last is the run that ended last, zero before the first end. Its children may write output between two runs.
	last lifecycle.Ref
	// working has room for one: the watcher has something to watch.
	working chan struct{}

	tailMu sync.Mutex
	// tail is the end of what it wrote while tailOf, a run, was at work or had ended last, zero before
	// the first. Guarded by tailMu.
	tail   []byte
	tailOf lifecycle.Ref
	// closing: the reader has got its last deadline. Guarded by tailMu.
	closing bool
	cause   exitcause.Cause
}

// startProcess starts a process that nobody has joined. A spare one is told that it is, and what to load beside what all do.
func (p *Pools) startProcess(kind string, command []string, spare bool, load []string) (*process, error) {
	return startProcess(p, kind, command, &millracev1.ExecutorHello{Preload: slices.Concat(p.config.Preload, load), Spare: spare})
}

func startProcess(pools *Pools, kind string, command []string, hello *millracev1.ExecutorHello) (p *process, err error) {
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
	// NB: the result is nil in cleanup, so that it works on variables of its own.
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
	slab, err := pools.fourth()
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
	hello.WorkerId, hello.InlineBytes = uint32(pools.workerID), pools.inlineBytes
	pools.mu.Unlock()
	hello.Protocol, hello.WorkerName, hello.SlabBytes = protocol, c.Worker, c.Store.Space().Size()
	hello.SchedulerAddress, hello.ScratchDirectory = c.Scheduler, p.scratch
	if c.Device != nil {
		hello.Device = c.Device.describe(c.Store.Space(), c.Processes)
	}
	go p.write(hello)
	go p.read()
	go p.wait()
	return p, nil
}

// join gives the process to a lane, which can have it handed runs from then on.
func (p *process) join(l *lane) {
	p.oom.Store(exitcause.OOMKills())
	p.lane = l
	close(p.joined)
}

// own says whether a lane has it.
func (p *process) own() bool {
	select {
	case <-p.joined:
		return true
	default:
		return false
	}
}

// environment is the worker's without what is the worker's alone. Processes
// share the cores: unless told otherwise, libraries in them use one thread each.
func environment(from, add []string) []string {
	defaults := map[string]string{
		"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1",
		// Give memory back to the system: processes live long.
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

// mark is a variable in the environment of this process and of all that it starts, and of nothing else.
func (p *process) mark() string { return "MILLRACE_EXECUTOR_DIRECTORY=" + p.scratch }

// wait reaps the process, with whatever it left: its group, and what has left that.
func (p *process) wait() {
	// While it is not reaped its number is nobody else's, so that the group is still its own.
	for unix.Waitid(unix.P_PID, p.pid(), nil, unix.WEXITED|unix.WNOWAIT, nil) == unix.EINTR {
		continue
	}
	_ = unix.Kill(-p.pid(), unix.SIGKILL)
	_ = p.cmd.Wait() // the state says it
	p.cause = exitcause.Of(p.cmd.ProcessState, p.oom.Load())
	orphans.Waited(p.cmd)
	if left := orphans.End(func(pid int) bool { return orphans.Marked(pid, p.mark()+"\x00") }, orphanPatience); len(left) > 0 {
		p.pools.config.Log.Warn("processes that an executor has left do not end", "kind", p.kind, "pid", p.pid(), "left", left)
	}
	close(p.exited)
}

// kill ends the process and its group.
func (p *process) kill() { _ = unix.Kill(-p.pid(), unix.SIGKILL) }

// getReady waits for the process to say that it is ready.
func (p *process) getReady() bool {
	limit := time.NewTimer(p.pools.config.ReadyTimeout)
	defer limit.Stop()
	select {
	case <-p.ready:
		return true
	case <-limit.C:
		p.breakOff(fmt.Errorf("it said nothing for %v", p.pools.config.ReadyTimeout))
	case <-p.broken:
		// It is about to exit, or speaks nonsense; give it a moment to say why.
		select {
		case <-p.exited:
		case <-time.After(farewell):
		}
	case <-p.exited:
	case <-p.pools.closing:
	}
	return false
}

// serve lets a ready process work until it has ended.
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
		case <-time.After(farewell):
			p.kill()
		}
	case <-p.pools.closing:
		p.lane.mu.Lock()
		p.queue().Shutdown = true
		p.lane.mu.Unlock()
		// What runs is not waited for: nobody would read its result.
		if !p.idle() {
			p.kill()
		}
		select {
		case <-p.exited:
		case <-time.After(farewell):
			p.kill()
		}
	}
	<-p.exited
	<-watched
}

func (p *process) idle() bool {
	p.lane.mu.Lock()
	defer p.lane.mu.Unlock()
	return len(p.lane.queue) == 0
}

// close releases what belongs to a process that has exited, but for the control
// page, which says who is to blame. Its last words are read first, but for those
// of children that outlived it.
func (p *process) close() {
	for _, r := range p.outputs {
		_ = r.SetReadDeadline(time.Now().Add(100 * time.Millisecond)) // pipes can
	}
	// What it sent before it died is in the socket, and is read to the end.
	p.tailMu.Lock()
	p.closing = true
	_ = p.conn.SetReadDeadline(time.Now().Add(time.Second))
	p.tailMu.Unlock()
	p.breakOff(nil)
	p.reading.Wait()
	for _, r := range p.outputs {
		_ = r.Close() // only read from
	}
	// Whatever the process had submitted to a GPU ended before its exit was seen.
	for _, id := range p.leases {
		p.pools.config.Store.Drop(id)
	}
	clear(p.leases)
	_ = p.conn.Close()          // the other end is gone
	_ = os.RemoveAll(p.scratch) // whatever cannot be removed was made so by a task
}

// breakOff ends the link. The first reason counts.
func (p *process) breakOff(fault error) {
	p.once.Do(func() {
		p.fault = fault
		close(p.broken)
	})
}

// readWithin bounds the reading of the rest of a message; the zero time ends that.
func (p *process) readWithin(limit time.Time) {
	p.tailMu.Lock()
	defer p.tailMu.Unlock()
	if !p.closing {
		_ = p.conn.SetReadDeadline(limit) // sockets can
	}
}

// describe says in words how it ended; blamed is the run that it died in, nil if none. It quotes
// only output of that run, not of earlier ones. REQUIRES: close has returned.
func (p *process) describe(blamed *queued) string {
	text := p.cause.String()
	if p.fault != nil {
		text += ", after " + p.fault.Error()
	}
	if tail := p.lastWords(blamed); tail != "" {
		text += "; its last words: " + tail
	}
	return text
}

func (p *process) lastWords(blamed *queued) string {
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

// deathError blames a run for the process's death.
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

// readOutput puts what the process writes down to the run at work, or to the one
// before.
func (p *process) readOutput(r *os.File) {
	defer p.reading.Done()
	output := exitcause.Output{File: r}
	buffer := make([]byte, 16<<10)
	for {
		n, err := output.Read(buffer)
		if n > 0 {
			var of lifecycle.Ref
			if p.own() {
				p.lane.mu.Lock()
				of = p.last
				if q := p.lane.atWork(p); q != nil {
					of = q.run.Ref
				}
				p.lane.mu.Unlock()
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

// watch looks at the process while it has runs: it keeps the time, and stops
// what is to be stopped.
func (p *process) watch(watched chan<- struct{}) {
	defer close(watched)
	ticks := time.NewTicker(watchEvery)
	defer ticks.Stop()
	for {
		select {
		case <-p.exited:
			return
		case <-ticks.C:
		}
		if p.look(time.Now()) {
			continue
		}
		// Nothing to watch: sleep until there is.
		ticks.Stop()
		select {
		case <-p.exited:
			return
		case <-p.working:
		}
		ticks.Reset(watchEvery)
	}
}

// look returns whether there is anything to watch.
func (p *process) look(now time.Time) bool {
	p.lane.mu.Lock()
	defer p.lane.mu.Unlock()
	idle := p.detachIdle(now)
	if len(p.lane.queue) == 0 {
		return idle
	}
	q := p.lane.atWork(p)
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
