package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	millrace "github.com/millrace/millrace/clients/go"
	"github.com/millrace/millrace/internal/version"
)

// SpillConfig configures `bench spill`.
type SpillConfig struct {
	// Executable is the millrace binary. Default: this program.
	Executable string
	// TotalBytes go through a slab of SlabBytes, in chunks of ChunkBytes.
	TotalBytes, SlabBytes, ChunkBytes int
	// Directory is the directory to spill to. Default: the system's directory for temporary files.
	Directory string
	// Progress, if not nil, is called with the number of finished tasks.
	Progress func(done, of int)
}

// SpillRow is the result for one phase: results are created (out), each is read by a task (in), or
// each is read by a task that creates another one (both). For comparison, direct IO of the same
// number of bytes (buffered IO, if the file system has no direct one) ran on the same disk, in the
// same directions, shortly before.
type SpillRow struct {
	Phase string `json:"phase"`
	// Bytes counts the bytes written to disk and read from it. ObjectBytes is the size
	// of all results of the phase.
	Bytes       uint64  `json:"bytes"`
	ObjectBytes uint64  `json:"object_bytes"`
	Seconds     float64 `json:"seconds"`
	// Rate is Bytes divided by Seconds.
	Rate    float64 `json:"gb_per_s"`
	RawRate float64 `json:"raw_gb_per_s"`
	Ratio   float64 `json:"ratio"`
}

// SpillResult is the result of `bench spill`.
type SpillResult struct {
	Bench      string     `json:"bench"`
	TotalBytes int        `json:"total_bytes"`
	SlabBytes  int        `json:"slab_bytes"`
	ChunkBytes int        `json:"chunk_bytes"`
	Rows       []SpillRow `json:"rows"`
	// WorkerRSSBytes is the worker's resident memory at the end, without its slab. WorkerPeakBytes
	// is the peak, with the slab.
	WorkerRSSBytes  uint64 `json:"worker_rss_bytes"`
	WorkerPeakBytes uint64 `json:"worker_peak_bytes"`
	Repetitions     int    `json:"repetitions"`
	Version         string `json:"version"`
	Machine         string `json:"machine"`
}

// Spill creates more results than the slab holds, rewrites each of them, reads each of them, and
// checks the sum of each.
func Spill(ctx context.Context, c SpillConfig) (out SpillResult, err error) {
	if c.Directory == "" {
		c.Directory = os.TempDir()
	}
	if c.Progress == nil {
		c.Progress = func(int, int) {}
	}
	raw, err := rawIO(c.Directory, c.TotalBytes)
	if err != nil {
		return out, err
	}
	cluster, err := StartCluster(ctx, ClusterConfig{
		Executable: c.Executable, Workers: 1, Slots: 2, MemoryLimit: fmt.Sprint(c.SlabBytes),
		Arguments: []string{"--local-directory", c.Directory, "--spill-limit", fmt.Sprint(4 * c.TotalBytes)},
	})
	if err != nil {
		return out, err
	}
	defer func() {
		if closed := cluster.Close(); err == nil {
			err = closed
		}
	}()
	s := &spill{SpillConfig: c, cluster: cluster, n: c.TotalBytes / c.ChunkBytes}
	pids, err := cluster.WorkerPIDs(ctx)
	if err != nil {
		return out, err
	}
	// Fill the slab first, unmeasured: in a new slab, the first results touch its pages and spill
	// nothing.
	warm, err := s.fill(ctx, c.SlabBytes/c.ChunkBytes)
	if err != nil {
		return out, err
	}
	for i, phase := range []struct {
		name string
		run  func(context.Context) error
	}{{"out", s.make}, {"both", s.rewrite}, {"in", s.read}} {
		row, err := s.phase(ctx, phase.name, phase.run)
		if err != nil {
			return out, err
		}
		for _, f := range warm {
			f.Release()
		}
		warm = nil
		row.RawRate = raw[i]
		row.Ratio = row.Rate / row.RawRate
		out.Rows = append(out.Rows, row)
	}
	memory, err := s.memory(ctx)
	if err != nil {
		return out, err
	}
	out.WorkerRSSBytes = memory.rss
	if out.WorkerPeakBytes, err = statusBytes(pids[0], "VmHWM"); err != nil {
		return out, err
	}
	out.Bench, out.TotalBytes, out.SlabBytes, out.ChunkBytes = "spill", c.TotalBytes, c.SlabBytes, c.ChunkBytes
	out.Repetitions, out.Version, out.Machine = 1, version.String(), Machine()
	return out, nil
}

type spill struct {
	SpillConfig
	cluster *Cluster
	n       int
	done    int
	chunks  []*millrace.Future
}

type memoryFigures struct{ moved, rss uint64 }

func (s *spill) memory(ctx context.Context) (m memoryFigures, err error) {
	workers, err := s.cluster.Client.Workers(ctx)
	if err != nil {
		return m, err
	}
	for _, w := range workers {
		d, err := s.cluster.Client.DescribeMemory(ctx, w, 1, 0)
		if err != nil {
			return m, err
		}
		m.rss += d.GetRssBytes()
		for _, t := range d.GetTiers()[1:] {
			m.moved += t.GetWrittenBytes() + t.GetReadBytes()
		}
	}
	return m, nil
}

