// Package executor is an Adapter: it starts processes that run code of users, and
// speaks the executor protocol (docs/executor-protocol.md) with them.
//
// A process crashes alone: the slab, the worker and other processes go on. The
// run that was at work is reported with the cause; those behind it go to the
// next process, which is started at once.
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

// Config is fixed for the life of the pools.
type Config struct {
	// Worker is the worker's name, Scheduler its scheduler's address: for those
	// who run in the processes.
	Worker, Scheduler string
	// Commands are the command lines by kind.
	Commands map[string][]string
	// Processes is how many of each kind there are at most: one per lane.
	Processes int
	// StartAtOnce is how many of a kind Begin starts; the others start when they
	// are first needed.
	StartAtOnce map[string]int
	// Env is added to the processes' environment.
	Env []string
	// Scratch is where their directories are made: the worker's own, absolute.
	// Required.
	Scratch string
	Store   *store.Store
	Logs    *tasklog.Logs
	// Done takes results, in batches, from any goroutine, and does not wait.
	Done func([]Result)
	Log  *slog.Logger
	// MemoryWait is how long an allocation waits for memory. Default 30 s.
	MemoryWait time.Duration
	// ReadyTimeout is how long a process may take to get ready. Default 60 s.
	ReadyTimeout time.Duration
	// StopGrace is how long an interrupted run may take to end. Default 1 s.
	StopGrace time.Duration
	// Device is where the Store's space lies; nil: in host memory, with a descriptor.
	Device *Device
	// Preload are what processes load while they have nothing else to do; with a device
	// cupy comes first.
	Preload []string
	// Spares is how many processes of each kind wait, with everything loaded, for the death of another one; 0: none. They are
	// started when the first process of their kind has got ready.
	Spares int
}

// Pools are the processes of all kinds. Its methods may be called from any
// goroutine.
type Pools struct {
	config Config
	lanes  map[string][]*lane
	spares map[string][]*spare
	wait   sync.WaitGroup
	// release ends orphans.Keep.
	release func()
	// gate is shared by all processes when the slab lies on a GPU, else nil.
	gate *os.File
	// closing is closed by Close.
	closing chan struct{}

	mu sync.Mutex
	// All below is guarded by mu.
	workerID    ids.WorkerID
	inlineBytes uint64
	// load are names, by kind, of what tasks made processes load.
	load      map[string]map[string]struct{}
	deaths    uint64
	lastDeath string
}

// New returns pools without processes.
func New(c Config) (*Pools, error) {
	if c.MemoryWait <= 0 {
		c.MemoryWait = 30 * time.Second
	}
	if c.ReadyTimeout <= 0 {
		c.ReadyTimeout = time.Minute
	}
	if c.StopGrace <= 0 {
		c.StopGrace = time.Second
	}
	p := &Pools{
		config: c, release: func() {}, lanes: make(map[string][]*lane), spares: make(map[string][]*spare), load: make(map[string]map[string]struct{}),
		closing: make(chan struct{}),
	}
	if c.Device != nil {
		if _, ok := c.Store.Space().(writer); !ok {
			return nil, fmt.Errorf("executor: memory on a device that cannot be written to: %T", c.Store.Space())
		}
		p.config.Preload = append([]string{"cupy"}, c.Preload...)
		var err error
		if p.gate, err = newGate(); err != nil {
			return nil, err
		}
	} else if c.Store.Space().FD() < 0 {
		return nil, fmt.Errorf("executor: memory without a file descriptor cannot be shared with processes")
	}
	commands := make(map[string][]string, len(c.Commands))
	for kind, command := range c.Commands {
		var err error
		if commands[kind], err = fromHere(command); err != nil {
			p.Close()
			return nil, err
		}
	}
	c.Store.OnShort(p.GiveBack)
	// The maps are complete before anything reads them.
	for kind, command := range commands {
		for range c.Spares {
			p.spares[kind] = append(p.spares[kind], &spare{pools: p, kind: kind, command: command, need: make(chan struct{}, 1)})
		}
		for i := range c.Processes {
			l := &lane{pools: p, kind: kind, command: command, index: i, need: make(chan struct{}, 1)}
			p.lanes[kind] = append(p.lanes[kind], l)
		}
	}
	// What tasks start outlives no process, wherever it moved itself.
	var err error
	if p.release, err = orphans.Keep(); err != nil {
		p.release = func() {}
		p.Close()
		return nil, fmt.Errorf("executor: %w", err)
	}
	for kind := range commands {
		for _, l := range p.lanes[kind] {
			p.wait.Go(l.keep)
		}
		for _, s := range p.spares[kind] {
			p.wait.Go(s.keep)
		}
	}
	return p, nil
}

