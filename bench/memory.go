package bench

import (
	"context"
	"time"

	millrace "github.com/millrace/millrace/clients/go"
	"github.com/millrace/millrace/internal/version"
)

// MemoryResult is the result of `bench memory`: the scheduler's resident memory.
type MemoryResult struct {
	Bench            string `json:"bench"`
	Tasks            int    `json:"tasks"`
	RSSBeforeBytes   uint64 `json:"rss_before_bytes"`
	RSSHeldBytes     uint64 `json:"rss_held_bytes"`
	RSSReleasedBytes uint64 `json:"rss_released_bytes"`
	// PeakRSSBytes is the highest value since the scheduler started.
	PeakRSSBytes uint64  `json:"peak_rss_bytes"`
	BytesPerTask float64 `json:"bytes_per_task"`
	Version      string  `json:"version"`
	Machine      string  `json:"machine"`
}

// Memory measures the memory that the scheduler keeps for tasks that are finished and held, and how
// much of it is returned to the system after they are released.
func Memory(ctx context.Context, executable string, tasks int) (out MemoryResult, err error) {
	cluster, err := StartCluster(ctx, ClusterConfig{Executable: executable, Workers: 2, Zero: true})
	if err != nil {
		return out, err
	}
	defer func() {
		if closed := cluster.Close(); err == nil {
			err = closed
		}
	}()
	pid := cluster.Scheduler.PID()
	hold := func(n int) ([]*millrace.Future, error) {
		futures, err := cluster.Client.Map(ctx, noop, func(yield func(millrace.Arguments) bool) {
			for range n {
				if !yield(millrace.Arguments{}) {
					return
				}
			}
		})
		if err != nil {
			return nil, err
		}
		return futures, millrace.WaitAll(ctx, futures...)
	}
	futures, err := hold(warmUpTasks)
	if err != nil {
		return out, err
	}
	cluster.Client.Release(futures...)
	if err := cluster.settle(ctx); err != nil {
		return out, err
	}
	if out.RSSBeforeBytes, err = restingRSS(ctx, pid); err != nil {
		return out, err
	}
	if futures, err = hold(tasks); err != nil {
		return out, err
	}
	if out.RSSHeldBytes, err = restingRSS(ctx, pid); err != nil {
		return out, err
	}
	cluster.Client.Release(futures...)
	if err := cluster.settle(ctx); err != nil {
		return out, err
	}
	if out.RSSReleasedBytes, err = restingRSS(ctx, pid); err != nil {
		return out, err
	}
	if out.PeakRSSBytes, err = statusBytes(pid, "VmHWM"); err != nil {
		return out, err
	}
	out.Bench, out.Tasks, out.Version, out.Machine = "memory", tasks, version.String(), Machine()
	out.BytesPerTask = (float64(out.RSSHeldBytes) - float64(out.RSSBeforeBytes)) / float64(tasks)
	return out, nil
}

// restingRSS waits until the memory of a process stays within 1 MiB for 4 s, at most 30 s: a
// garbage collector returns memory over some seconds.
func restingRSS(ctx context.Context, pid int) (uint64, error) {
	const (
		step   = 500 * time.Millisecond
		still  = 8
		most   = 60
		change = 1 << 20
	)
	last, err := statusBytes(pid, "VmRSS")
	quiet := 0
	for n := 0; n < most && quiet < still && err == nil; n++ {
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-time.After(step):
		}
		var now uint64
		now, err = statusBytes(pid, "VmRSS")
		if now > last+change || now+change < last {
			quiet = 0
			last = now
		} else {
			quiet++
		}
	}
	return last, err
}
