package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	millrace "github.com/millrace/millrace/clients/go"
	"github.com/millrace/millrace/internal/version"
)

// restartChunk is the number of tasks of a graph of `bench restart`.
const restartChunk = 10_000

// RestartConfig configures `bench restart`.
type RestartConfig struct {
	// Executable is the millrace binary. Default: this program.
	Executable string
	// Directory is where the journal is made. Empty: with other temporary files.
	Directory string
	// Finished tasks are run and released, and Live ones are there when the scheduler is killed:
	// half of them have ended and are held, half wait for a worker that does not come.
	Finished, Live int
	Progress       func(done, of int)
}

// RestartResult is the result of `bench restart`.
type RestartResult struct {
	Bench    string `json:"bench"`
	Finished int    `json:"finished_tasks"`
	Live     int    `json:"live_tasks"`
	// ReadySeconds is the time from the start of the process, after the kill, until it serves.
	ReadySeconds float64 `json:"ready_seconds"`
	// Peaks are the highest resident memory before the kill, and of the next start until it serves.
	PeakBeforeBytes uint64  `json:"peak_rss_before_bytes"`
	PeakAfterBytes  uint64  `json:"peak_rss_after_bytes"`
	PeakRatio       float64 `json:"peak_rss_ratio"`
	// DiskBytes is the size of the journal at the kill, and MostDiskBytes the largest that was
	// seen. LiveBytes is the size of the snapshot that the next start takes, at its stop at the
	// latest; 0, as is DiskRatio: it took none.
	DiskBytes     uint64  `json:"disk_bytes"`
	MostDiskBytes uint64  `json:"most_disk_bytes"`
	LiveBytes     uint64  `json:"live_snapshot_bytes"`
	DiskRatio     float64 `json:"disk_ratio"`
	Version       string  `json:"version"`
	Machine       string  `json:"machine"`
}

// Restart measures the start of a scheduler whose journal has a long history and many live tasks.
func Restart(ctx context.Context, c RestartConfig) (out RestartResult, err error) {
	if c.Finished < 1 || c.Live < 2 {
		return out, errors.New("bench restart: at least one finished task and two live ones")
	}
	if c.Progress == nil {
		c.Progress = func(int, int) {}
	}
	directory, err := os.MkdirTemp(c.Directory, "millrace-bench-restart-")
	if err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(directory)) }()
	journal := filepath.Join(directory, "journal")
	cluster, err := StartCluster(ctx, ClusterConfig{Executable: c.Executable, Workers: 2, Zero: true, Journal: journal})
	if err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, cluster.Close()) }()
	done, all := 0, c.Finished+c.Live
	run := func(n int, wait, keep bool) error {
		for first := 0; first < n; first += restartChunk {
			some := min(restartChunk, n-first)
			g := cluster.Client.NewGraph("restart")
			var rules []millrace.TaskOption
			if !wait {
				rules = append(rules, millrace.WithWorkers("a worker that does not come"))
			}
			for range some {
				g.Add("", noop, millrace.Args(), append(rules, millrace.Hold())...)
			}
			r, err := g.Submit(ctx)
			if err != nil {
				return err
			}
			if wait {
				if err := r.Wait(ctx); err != nil {
					return err
				}
			}
			if !keep {
				r.Release()
			}
			done += some
			c.Progress(done, all)
			size, err := directoryBytes(journal)
			if err != nil {
				return err
			}
			out.MostDiskBytes = max(out.MostDiskBytes, size)
		}
		return nil
	}
	if err := errors.Join(run(c.Finished, true, false), run(c.Live/2, true, true), run(c.Live-c.Live/2, false, true)); err != nil {
		return out, err
	}
	pid := cluster.Scheduler.PID()
	if out.PeakBeforeBytes, err = statusBytes(pid, "VmHWM"); err != nil {
		return out, err
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		return out, err
	}
	<-cluster.Scheduler.Exited()
	if out.DiskBytes, err = directoryBytes(journal); err != nil {
		return out, err
	}
	old, _, err := newestSnapshot(journal)
	if err != nil {
		return out, err
	}
	began := time.Now()
	next, err := c.start(ctx, directory, journal)
	if err != nil {
		return out, err
	}
	out.ReadySeconds = time.Since(began).Seconds()
	if out.PeakAfterBytes, err = statusBytes(next.PID(), "VmHWM"); err != nil {
		return out, err
	}
	// A stop in good order takes a snapshot, if the disk is quick, but gives one up that was due at
	// the start.
	if err := errors.Join(snapshotEnds(ctx, journal), next.Stop()); err != nil {
		return out, err
	}
	name, size, err := newestSnapshot(journal)
	if err != nil {
		return out, err
	}
	if name != old {
		out.LiveBytes = size
	}
	out.PeakRatio = float64(out.PeakAfterBytes) / float64(out.PeakBeforeBytes)
	if out.LiveBytes > 0 {
		out.DiskRatio = float64(out.DiskBytes) / float64(out.LiveBytes)
	}
	out.Bench, out.Finished, out.Live, out.Version, out.Machine = "restart", c.Finished, c.Live, version.String(), Machine()
	return out, nil
}

// start starts a scheduler with a journal, and waits until it serves.
func (c RestartConfig) start(ctx context.Context, directory, journal string) (*Process, error) {
	executable := c.Executable
	if executable == "" {
		var err error
		if executable, err = os.Executable(); err != nil {
			return nil, err
		}
	}
	file := filepath.Join(directory, "next.json")
	next, err := Start(executable, nil, "scheduler", "--http", "", "--listen", "127.0.0.1:0", "--scheduler-file", file, "--journal", journal)
	if err != nil {
		return nil, err
	}
	if err := waitForFile(ctx, file, next); err != nil {
		return nil, errors.Join(err, next.Stop())
	}
	return next, nil
}

// snapshotEnds waits until no snapshot is being written.
func snapshotEnds(ctx context.Context, directory string) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for {
		parts, err := filepath.Glob(filepath.Join(directory, "*.snapshot.part"))
		if err != nil || len(parts) == 0 {
			return err
		}
		select {
		case <-time.After(pollEvery):
		case <-ctx.Done():
			return fmt.Errorf("bench: %s is not whole after %s: free space on the disk, or measure fewer tasks: %w", parts[0], startTimeout, ctx.Err())
		}
	}
}

// newestSnapshot returns the name and the size of the newest snapshot of a journal; "": there is
// none.
func newestSnapshot(directory string) (name string, size uint64, err error) {
	all, err := filepath.Glob(filepath.Join(directory, "*.snapshot"))
	if err != nil || len(all) == 0 {
		return "", 0, err
	}
	name = slices.Max(all)
	info, err := os.Stat(name)
	if err != nil {
		return "", 0, fmt.Errorf("bench: size of a snapshot: %w", err)
	}
	return name, uint64(info.Size()), nil
}
