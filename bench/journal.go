package bench

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	millrace "github.com/millrace/millrace/clients/go"
	"github.com/millrace/millrace/internal/version"
)

const (
	// manySubmitters is the number of clients that submit single tasks.
	manySubmitters = 64
	// bigTasks bounds the tasks with large arguments of a repetition: the scheduler holds all of
	// them in memory.
	bigTasks = 2000
)

// JournalConfig configures `bench journal`.
type JournalConfig struct {
	// Executable is the millrace binary. Default: this program.
	Executable string
	// Directory is where the journal is made. Empty: with other temporary files.
	Directory string
	// Tasks of one repetition, and of a graph.
	Tasks, Graph int
	// ArgumentBytes is the size of large arguments.
	ArgumentBytes int
	// Samples are the single tasks that are timed.
	Samples     int
	Repetitions int
	Progress    func(done, of int)
}

// JournalRow is one workload, with a journal and without.
type JournalRow struct {
	Workload string `json:"workload"`
	Unit     string `json:"unit"`
	// With and Without are the medians, and Ratio is that of the ratios of the pairs.
	With    float64 `json:"with"`
	Without float64 `json:"without"`
	Ratio   float64 `json:"ratio"`
	Spread  Spread  `json:"ratio_spread"`
}

// JournalResult is the result of `bench journal`.
type JournalResult struct {
	Bench string       `json:"bench"`
	Rows  []JournalRow `json:"rows"`
	// JournalBytes is the size of the journal at the end.
	JournalBytes uint64 `json:"journal_bytes"`
	Graph        int    `json:"tasks_per_graph"`
	Tasks        int    `json:"tasks"`
	Repetitions  int    `json:"repetitions"`
	Directory    string `json:"directory"`
	Version      string `json:"version"`
	Machine      string `json:"machine"`
}

// Journal measures what the journal costs: the same work on two clusters, one of which has a
// journal, in turns. Workers answer at once without running anything.
func Journal(ctx context.Context, c JournalConfig) (out JournalResult, err error) {
	if c.Tasks < 1 || c.Graph < 1 || c.ArgumentBytes < 0 || c.Samples < 1 || c.Repetitions < 1 {
		return out, errors.New("bench journal: at least one task, task of a graph, sample and repetition")
	}
	directory, err := os.MkdirTemp(c.Directory, "millrace-bench-journal-")
	if err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(directory)) }()
	var clusters [2]*Cluster
	defer func() {
		for _, cluster := range clusters {
			if cluster != nil {
				err = errors.Join(err, cluster.Close())
			}
		}
	}()
	for i, journal := range []string{filepath.Join(directory, "journal"), ""} {
		config := ClusterConfig{Executable: c.Executable, Workers: 2, Zero: true, Journal: journal}
		if clusters[i], err = StartCluster(ctx, config); err != nil {
			return out, err
		}
	}
	large := c
	large.Tasks = min(c.Tasks, bigTasks)
	workloads := []struct {
		name, unit string
		run        func(context.Context, *Cluster) (float64, error)
	}{
		{fmt.Sprintf("graphs of %d", c.Graph), "tasks/s", func(ctx context.Context, on *Cluster) (float64, error) { return c.graphs(ctx, on, 0) }},
		{fmt.Sprintf("with %d bytes each", c.ArgumentBytes), "tasks/s", func(ctx context.Context, on *Cluster) (float64, error) {
			return large.graphs(ctx, on, c.ArgumentBytes)
		}},
		{fmt.Sprintf("single tasks of %d clients", manySubmitters), "tasks/s", c.singles},
		{"submit to result, p50", "us", c.latency},
	}
	for i, w := range workloads {
		r := JournalRow{Workload: w.name, Unit: w.unit}
		var values [2][]float64
		var ratios []float64
		for repetition := range c.Repetitions + 1 {
			var now [2]float64
			for turn := range clusters {
				k := (repetition + turn) % len(clusters)
				if now[k], err = w.run(ctx, clusters[k]); err != nil {
					return out, err
				}
			}
			if repetition == 0 {
				continue // It warms up.
			}
			for k := range now {
				values[k] = append(values[k], now[k])
			}
			ratios = append(ratios, now[0]/now[1])
		}
		same := func(x float64) float64 { return x }
		r.With, _ = median(values[0], same)
		r.Without, _ = median(values[1], same)
		r.Ratio, r.Spread = median(ratios, same)
		out.Rows = append(out.Rows, r)
		if c.Progress != nil {
			c.Progress(i+1, len(workloads))
		}
	}
	if out.JournalBytes, err = directoryBytes(filepath.Join(directory, "journal")); err != nil {
		return out, err
	}
	out.Bench, out.Graph, out.Tasks, out.Repetitions = "journal", c.Graph, c.Tasks, c.Repetitions
	out.Directory, out.Version, out.Machine = filepath.Dir(directory), version.String(), Machine()
	return out, nil
}

