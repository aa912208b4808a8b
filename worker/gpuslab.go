package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/cuda"
	"github.com/millrace/millrace/worker/topology"
)

const (
	// slabTimeout is how long a restarted worker waits for room for its slab:
	// as long as its peers may take to unmap the slab of its previous run.
	slabTimeout = time.Minute
	// firstTimeout is how long a worker waits that was not restarted, for example for a cluster
	// that is about to end.
	firstTimeout = 5 * time.Second
	// leastShare is the part of the GPU's memory that must be free to make a slab of the free
	// memory.
	leastShare = 0.05
	// shrinkings is the number of attempts to make such a smaller slab.
	// One attempt may fail because other processes take memory at the same time.
	shrinkings = 3
)

// gpuSlab makes the slab as soon as there is room for it. If the room does not become free in time
// because other processes use the memory, and the operator did not set a size, it makes a smaller
// slab. It fails with cuda.ErrTaken if a restart of the worker is useless until something has
// changed on the machine.
func (c Config) gpuSlab(ctx context.Context, gpu *cuda.Device, identity memory.Identity) (*cuda.Slab, error) {
	timeout := firstTimeout
	if c.Restarted {
		timeout = slabTimeout
	}
	waiting, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	said := false
	slab, err := gpu.AwaitSlab(waiting, cuda.SlabConfig{Size: c.DeviceMemoryLimit, Identity: identity}, func(err error) {
		if !said {
			c.Log.Warn("there is no room for the slab yet", "gpu", gpu.String(), "error", err)
		}
		said = true
	})
	if !errors.Is(err, cuda.ErrOutOfMemory) || ctx.Err() != nil {
		return slab, err
	}
	if c.DeviceMemoryLimit == (cuda.Size{}) {
		for range shrinkings {
			slab, failed := c.smallerSlab(gpu, identity)
			if !errors.Is(failed, cuda.ErrOutOfMemory) {
				return slab, failed
			}
		}
	}
	return nil, c.taken(gpu, err)
}

// smallerSlab makes a slab of cuda.DefaultFraction of the free memory, instead of the total memory.
func (c Config) smallerSlab(gpu *cuda.Device, identity memory.Identity) (*cuda.Slab, error) {
	free, total, err := gpu.Memory()
	if err != nil {
		return nil, err
	}
	if float64(free) < leastShare*float64(total) {
		return nil, cuda.ErrOutOfMemory
	}
	slab, err := gpu.NewSlab(cuda.SlabConfig{Size: cuda.Size{Bytes: uint64(cuda.DefaultFraction * float64(free))}, Identity: identity})
	if err == nil {
		c.Log.Warn("others use this GPU, so that the slab is smaller than usual; --device-memory-limit sets its size", "gpu", gpu.String(),
			"slab_bytes", slab.Size(), "free_bytes", free, "total_bytes", total, "processes", c.others(gpu.Info().ID()))
	}
	return slab, err
}

// taken returns an error that names the processes that use the memory, and the remedy.
func (c Config) taken(gpu *cuda.Device, cause error) error {
	free, total, err := gpu.Memory()
	if err != nil {
		return errors.Join(cause, err)
	}
	who := ""
	if others := c.others(gpu.Info().ID()); others != "" {
		who = ", by " + others
	}
	remedy := "end what else uses the GPU"
	if share := math.Floor(100*cuda.DefaultFraction*float64(free)/float64(total)) / 100; share >= leastShare {
		remedy += ", or start with --device-memory-limit " + strconv.FormatFloat(share, 'f', 2, 64)
	}
	text := fmt.Sprintf("%s of the %s of %s are in use%s: %s", humanize.IBytes(total-free), humanize.IBytes(total), gpu, who, remedy)
	if c.Restarted {
		return fmt.Errorf("%s: %w", text, cause) // without ErrTaken, so the start is retried
	}
	var refused *cuda.Error
	if errors.As(cause, &refused) {
		cause = refused
	}
	return fmt.Errorf("%w: %s: %w", cuda.ErrTaken, text, cause)
}

// others lists the foreign processes that use a GPU, largest first. It returns an empty string if
// they are not known.
func (c Config) others(uuid string) string {
	if c.GPUMonitor == nil {
		return ""
	}
	s, err := c.GPUMonitor.Sample(uuid)
	if err != nil {
		return ""
	}
	list := slices.DeleteFunc(s.Processes, func(p topology.Process) bool { return ours(p.PID) })
	slices.SortFunc(list, func(a, b topology.Process) int { return cmp.Compare(b.UsedBytes, a.UsedBytes) })
	var names []string
	for _, p := range list {
		names = append(names, fmt.Sprintf("pid %d with %s", p.PID, humanize.IBytes(p.UsedBytes)))
	}
	return strings.Join(names, ", ")
}
