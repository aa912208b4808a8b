package bench

import (
	"bytes"
	"context"
	_ "embed" // the Python half of `bench data`
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strconv"
	"time"

	millrace "github.com/millrace/millrace/clients/go"
	"github.com/millrace/millrace/internal/version"
)

//go:embed data_client.py
var pythonData string

// DataConfig configures `bench data`.
type DataConfig struct {
	// Executable is the millrace binary. Default: this program.
	Executable string
	// Bytes is the size of the array.
	Bytes int
	// Repetitions; 0: 5.
	Repetitions int
	// GRPC sends all bytes by gRPC. Otherwise client and worker, which are on one host, share the
	// worker's memory.
	GRPC bool
	// GPUs: the worker's memory is GPU memory.
	GPUs bool
	// CUDALibrary is the driver; "": the system's. Environment holds further variables for the
	// processes.
	CUDALibrary string
	Environment []string
	// Python is the interpreter that runs the Python client. Empty: the Go client is measured.
	Python string
}

// DataResult is the result of `bench data`: an array goes from the client to a worker and back into
// fresh memory.
type DataResult struct {
	Bench       string  `json:"bench"`
	Client      string  `json:"client"`
	Memory      string  `json:"memory"`
	Path        string  `json:"path"`
	Bytes       int     `json:"bytes"`
	WriteRate   float64 `json:"write_gb_per_s"`
	ReadRate    float64 `json:"read_gb_per_s"`
	WriteSpread Spread  `json:"write_gb_per_s_spread"`
	ReadSpread  Spread  `json:"read_gb_per_s_spread"`
	// InPlace is the time to access the array in the worker's memory without a copy. It is absent
	// with gRPC.
	InPlace Percentiles `json:"in_place_us,omitzero"`
	// WriteCPU and ReadCPU are the processor time of client and worker together, in seconds per
	// 10^9 bytes: a figure that the load of the machine does not change.
	WriteCPU float64 `json:"write_cpu_s_per_gb"`
	ReadCPU  float64 `json:"read_cpu_s_per_gb"`
	// Peaks of resident memory above that of the idle process, including the object itself: the
	// client while it writes an array that it holds; the client while it reads one and holds no
	// other; and the worker over the whole run, with the pages of its slab.
	ClientPeakBytes      uint64 `json:"client_peak_bytes"` // the larger one of the next two
	ClientWritePeakBytes uint64 `json:"client_write_peak_bytes"`
	ClientReadPeakBytes  uint64 `json:"client_read_peak_bytes"`
	WorkerPeakBytes      uint64 `json:"worker_peak_bytes"`
	Repetitions          int    `json:"repetitions"`
	Version              string `json:"version"`
	Machine              string `json:"machine"`
}

// dataRuns holds a client's measurements. The Python client prints it as JSON.
type dataRuns struct {
	Write    []float64 `json:"write_gb_per_s"`
	Read     []float64 `json:"read_gb_per_s"`
	WriteCPU []float64 `json:"write_cpu_s_per_gb"`
	ReadCPU  []float64 `json:"read_cpu_s_per_gb"`
	// InPlace is in seconds.
	InPlace []float64 `json:"in_place_s"`

	WritePeak uint64 `json:"client_write_peak_bytes"`
	ReadPeak  uint64 `json:"client_read_peak_bytes"`
}

const inPlaceSamples = 200

// Data measures DataService.
func Data(ctx context.Context, c DataConfig) (out DataResult, err error) {
	if c.Repetitions <= 0 {
		c.Repetitions = 5
	}
	config := ClusterConfig{
		Executable: c.Executable, Workers: 1, MemoryLimit: fmt.Sprint(uint64(c.Bytes)*3 + 64<<20), GPUs: c.GPUs, Environment: c.Environment,
	}
	if out.Memory = "host"; c.GPUs {
		// Clients map a part of it.
		out.Memory, config.PinnedLimit = "cuda", fmt.Sprint(uint64(c.Bytes)*16+64<<20)
	}
	if c.CUDALibrary != "" {
		config.Arguments = []string{"--cuda-library", c.CUDALibrary}
	}
	cluster, err := StartCluster(ctx, config)
	if err != nil {
		return out, err
	}
	defer func() {
		if closed := cluster.Close(); err == nil {
			err = closed
		}
	}()
	workers, err := cluster.WorkerPIDs(ctx)
	if err != nil {
		return out, err
	}
	worker, err := startPeak(workers[0])
	if err != nil {
		return out, err
	}
	var runs dataRuns
	out.Client, out.Path = "go", "shared memory"
	if c.GRPC {
		out.Path = "grpc"
	}
	if c.Python == "" {
		runs, err = goData(ctx, cluster, workers[0], c)
	} else {
		out.Client = "python"
		runs, err = runPythonData(ctx, cluster, workers[0], c)
	}
	if err != nil {
		return out, err
	}
	if out.WorkerPeakBytes, err = worker.bytes(); err != nil {
		return out, err
	}
	same := func(x float64) float64 { return x }
	out.WriteRate, out.WriteSpread = median(runs.Write, same)
	out.ReadRate, out.ReadSpread = median(runs.Read, same)
	out.WriteCPU, _ = median(runs.WriteCPU, same)
	out.ReadCPU, _ = median(runs.ReadCPU, same)
	out.ClientWritePeakBytes, out.ClientReadPeakBytes = runs.WritePeak, runs.ReadPeak
	if len(runs.InPlace) > 0 {
		samples := make([]time.Duration, len(runs.InPlace))
		for i, seconds := range runs.InPlace {
			samples[i] = time.Duration(seconds * float64(time.Second))
		}
		out.InPlace = percentiles(samples)
	}
	out.ClientPeakBytes = max(runs.WritePeak, runs.ReadPeak)
	out.Bench, out.Bytes, out.Repetitions, out.Version, out.Machine = "data", c.Bytes, c.Repetitions, version.String(), Machine()
	return out, nil
}

