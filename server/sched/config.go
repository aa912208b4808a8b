package sched

import (
	"time"

	"github.com/millrace/millrace/internal/ids"
)

// DefaultInlineResultBytes is the size of the largest result that the scheduler itself holds,
// unless Config says otherwise: such results reach clients with updates, without a call to a
// worker.
const DefaultInlineResultBytes = 64 << 10

// Config has the machine's limits. The zero value of a field means its default.
type Config struct {
	// FirstTask is the id of the first task. 0: 1. If two runs of a scheduler start at ids far
	// apart, they never give the same id to two tasks.
	FirstTask ids.TaskID
	// QueueDepth is the number of tasks that a worker gets beyond its slots. 0: adaptive, as many
	// as cover 5 ms of the learned run time for each slot, at least 2 and at most 1024.
	QueueDepth int
	// Preassigned is the number of attempts that a worker gets before their inputs exist, beyond
	// its slots. 0: adaptive, like QueueDepth. Negative: a worker gets no attempt before its inputs
	// exist.
	Preassigned int
	// InlineResultBytes is the size of the largest result that is kept inline. Default 64 KiB.
	InlineResultBytes uint64
	// InlineBudgetBytes bounds all inline results together. Beyond it clients fetch results from
	// workers. Default 256 MiB.
	InlineBudgetBytes uint64
	// DefaultBytesPerSecond and DefaultLatency are assumed between workers without a measurement.
	// Default 1 GB/s, 200 µs.
	DefaultBytesPerSecond float64
	DefaultLatency        time.Duration
	// MaxWorkerDeaths is the number of deaths of a worker or executor, while it ran a task, at
	// which the task is failed. A worker that ended for an outside reason counts a quarter, unless
	// the task was alone on each of them; see Machine.suspect. Default 3.
	MaxWorkerDeaths uint32
	// RescueTimeout is how long the copy of a dead worker's objects may take, beside the time that
	// their bytes need. Default 2 s. Negative: the objects are computed again at once.
	RescueTimeout time.Duration
	// DataGrace is how long the machine waits for scattered data that only a lost worker had, if
	// that worker's process is not known to have ended. Default 60 s. Negative: the data is lost at
	// once.
	DataGrace time.Duration
	// MemoryBytes bounds the memory that the machine holds for tasks: records, keys, arguments,
	// inline results, errors and log tails, and the memory that the caller holds for a submission
	// (GraphSubmitted.CallerBytes). Beyond it submissions are refused until tasks are forgotten. 0:
	// no bound.
	MemoryBytes uint64
	// DetailBytes bounds the tracebacks and exceptions of failed tasks, TailBytes the last output
	// of tasks. The oldest are dropped first. Default 256 MiB and 64 MiB.
	DetailBytes, TailBytes uint64
	// Facts asks for Machine.Facts.
	Facts bool
	// Namespaces has the shares and limits of namespaces; those of the name "*" are for all others.
	Namespaces map[string]NamespaceLimits
	// ChainBytes is the size from which an object is sent along a broadcast chain; see chain.go.
	// Default 64 MiB.
	ChainBytes uint64
}

func (c Config) withDefaults() Config {
	c.FirstTask = max(c.FirstTask, 1)
	if c.InlineResultBytes == 0 {
		c.InlineResultBytes = DefaultInlineResultBytes
	}
	if c.InlineBudgetBytes == 0 {
		c.InlineBudgetBytes = 256 << 20
	}
	if c.DefaultBytesPerSecond <= 0 {
		c.DefaultBytesPerSecond = 1e9
	}
	if c.DefaultLatency <= 0 {
		c.DefaultLatency = 200 * time.Microsecond
	}
	if c.RescueTimeout == 0 {
		c.RescueTimeout = 2 * time.Second
	}
	if c.DetailBytes == 0 {
		c.DetailBytes = 256 << 20
	}
	if c.TailBytes == 0 {
		c.TailBytes = 64 << 20
	}
	if c.DataGrace == 0 {
		c.DataGrace = time.Minute
	}
	if c.ChainBytes == 0 {
		c.ChainBytes = 64 << 20
	}
	if c.MaxWorkerDeaths == 0 {
		c.MaxWorkerDeaths = 3
	}
	return c
}
