package cli

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/dustin/go-humanize"
	"github.com/spf13/pflag"

	"github.com/millrace/millrace/memory/cuda"
	"github.com/millrace/millrace/worker"
)

// gpuFlagNames are the flags of workers on GPUs.
var gpuFlagNames = []string{"device-memory-limit", "rmm-pool-size", "pinned-limit", "gpu", "cuda-library", "executor-arena"}

func gpuFlags(f *pflag.FlagSet) {
	f.String("device-memory-limit", "auto", "slab of a worker on a GPU: bytes (80GiB), a share of its memory (0.8, 80%), or auto for 70%")
	f.String("rmm-pool-size", "", "the same, by the name that it has elsewhere")
	f.String("pinned-limit", "auto", "host memory of a worker on a GPU for what its slab has no room for: bytes (64GiB), none, or auto for its share of half of what there is")
	f.String("gpu", "", "GPU of a single worker: its UUID or its number; default: the first worker has the first GPU, and so on")
	f.String("cuda-library", "", "CUDA driver to use; default: the system's libcuda.so.1")
	f.String("executor-arena", "0", "how much of the slab on a GPU each executor process may keep for the allocators of its libraries")
}

// onGPU says whether workers own the memory of GPUs.
func (a *app) onGPU() (bool, error) {
	switch d := a.settings.String("device"); d {
	case "auto", worker.DeviceHost:
		return false, nil
	case worker.DeviceCUDA:
		return true, nil
	default:
		return false, usageError{fmt.Errorf("--device %s: auto, host or cuda", d)}
	}
}

// gpus is how many there are for workers.
func (a *app) gpus() (int, error) {
	if a.settings.String("gpu") != "" {
		return 1, nil
	}
	driver, err := cuda.Load(cuda.Config{Library: a.settings.String("cuda-library")})
	if err != nil {
		return 0, usageError{fmt.Errorf("--device cuda: %w", err)}
	}
	if n := len(driver.Devices()); n > 0 {
		return n, nil
	}
	return 0, usageError{fmt.Errorf("--device cuda: %s shows no GPU; look at CUDA_VISIBLE_DEVICES", driver.Library())}
}

// onDevice completes the configuration of one of so many workers.
func (a *app) onDevice(c *worker.Config, workers int) error {
	onGPU, err := a.onGPU()
	if err != nil || !onGPU {
		return err
	}
	s := a.settings
	c.Device, c.CUDALibrary, c.GPU = worker.DeviceCUDA, s.String("cuda-library"), s.String("gpu")
	if i := strings.LastIndexByte(c.Name, '-'); c.GPU == "" && i >= 0 && workers > 1 {
		c.GPU = c.Name[i+1:]
	}
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
	return nil
}

// slabSize is the limit of the slab on a GPU, and by which flag it was given.
func (a *app) slabSize() (name, text string) {
	if text = a.settings.String("rmm-pool-size"); text != "" {
		return "rmm-pool-size", text
	}
	return "device-memory-limit", a.settings.String("device-memory-limit")
}

// memoryOf says what memory each worker has.
func (a *app) memoryOf(hostBytes uint64) string {
	if onGPU, err := a.onGPU(); err != nil || !onGPU {
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
