// Package executor is an Adapter: it starts processes that run users' code, and speaks the executor
// protocol (docs/executor-protocol.md) with them.
//
// A crash affects one process only: the slab, the worker and other processes continue.
// The run that was in progress is reported with the cause of the crash; the runs queued behind it
// go to the next process, which is started immediately.
package executor

import (
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/internal/orphans"
	"github.com/millrace/millrace/worker/lifecycle"
	"github.com/millrace/millrace/worker/store"
	"github.com/millrace/millrace/worker/tasklog"
)

// The defaults of Config.
const (
	// defaultIdleTime is how long a surplus process lives without a run: a start costs much, and
	// tasks that wait for others come in groups.
	defaultIdleTime = 30 * time.Second
	// defaultReadyTimeout is how long a process may take to become ready. It must exceed the time
	// that imports of large packages take from a slow disk.
	defaultReadyTimeout = time.Minute
	// defaultStopGrace is how long an interrupted run may take to end, before its process is
	// killed.
	defaultStopGrace = time.Second
	// defaultPluginTimeout is how long a call of a plugin may take: enough to install large
	// packages.
	defaultPluginTimeout = 30 * time.Minute
)

// Config is fixed for the life of the pools.
type Config struct {
	// Worker is the worker's name, Address that of its data service, Scheduler the address of its
	// scheduler. Code in the processes can use them.
	Worker, Address, Scheduler string
	// Commands are the command lines, by kind.
	Commands map[string][]string
	// Processes is the maximum number of processes of each kind that work at a time: one per slot.
	// Waiting is the maximum number beside them: those whose runs wait for other tasks. Processes
	// beyond Processes end when they have been idle for IdleTime. Default 30 s.
	Processes, Waiting int
	IdleTime           time.Duration
	// StartAtOnce is the number of processes, by kind, that Begin starts.
	// The others start when they are first needed.
	StartAtOnce map[string]int
	// Env is added to the processes' environment.
	Env []string
	// Scratch is the absolute path of the worker's own directory, in which the scratch directories
	// of the processes are made. Required.
	Scratch string
	Store   *store.Store
	Logs    *tasklog.Logs
	// Done receives results, in batches, from any goroutine. It must not block.
	Done func([]Result)
	Log  *slog.Logger
	// MemoryWait is how long an allocation waits for memory. Default 30 s.
	MemoryWait time.Duration
	// ReadyTimeout is how long a process may take to become ready. Default 60 s.
	ReadyTimeout time.Duration
	// StopGrace is how long an interrupted run may take to end. Default 1 s.
	StopGrace time.Duration
	// Device is the GPU on which the Store's space is. Nil: it is host memory, with a file
	// descriptor.
	Device *Device
	// Preload are the modules that processes load while they are idle.
	// With a device, cupy is loaded first.
	Preload []string
	// Spares is the number of spare processes of each kind: they have everything loaded,
	// and replace a process that dies. 0: none. They are started when the first process of their
	// kind has become ready.
	Spares int
	// Memory bounds the memory of the processes. The zero value has no limit.
	Memory MemoryLimit
	// ControlPage, if set, is called with the control page of each new process. It may keep a
	// duplicate.
	ControlPage func(*os.File)
	// Plugins: no process takes a run before the first WantPlugins.
	Plugins bool
	// PluginTimeout is how long a call of a plugin may take in one process. Default 30 minutes,
	// which is enough to install large packages.
	PluginTimeout time.Duration
}

// Pools are the processes of all kinds. Its methods may be called from any goroutine.
type Pools struct {
	config Config
	slots  map[string][]*slot
	spares map[string][]*spare
	wait   sync.WaitGroup
	// release undoes orphans.Keep.
	release func()
	// deviceLock is shared by all processes when the slab is on a GPU, else nil.
	deviceLock *os.File
	// guard is nil without a limit of memory.
	guard *guard
	// closing is closed by Close.
	closing chan struct{}
	plugins pluginList

	mu sync.Mutex
	// The fields below are guarded by mu.
	workerID    ids.WorkerID
	inlineBytes uint64
	// load are the names of the modules that tasks made processes load, by kind.
	load      map[string]map[string]struct{}
	deaths    uint64
	lastDeath string
}