// peak measures the growth of a process's resident memory from one moment on.
type peak struct {
	pid    int
	before uint64
}

func startPeak(pid int) (peak, error) {
	before, err := statusBytes(pid, "VmRSS")
	if err == nil {
		err = resetPeak(pid)
	}
	return peak{pid, before}, err
}

func (p peak) bytes() (uint64, error) {
	most, err := statusBytes(p.pid, "VmHWM")
	return most - min(most, p.before), err
}

// idle returns the free memory of the garbage collector to the system.
func idle() {
	runtime.GC()
	debug.FreeOSMemory()
}

// dataTimer measures the wall time, and the processor time of client and worker, of one direction.
type dataTimer struct {
	worker int
	began  time.Time
	cpu    time.Duration
}

func (t *dataTimer) used() (time.Duration, error) {
	own, err := ownCPU()
	if err != nil {
		return 0, err
	}
	other, err := cpuTime(t.worker)
	return own + other, err
}

func (t *dataTimer) start() (err error) {
	t.cpu, err = t.used()
	t.began = time.Now()
	return err
}

// stop appends the rate in GB/s and the processor seconds per GB.
func (t *dataTimer) stop(size int, rates, cpus *[]float64) error {
	took := time.Since(t.began)
	cpu, err := t.used()
	*rates = append(*rates, float64(size)/1e9/took.Seconds())
	*cpus = append(*cpus, (cpu-t.cpu).Seconds()/(float64(size)/1e9))
	return err
}

func goData(ctx context.Context, cluster *Cluster, worker int, c DataConfig) (out dataRuns, err error) {
	client := cluster.Client
	if c.GRPC {
		if client, err = millrace.Dial(ctx, millrace.WithSchedulerFile(cluster.File), millrace.WithName("bench"), millrace.WithoutSharedMemory()); err != nil {
			return out, err
		}
		defer func() {
			if closed := client.Close(); err == nil {
				err = closed
			}
		}()
	}
	idle()
	watch, err := startPeak(os.Getpid())
	if err != nil {
		return out, err
	}
	data := make([]uint8, c.Bytes)
	for i := range data {
		data[i] = uint8(i * 7)
	}
	sample := bytes.Clone(data[:min(len(data), 1<<10)])
	array, err := millrace.FromSlice(data)
	if err != nil {
		return out, err
	}
	f, err := client.Scatter(ctx, array)
	if err != nil {
		return out, err
	}
	if out.WritePeak, err = watch.bytes(); err != nil {
		return out, err
	}
	data, array = nil, millrace.Array{} //nolint:ineffassign // so that the collector may have them
	idle()
	if watch, err = startPeak(os.Getpid()); err != nil {
		return out, err
	}
	if array, err = f.Array(ctx); err != nil {
		return out, err
	}
	if out.ReadPeak, err = watch.bytes(); err != nil {
		return out, err
	}
	f.Release()
	timer := &dataTimer{worker: worker}
	for range c.Repetitions {
		if err := cluster.settle(ctx); err != nil {
			return out, err
		}
		runtime.GC()
		if err := timer.start(); err != nil {
			return out, err
		}
		if f, err = client.Scatter(ctx, array); err != nil {
			return out, err
		}
		if err := timer.stop(c.Bytes, &out.Write, &out.WriteCPU); err != nil {
			return out, err
		}
		if err := timer.start(); err != nil {
			return out, err
		}
		back, err := f.Array(ctx)
		if err != nil {
			return out, err
		}
		if err := timer.stop(c.Bytes, &out.Read, &out.ReadCPU); err != nil {
			return out, err
		}
		if len(back.Data) != c.Bytes || !bytes.Equal(back.Data[:len(sample)], sample) {
			return out, fmt.Errorf("bench data: %d bytes came back as %d others", c.Bytes, len(back.Data))
		}
		if !c.GRPC {
			// Percentiles need at least 200 samples.
			for len(out.InPlace) < inPlaceSamples {
				began := time.Now()
				_, done, err := f.View(ctx)
				if err != nil {
					return out, err
				}
				out.InPlace = append(out.InPlace, time.Since(began).Seconds())
				done()
			}
		}
		f.Release()
	}
	return out, cluster.settle(ctx)
}

func runPythonData(ctx context.Context, cluster *Cluster, worker int, c DataConfig) (out dataRuns, err error) {
	cmd := exec.CommandContext(ctx, c.Python, "-c", pythonData, cluster.File, strconv.Itoa(worker), strconv.Itoa(c.Bytes), strconv.Itoa(c.Repetitions), strconv.FormatBool(c.GRPC))
	var said bytes.Buffer
	cmd.Stderr = &said
	text, err := cmd.Output()
	if err != nil {
		return out, fmt.Errorf("bench data: %s: %w:\n%s", c.Python, err, said.String())
	}
	if err := json.Unmarshal(text, &out); err != nil {
		return out, fmt.Errorf("bench data: the Python client printed %q: %w", text, err)
	}
	if len(out.Write) == 0 || len(out.Read) == 0 {
		return out, fmt.Errorf("bench data: the Python client printed no figures: %q", text)
	}
	return out, nil
}
