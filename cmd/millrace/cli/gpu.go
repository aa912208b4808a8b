package cli

import (
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/dustin/go-humanize"
	"github.com/spf13/pflag"

	"github.com/millrace/millrace/memory/cuda"
	"github.com/millrace/millrace/worker"
)

// gpuFlagNames are the flags of workers on GPUs.
var gpuFlagNames = []string{"device-memory-limit", "rmm-pool-size", "pinned-limit", "gpu", "cuda-library", "executor-arena", "executor-arena-for", "check-inputs", "nvml-library", "no-affinity"}

// arenaLibraries are the libraries of --executor-arena-for.
var arenaLibraries = []string{"cupy", "rmm", "torch"}

const arenaLibrariesText = "some of cupy, rmm and torch, with commas between them"

func gpuFlags(f *pflag.FlagSet) {
	f.String("device-memory-limit", "auto", "slab of a worker on a GPU: bytes (80GiB), a share of its memory (0.8, 80%), or auto for 70%, of what is free if others use it")
	f.String("rmm-pool-size", "", "the same as --device-memory-limit, by the name that RAPIDS has for it")
	f.String("pinned-limit", "auto", "host memory of a worker on a GPU for what its slab has no room for: bytes (64GiB), none, or auto for its share of half of what there is")
	f.String("gpu", "", "run one worker, on this GPU: its UUID, the beginning of it, or its number; default: one on each that CUDA_VISIBLE_DEVICES leaves")
	f.String("cuda-library", "", "CUDA driver to use; default: the system's libcuda.so.1")
	f.String("nvml-library", "", "NVML to use, or none; default: the system's libnvidia-ml.so.1")
	f.Bool("no-affinity", false, "leave workers on GPUs all processors and NUMA nodes, instead of those near their GPUs")
	f.String("executor-arena", "0", "how much of the slab on a GPU each executor process may keep for the allocator of each library: its results are taken where they are")
	f.StringSlice("executor-arena-for", []string{"cupy"}, "the libraries that --executor-arena is for: cupy, rmm (and cuDF), torch")
	f.Bool("check-inputs", false, "for tests: read inputs on a GPU before and after each Python task, and fail one that has changed an input in place")
}

// onDevice completes the configuration of a worker that its supervisor has placed on a GPU.
func (a *app) onDevice(c *worker.Config, p *placed) error {
	s := a.settings
	c.Device, c.CUDALibrary, c.GPU, c.GPUFacts = worker.DeviceCUDA, s.String("cuda-library"), p.UUID, p.Facts
	c.GPUWorkers = p.Workers
	if p.Instance {
		c.GPU = "0" // it sees no other
	}
	c.UCX.Near = p.Net
	if library, err := openNVML(s.String("nvml-library")); err == nil {
		c.GPUMonitor = library
	} else if !errors.Is(err, errNoNVML) {
		c.Log.Info("health of the GPU is not known", "worker", c.Name, "error", err)
	}
	return a.gpuSizes(c)
}

// gpuSizes reads the settings that are amounts of memory for workers on GPUs.
func (a *app) gpuSizes(c *worker.Config) (err error) {
	s := a.settings
	name, text := a.slabSize()
	if c.DeviceMemoryLimit, err = cuda.ParseSize(text); err != nil {
		return usageError{fmt.Errorf("--%s: %w", name, err)}
	}
	switch text := s.String("pinned-limit"); text {
	case "none":
		c.PinnedLimitBytes = worker.NoSpill
	case "auto", "":
	default:
		if c.PinnedLimitBytes, err = humanize.ParseBytes(text); err != nil || c.PinnedLimitBytes < 8<<20 {
			return usageError{fmt.Errorf("--pinned-limit %s: bytes such as 64GiB (at least 8MiB), none, or auto", text)}
		}
	}
	if c.ExecutorArenaBytes, err = humanize.ParseBytes(s.String("executor-arena")); err != nil {
		return usageError{fmt.Errorf("--executor-arena %s: bytes such as 2GiB", s.String("executor-arena"))}
	}
	if s.Bool("check-inputs") {
		c.ExecutorEnv = append(c.ExecutorEnv, "MILLRACE_CHECK_INPUTS=1")
	}
	for _, name := range s.Strings("executor-arena-for") {
		if !slices.Contains(arenaLibraries, name) {
			return usageError{fmt.Errorf("--executor-arena-for %s: %s", name, arenaLibrariesText)}
		}
		c.ExecutorArenaLibraries = append(c.ExecutorArenaLibraries, name)
	}
	return nil
}

// slabSize returns the limit of the slab on a GPU, and the name of the flag that gave it.
func (a *app) slabSize() (name, text string) {
	if text = a.settings.String("rmm-pool-size"); text != "" {
		return "rmm-pool-size", text
	}
	return "device-memory-limit", a.settings.String("device-memory-limit")
}

// memoryOf describes the memory that each worker has.
func (a *app) memoryOf(f *fleet, hostBytes uint64) string {
	if len(f.gpus) == 0 {
		return size(hostBytes) + " of host memory"
	}
	_, text := a.slabSize()
	limit, err := cuda.ParseSize(text)
	switch {
	case err == nil && limit.Bytes > 0:
		return size(limit.Bytes) + " of a GPU"
	case err == nil && limit.Fraction > 0:
		return strconv.FormatFloat(100*limit.Fraction, 'g', 3, 64) + " % of a GPU"
	}
	return strconv.FormatFloat(100*cuda.DefaultFraction, 'g', 3, 64) + " % of a GPU"
}