// New returns pools without processes.
func New(c Config) (*Pools, error) {
	if c.MemoryWait <= 0 {
		c.MemoryWait = lifecycle.DefaultMemoryWait
	}
	if c.ReadyTimeout <= 0 {
		c.ReadyTimeout = defaultReadyTimeout
	}
	if c.StopGrace <= 0 {
		c.StopGrace = defaultStopGrace
	}
	if c.IdleTime <= 0 {
		c.IdleTime = defaultIdleTime
	}
	if c.PluginTimeout <= 0 {
		c.PluginTimeout = defaultPluginTimeout
	}
	p := &Pools{
		config: c, release: func() {}, slots: make(map[string][]*slot), spares: make(map[string][]*spare), load: make(map[string]map[string]struct{}),
		closing: make(chan struct{}), plugins: pluginList{known: make(chan struct{}), changed: make(chan struct{})},
	}
	if c.Device != nil {
		if _, ok := c.Store.Space().(writer); !ok {
			return nil, fmt.Errorf("executor: memory on a device that cannot be written to: %T", c.Store.Space())
		}
		p.config.Preload = append([]string{"cupy"}, c.Preload...)
		var err error
		if p.deviceLock, err = newDeviceLock(); err != nil {
			return nil, err
		}
	} else if c.Store.Space().FD() < 0 {
		return nil, fmt.Errorf("executor: memory without a file descriptor cannot be shared with processes")
	}
	commands := make(map[string][]string, len(c.Commands))
	for kind, command := range c.Commands {
		var err error
		if commands[kind], err = absolute(command); err != nil {
			p.Close()
			return nil, err
		}
	}
	c.Store.OnShort(func(bool) { p.ReleaseUnused() })
	// The maps are complete before any goroutine reads them.
	for kind, command := range commands {
		for range c.Spares {
			p.spares[kind] = append(p.spares[kind], &spare{pools: p, kind: kind, command: command, need: make(chan struct{}, 1)})
		}
		for i := range c.Processes + c.Waiting {
			s := &slot{pools: p, kind: kind, command: command, index: i, need: make(chan struct{}, 1)}
			p.slots[kind] = append(p.slots[kind], s)
		}
	}
	// Processes that tasks start must not outlive their executor, even if they moved themselves to
	// another session.
	var err error
	if p.release, err = orphans.Keep(); err != nil {
		p.release = func() {}
		p.Close()
		return nil, fmt.Errorf("executor: %w", err)
	}
	if c.Memory.Bytes > 0 {
		p.guard = &guard{pools: p, limit: c.Memory, began: make(chan struct{}, 1)}
		p.wait.Go(p.guard.run)
	}
	for kind := range commands {
		for _, s := range p.slots[kind] {
			p.wait.Go(s.run)
		}
		for _, s := range p.spares[kind] {
			p.wait.Go(s.run)
		}
	}
	return p, nil
}

// absolute makes a command line independent of the current directory, since processes start in
// directories of their own.
func absolute(command []string) ([]string, error) {
	if filepath.IsAbs(command[0]) || !strings.ContainsRune(command[0], filepath.Separator) {
		return command, nil
	}
	program, err := filepath.Abs(command[0])
	if err != nil {
		return nil, fmt.Errorf("executor: find %s: %w; give its whole path", command[0], err)
	}
	return append([]string{program}, command[1:]...), nil
}

// Kinds returns the names of the kinds, sorted.
func (p *Pools) Kinds() []string { return slices.Sorted(maps.Keys(p.slots)) }

// KindOf returns the executor kind of a process, "" if it is not an executor that runs tasks now.
func (p *Pools) KindOf(pid int) string {
	for kind, slots := range p.slots { // order-free: a process is in one slot
		for _, s := range slots {
			s.mu.Lock()
			found := s.process != nil && s.process.pid() == pid
			s.mu.Unlock()
			if found {
				return kind
			}
		}
	}
	return ""
}

// Segments reports whether processes of a kind can read memory outside of the slab: the last
// process of each slot that ever started one said so. known is false if there was none.
func (p *Pools) Segments(kind string) (known, can bool) {
	for _, s := range p.slots[kind] {
		s.mu.Lock()
		started, segments := s.started, s.segments
		s.mu.Unlock()
		if started && !segments {
			return true, false
		}
		known = known || started
	}
	return known, known
}

