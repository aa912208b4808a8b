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
	// slabPatience is how long a worker that was started again waits for room for its
	// slab: as long as peers may take to unmap that of its last life.
	slabPatience = time.Minute
	// firstPatience is how long another one waits: for a cluster that is about to end, say.
	firstPatience = 5 * time.Second
	// leastShare of a GPU's memory must be free for a slab of what others leave.
	leastShare = 0.05
	// shrinkings is how often that is tried: others may be taking memory, too.
	shrinkings = 3
)

// gpuSlab makes the slab as soon as there is room. If there will be none, since others
// have the memory, one whose size nobody has asked for is smaller. It fails with
// cuda.ErrTaken if the worker need not be started again before something has changed.
func (c Config) gpuSlab(ctx context.Context, gpu *cuda.Device, identity memory.Identity) (*cuda.Slab, error) {
	patience := firstPatience
	if c.Restarted {
		patience = slabPatience
	}
	waiting, cancel := context.WithTimeout(ctx, patience)
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

// smallerSlab takes of what is free the share that is otherwise taken of all.
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

// taken says who has the memory and what to do.
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
		return fmt.Errorf("%s: %w", text, cause) // it is tried again
	}
	var refused *cuda.Error
	if errors.As(cause, &refused) {
		cause = refused
	}
	return fmt.Errorf("%w: %s: %w", cuda.ErrTaken, text, cause)
}

// others names the processes of others that use a GPU, largest first, as far as that is
// known.
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