// fromHere makes a command line independent of the directory: processes start in
// directories of their own.
func fromHere(command []string) ([]string, error) {
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
func (p *Pools) Kinds() []string { return slices.Sorted(maps.Keys(p.lanes)) }

// KindOf returns which kind of executor a process is, "" if it is none that runs tasks now.
func (p *Pools) KindOf(pid int) string {
	for kind, lanes := range p.lanes { // order-free: a process is in one lane
		for _, l := range lanes {
			l.mu.Lock()
			found := l.process != nil && l.process.pid() == pid
			l.mu.Unlock()
			if found {
				return kind
			}
		}
	}
	return ""
}

// Segments says whether processes of a kind can read memory besides the slab, as
// far as is known: each lane's last process said so.
func (p *Pools) Segments(kind string) bool {
	known := false
	for _, l := range p.lanes[kind] {
		l.mu.Lock()
		started, segments := l.started, l.segments
		l.mu.Unlock()
		if started && !segments {
			return false
		}
		known = known || segments
	}
	return known
}

// Working says whether a process has something to run.
func (p *Pools) Working() bool {
	for _, lanes := range p.lanes {
		for _, l := range lanes {
			l.mu.Lock()
			n := len(l.queue)
			l.mu.Unlock()
			if n > 0 {
				return true
			}
		}
	}
	return false
}

// Begin starts the processes that are to be started at once.
func (p *Pools) Begin() {
	for kind, n := range p.config.StartAtOnce {
		for i, l := range p.lanes[kind] {
			if i < n {
				l.mu.Lock()
				l.eager = true
				l.mu.Unlock()
				l.wake()
			}
		}
	}
}

// Registered tells the worker's number and the limit of inline results.
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

// Deaths is how many processes died other than by our will, and why the last one
// did.
func (p *Pools) Deaths() (n uint64, last string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.deaths, p.lastDeath
}

func (p *Pools) died(cause string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.deaths++
	p.lastDeath = cause
}

// Close ends all processes, and returns when they are gone. Runs that have not
// ended are not reported.
func (p *Pools) Close() {
	close(p.closing)
	p.wait.Wait()
	p.release()
	if p.gate != nil {
		_ = p.gate.Close() // nothing was written
	}
}

func (p *Pools) lane(kind string, index int) *lane { return p.lanes[kind][index] }

// GiveBack asks processes that have memory of their own in the slab to release what
// nothing in them uses: somebody waits for room. It does not wait for them.
func (p *Pools) GiveBack() {
	for _, lanes := range p.lanes {
		for _, l := range lanes {
			l.mu.Lock()
			if l.process != nil && len(l.process.leases) > 0 {
				l.process.queue().GiveBack = true
			}
			l.mu.Unlock()
		}
	}
}

// Start hands a run to a lane.
func (p *Pools) Start(kind string, index int, r *Run) { p.lane(kind, index).start(r) }

// Stop ends a run, whether it has begun or not; its result follows.
func (p *Pools) Stop(kind string, index int, ref lifecycle.Ref) { p.lane(kind, index).stop(ref) }

// TakeBack has a run returned if it has not begun.
func (p *Pools) TakeBack(kind string, index int, ref lifecycle.Ref) {
	p.lane(kind, index).takeBack(ref)
}

// DropFunctions has all processes forget functions, by their hashes, that no task refers to.
func (p *Pools) DropFunctions(hashes [][]byte) {
	// order-free: each lane for itself.
	for _, lanes := range p.lanes {
		for _, l := range lanes {
			l.mu.Lock()
			if l.process != nil {
				l.process.dropFunctions(hashes)
			}
			l.mu.Unlock()
		}
	}
}

// failed makes the result of a run that ended without one of its own.
func failed(r *Run, outcome lifecycle.Outcome, e *millracev1.TaskError) Result {
	return Result{Ref: r.Ref, Outcome: outcome, Error: e}
}