// Processes are the processes of one kind of executor.
type Processes struct {
	Kind string
	// Working have a run, Idle wait for one, and Spare would replace one that dies. Those that
	// start are not counted.
	Working, Idle, Spare int
}

// Processes counts the processes of each kind, sorted by kind.
func (p *Pools) Processes() (all []Processes) {
	for _, kind := range p.Kinds() {
		n := Processes{Kind: kind}
		for _, s := range p.slots[kind] {
			s.mu.Lock()
			switch {
			case s.process == nil:
			case len(s.queue) > 0:
				n.Working++
			default:
				n.Idle++
			}
			s.mu.Unlock()
		}
		for _, s := range p.spares[kind] {
			s.mu.Lock()
			if s.process != nil {
				n.Spare++
			}
			s.mu.Unlock()
		}
		all = append(all, n)
	}
	return all
}

// Working reports whether any process has a run.
func (p *Pools) Working() bool {
	for _, slots := range p.slots {
		for _, s := range slots {
			s.mu.Lock()
			n := len(s.queue)
			s.mu.Unlock()
			if n > 0 {
				return true
			}
		}
	}
	return false
}

// Begin starts the processes of Config.StartAtOnce.
func (p *Pools) Begin() {
	for kind, n := range p.config.StartAtOnce {
		for i, s := range p.slots[kind] {
			if i < n {
				s.mu.Lock()
				s.eager = true
				s.mu.Unlock()
				s.wake()
			}
		}
	}
}

// Registered sets the worker's number and the limit of inline results.
func (p *Pools) Registered(worker ids.WorkerID, inlineBytes uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.workerID, p.inlineBytes = worker, inlineBytes
}

func (p *Pools) inlineLimit() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.inlineBytes
}

// Deaths returns the number of processes that died although they were not stopped by us,
// and the cause of the last death.
func (p *Pools) Deaths() (n uint64, last string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.deaths, p.lastDeath
}

func (p *Pools) recordDeath(cause string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.deaths++
	p.lastDeath = cause
}

// Close ends all processes, and returns when they are gone. Runs that have not ended are not
// reported.
func (p *Pools) Close() {
	close(p.closing)
	p.wait.Wait()
	p.release()
	if p.deviceLock != nil {
		_ = p.deviceLock.Close() // nothing was written
	}
}

func (p *Pools) slot(kind string, index int) *slot { return p.slots[kind][index] }

// ReleaseUnused asks processes that hold memory of their own in the slab to release the unused
// part, because a request waits for room. It does not wait for them.
func (p *Pools) ReleaseUnused() {
	for _, slots := range p.slots {
		for _, s := range slots {
			s.mu.Lock()
			if s.process != nil && len(s.process.leases) > 0 {
				s.process.queue().ReleaseUnused = true
			}
			s.mu.Unlock()
		}
	}
}

// Start hands a run to a slot.
func (p *Pools) Start(kind string, index int, r *Run) { p.slot(kind, index).start(r) }

// Resume lets a run go on that waited for other tasks.
func (p *Pools) Resume(kind string, index int, ref lifecycle.Ref) { p.slot(kind, index).goOn(ref) }

// Refuse ends a run that the worker cannot let wait for other tasks; its result follows.
func (p *Pools) Refuse(kind string, index int, ref lifecycle.Ref, why string) {
	p.slot(kind, index).refuse(ref, why)
}

// Stop ends a run, whether it has begun or not; its result follows.
func (p *Pools) Stop(kind string, index int, ref lifecycle.Ref) { p.slot(kind, index).stop(ref) }

// TakeBack returns a run that has not begun. A run that has begun continues.
func (p *Pools) TakeBack(kind string, index int, ref lifecycle.Ref) {
	p.slot(kind, index).takeBack(ref)
}

// DropFunctions makes all processes forget functions, given by their hashes, that no task refers
// to.
func (p *Pools) DropFunctions(hashes [][]byte) {
	// order-free: the slots are independent.
	for _, slots := range p.slots {
		for _, s := range slots {
			s.mu.Lock()
			if s.process != nil {
				s.process.dropFunctions(hashes)
			}
			s.mu.Unlock()
		}
	}
}

// failed makes the result of a run that ended without a result of its own.
func failed(r *Run, outcome lifecycle.Outcome, e *millracev1.TaskError) Result {
	return Result{Ref: r.Ref, Outcome: outcome, Error: e}
}
