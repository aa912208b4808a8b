package cli

import (
	"fmt"
	"runtime"

	"github.com/millrace/millrace/worker/topology"
)

// workerCount returns the number of workers to run, and the slots of each.
func (a *app) workerCount(f *fleet) (workers, slots int, err error) {
	workers, slots = a.settings.Int("workers"), a.settings.Int("slots")
	if workers < 0 || workers > 4096 {
		return 0, 0, usageError{fmt.Errorf("--workers %d: 1 to 4096, or 0 for one on each GPU, or without GPUs for each core, 8 at most", workers)}
	}
	first := a.settings.Int("first")
	cores := runtime.NumCPU()
	switch {
	case len(f.gpus) > 0 && first > 0 && first+max(workers, 1) > len(f.gpus):
		return 0, 0, usageError{fmt.Errorf("--first %d --workers %d: there are %d GPUs, with the numbers from 0, and each has one worker", first, workers, len(f.gpus))}
	case len(f.gpus) > 0 && workers > len(f.gpus):
		return 0, 0, usageError{fmt.Errorf("--workers %d: there are %d GPUs, and each has one worker", workers, len(f.gpus))}
	case workers > 0:
	case len(f.gpus) > 0:
		workers = len(f.gpus) - first
	case slots > 0:
		workers = max(1, min(cores/slots, 8))
	default:
		workers = min(cores, 8)
	}
	switch {
	case slots > 0:
	case len(f.gpus) > 0:
		slots = gpuSlots(f.gpus)
	default:
		slots = coresOf(workers)
	}
	return workers, slots, nil
}

// coresOf returns a worker's share of the processors that this process may use, at least one.
func coresOf(workers int) int { return max(1, runtime.NumCPU()/max(workers, 1)) }

// gpuSlots is the number of tasks that a GPU's worker runs at once, the same for all GPUs. Several
// tasks keep the GPU busy while one waits for its inputs or its result is reported. On an H200,
// graphs of operations of 0.1 ms take up to a third less time with four slots than with one; graphs
// of long operations take the same time. But each slot can be a Python process with a CUDA context
// of half a gigabyte.
func gpuSlots(gpus []topology.Device) int {
	const most, bytesOfEach = 4, 16 << 30
	slots := most
	for _, d := range gpus {
		// A GPU sold as 16 GB has a little less.
		slots = min(slots, max(1, int((d.TotalBytes+bytesOfEach/8)/bytesOfEach)))
	}
	return slots
}