// graphs submits graphs, one after the other, and waits for all results. It returns tasks a second.
func (c JournalConfig) graphs(ctx context.Context, on *Cluster, argument int) (float64, error) {
	if err := on.settle(ctx); err != nil {
		return 0, err
	}
	arguments := make([]millrace.Arguments, c.Tasks)
	for i := range arguments {
		if argument > 0 {
			bytes := make([]byte, argument)
			_, _ = rand.Read(bytes) // It never fails.
			arguments[i] = millrace.Args(bytes)
		}
	}
	began := time.Now()
	var futures []*millrace.Future
	for first := 0; first < c.Tasks; first += c.Graph {
		some, err := on.Client.Map(ctx, noop, func(yield func(millrace.Arguments) bool) {
			for _, a := range arguments[first:min(first+c.Graph, c.Tasks)] {
				if !yield(a) {
					return
				}
			}
		})
		if err != nil {
			return 0, err
		}
		futures = append(futures, some...)
	}
	if err := millrace.WaitAll(ctx, futures...); err != nil {
		return 0, err
	}
	took := time.Since(began)
	on.Client.Release(futures...)
	return float64(c.Tasks) / took.Seconds(), nil
}

// singles submits single tasks from many clients, and returns acknowledged tasks a second.
func (c JournalConfig) singles(ctx context.Context, on *Cluster) (float64, error) {
	if err := on.settle(ctx); err != nil {
		return 0, err
	}
	var wait sync.WaitGroup
	var failed atomic.Pointer[error]
	ready, each := make(chan struct{}), max(c.Tasks/manySubmitters/4, 1)
	var dialled sync.WaitGroup
	dialled.Add(manySubmitters)
	for i := range manySubmitters {
		wait.Go(func() {
			client, err := millrace.Dial(ctx, millrace.WithSchedulerFile(on.File), millrace.WithName("single"+strconv.Itoa(i)))
			dialled.Done()
			if err == nil {
				defer func() { _ = client.Close() }() // Its lease ends in any case.
				<-ready
				for range each {
					g := client.NewGraph("") // Its submission waits for the acknowledgement.
					g.Add("", noop, millrace.Args(), millrace.Hold())
					if _, err = g.Submit(ctx); err != nil {
						break
					}
				}
			}
			if err != nil {
				failed.Store(&err)
			}
		})
	}
	dialled.Wait()
	began := time.Now()
	close(ready)
	wait.Wait()
	if err := failed.Load(); err != nil {
		return 0, *err
	}
	return float64(manySubmitters*each) / time.Since(began).Seconds(), nil
}

// latency returns the median time from Submit of one task to its result.
func (c JournalConfig) latency(ctx context.Context, on *Cluster) (float64, error) {
	if err := on.settle(ctx); err != nil {
		return 0, err
	}
	var took []time.Duration
	var held []*millrace.Future
	for range c.Samples {
		began := time.Now()
		f, err := on.Client.Submit(ctx, noop, millrace.Args())
		if err != nil {
			return 0, err
		}
		if _, err := f.Value(ctx); err != nil {
			return 0, err
		}
		took, held = append(took, time.Since(began)), append(held, f)
	}
	on.Client.Release(held...)
	return percentiles(took).P50, nil
}

// directoryBytes returns the size of the files of a directory.
func directoryBytes(name string) (total uint64, err error) {
	entries, err := os.ReadDir(name)
	for _, entry := range entries {
		info, gone := entry.Info()
		if gone == nil {
			total += uint64(info.Size())
		}
	}
	return total, err
}