// phase measures the bytes that one phase moves.
func (s *spill) phase(ctx context.Context, name string, run func(context.Context) error) (row SpillRow, err error) {
	before, err := s.memory(ctx)
	if err != nil {
		return row, err
	}
	begin := time.Now()
	if err := run(ctx); err != nil {
		return row, fmt.Errorf("bench: spill, phase %s: %w", name, err)
	}
	row.Seconds = time.Since(begin).Seconds()
	after, err := s.memory(ctx)
	if err != nil {
		return row, err
	}
	row.Phase, row.Bytes, row.ObjectBytes = name, after.moved-before.moved, uint64(s.n)*uint64(s.ChunkBytes)
	row.Rate = float64(row.Bytes) / 1e9 / row.Seconds
	return row, nil
}

func (s *spill) ended() {
	s.done++
	s.Progress(s.done, 3*s.n+s.SlabBytes/s.ChunkBytes)
}

func (s *spill) elements() int { return s.ChunkBytes / 8 }

func (s *spill) make(ctx context.Context) (err error) {
	s.chunks, err = s.fill(ctx, s.n)
	return err
}

// fill creates n chunks.
func (s *spill) fill(ctx context.Context, n int) (chunks []*millrace.Future, err error) {
	for i := range n {
		f, err := s.cluster.Client.Submit(ctx, millrace.Native("array.full"), millrace.Args([]int{s.elements()}, float64(i)))
		if err != nil {
			return nil, err
		}
		chunks = append(chunks, f)
	}
	for _, f := range chunks {
		if err := f.Wait(ctx); err != nil {
			return nil, err
		}
		s.ended()
	}
	return chunks, nil
}

func (s *spill) rewrite(ctx context.Context) error {
	old := s.chunks
	s.chunks = nil
	for _, f := range old {
		next, err := s.cluster.Client.Submit(ctx, millrace.Native("array.map"), millrace.Args("x0+1", f))
		if err != nil {
			return err
		}
		s.chunks = append(s.chunks, next)
	}
	for i, f := range s.chunks {
		if err := f.Wait(ctx); err != nil {
			return err
		}
		old[i].Release()
		s.ended()
	}
	return nil
}

func (s *spill) read(ctx context.Context) error {
	var sums []*millrace.Future
	for _, f := range s.chunks {
		sum, err := s.cluster.Client.Submit(ctx, millrace.Native("array.reduce"), millrace.Args(f, "sum"))
		if err != nil {
			return err
		}
		sums = append(sums, sum)
	}
	for i, f := range sums {
		got, err := millrace.Get[float64](ctx, f)
		if err != nil {
			return err
		}
		if want := float64(i+1) * float64(s.elements()); got != want {
			return fmt.Errorf("the sum of chunk %d is %v and should be %v", i, got, want)
		}
		s.ended()
	}
	return nil
}

const (
	rawChunk    = 4 << 20
	rawParallel = 8
)

// rawIO measures direct IO in a directory: writing, both at once, and reading, with total bytes in
// each direction.
func rawIO(directory string, total int) (rates [3]float64, err error) {
	total = total / rawChunk * rawChunk
	memory, err := unix.Mmap(-1, 0, rawChunk*rawParallel*2, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return rates, fmt.Errorf("bench: buffers: %w", err)
	}
	defer func() { err = errors.Join(err, unix.Munmap(memory)) }()
	for i := range memory {
		memory[i] = byte(i * 7)
	}
	dir, err := os.MkdirTemp(directory, "millrace-bench-raw-")
	if err != nil {
		return rates, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	var files [2]*os.File
	for i := range files {
		name := filepath.Join(dir, fmt.Sprint(i))
		f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|unix.O_DIRECT, 0o600)
		if errors.Is(err, unix.EINVAL) {
			f, err = os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
		}
		if err != nil {
			return rates, err
		}
		defer func() { _ = f.Close() }() // it is removed
		files[i] = f
	}
	var wait sync.WaitGroup
	var mu sync.Mutex
	var failed error
	run := func(f *os.File, write bool, half int) {
		for stream := range rawParallel {
			at := (half*rawParallel + stream) * rawChunk
			buffer := memory[at : at+rawChunk]
			wait.Go(func() {
				for off := stream * rawChunk; off < total; off += rawParallel * rawChunk {
					var err error
					if write {
						_, err = f.WriteAt(buffer, int64(off))
					} else {
						_, err = f.ReadAt(buffer, int64(off))
					}
					if err != nil {
						mu.Lock()
						failed = errors.Join(failed, err)
						mu.Unlock()
						return
					}
				}
			})
		}
	}
	for i, phase := range []func(){
		func() { run(files[0], true, 0) },
		func() { run(files[0], false, 0); run(files[1], true, 1) },
		func() { run(files[1], false, 0) },
	} {
		begin := time.Now()
		phase()
		wait.Wait()
		bytes := total
		if i == 1 {
			bytes = 2 * total
		}
		rates[i] = float64(bytes) / 1e9 / time.Since(begin).Seconds()
	}
	if failed != nil {
		return rates, fmt.Errorf("bench: raw IO in %s: %w", directory, failed)
	}
	return rates, nil
}
