package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/dustin/go-humanize"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/alloc"
	"github.com/millrace/millrace/memory/cuda"
	hostmemory "github.com/millrace/millrace/memory/host"
	"github.com/millrace/millrace/transfer/borrow"
	"github.com/millrace/millrace/transfer/mirror"
	gpudevice "github.com/millrace/millrace/worker/device/cuda"
	"github.com/millrace/millrace/worker/executor"
)

const (
	// probeEvery is the interval between probes of the GPU.
	probeEvery = time.Second
	// probeFailures is the number of consecutive failed probes, with any error, after which the
	// worker ends. A GPU on which every task fails at once would otherwise attract all tasks.
	probeFailures = 5
	// checkWithin is the longest time that the GPU may take for a small test copy when there is
	// reason to doubt it.
	checkWithin = 30 * time.Second
	// foreignBytes is the amount of GPU memory used by other processes above which the worker logs
	// a warning. It is more than contexts and a desktop use.
	foreignBytes = 2 << 30
)

// openGPU opens the driver, the GPU, its slab and the tier of pinned memory.
func (c Config) openGPU(ctx context.Context, identity memory.Identity, m *opened) error {
	driver, err := cuda.Load(cuda.Config{Library: c.CUDALibrary})
	if err != nil {
		return fmt.Errorf("worker: --device cuda: %w; see millrace doctor, or use --device host", err)
	}
	info, err := c.chooseGPU(driver)
	if err != nil {
		return err
	}
	gpu, err := driver.Open(info.Ordinal)
	if errors.Is(err, cuda.ErrOutOfMemory) && !c.Restarted {
		return fmt.Errorf("worker: %w: there is no room for a context on %s, whose memory others use (%s): end them, or choose another GPU (--gpu, CUDA_VISIBLE_DEVICES): %w",
			cuda.ErrTaken, info.ID(), cmp.Or(c.others(info.ID()), "nvidia-smi may tell who"), err)
	}
	if err != nil {
		return fmt.Errorf("worker: %w", err)
	}
	m.then(gpu.Close)
	free, total, err := gpu.Memory()
	if err != nil {
		return fmt.Errorf("worker: %w", err)
	}
	if used := total - free; used > foreignBytes {
		c.Log.Warn("others use memory of this GPU", "gpu", gpu.String(), "used_bytes", used, "total_bytes", total, "processes", c.others(info.ID()))
	}
	slab, err := c.gpuSlab(ctx, gpu, identity)
	if err != nil {
		return fmt.Errorf("worker: %w", err)
	}
	d, err := gpudevice.New(gpu, slab, gpudevice.Options{
		Python: c.PythonCommand[0],
		Linalg: m.linalg,
		Logf:   func(format string, args ...any) { c.Log.Info(fmt.Sprintf(format, args...)) },
	})
	if err != nil {
		_ = slab.Close() // the first of the two errors is the useful one
		return fmt.Errorf("worker: %w", err)
	}
	m.device = d
	m.then(d.Close)
	if err := c.arenasFit(slab.Size()); err != nil {
		return err
	}
	var visible *string
	if given, set := os.LookupEnv("CUDA_VISIBLE_DEVICES"); set {
		visible = &given
	}
	export, err := slab.Export()
	m.executors = &executor.Device{
		UUID: info.UUID, Visible: info.Visible(visible), Handle: export.Handle[:], Driver: driver.Library(),
		ArenaBytes: c.ExecutorArenaBytes, ArenaLibraries: c.ExecutorArenaLibraries,
	}
	m.lent = &borrow.Device{Handle: export.Handle, UUID: info.UUID}
	switch {
	case errors.Is(err, cuda.ErrNotShared):
		m.executors.Refused, m.lent = err, nil
		c.Log.Warn("this system does not share a GPU's memory between processes: native operations run, Python tasks do not, and "+
			"other workers read results by way of pinned memory or as streams; run Python tasks on workers with --device host", "gpu", gpu.String(), "error", err)
	case err != nil:
		return fmt.Errorf("worker: %w", err)
	}
	m.gpu = &millracev1.Gpu{Uuid: info.ID(), Name: info.Name, PciBusId: info.PCIBusID, MemoryBytes: total}
	check, err := gpu.NewCheck()
	if err != nil {
		return fmt.Errorf("worker: %w", err)
	}
	m.then(check.Close)
	doubts := make(chan struct{}, 1)
	m.doubt = func() {
		select {
		case doubts <- struct{}{}:
		default: // a check is already pending
		}
	}
	m.health, m.watch = gpu.Health, func(fail func(error)) func() { return watchGPU(gpu, check, doubts, c.stagingTold(slab), fail) }
	c.Log.Info("the slab lies on a GPU", "gpu", gpu.String(), "slab_bytes", slab.Size(), "total_bytes", total, "driver_cuda", driver.Version())
	return c.openPinned(driver, gpu, identity, m)
}

// arenaShare is the largest part of a slab that the arenas of all executors may have together.
// Arena memory belongs to its executor alone; fetched objects, results of native operations and
// objects restored from lower tiers need room as well.
const arenaShare = 0.75

// arenasFit refuses arenas that would leave too little of the slab for anything else.
// Each library has an arena of its own.
func (c Config) arenasFit(slabBytes uint64) error {
	distinct := make(map[string]bool)
	for _, name := range c.ExecutorArenaLibraries {
		distinct[name] = true
	}
	libraries := max(len(distinct), 1)
	high, sum := bits.Mul64(c.ExecutorArenaBytes, uint64(c.Slots*libraries))
	if high > 0 {
		sum = math.MaxUint64
	}
	if float64(sum) <= arenaShare*float64(slabBytes) {
		return nil
	}
	each, fewer := "each (--executor-arena)", "fewer --slots"
	if libraries > 1 {
		each, fewer = fmt.Sprintf("for each of %d libraries (--executor-arena, --executor-arena-for)", libraries), "fewer --slots or libraries"
	}
	return &ConfigError{fmt.Errorf("worker: %d executors with %s %s are %s together: at most %d %% of the slab of %s, so that other results have room; "+
		"use --executor-arena %s or less, %s, or a larger --device-memory-limit", c.Slots, humanize.IBytes(c.ExecutorArenaBytes), each,
		humanize.IBytes(sum), int(100*arenaShare), humanize.IBytes(slabBytes), roughly(uint64(arenaShare*float64(slabBytes))/uint64(c.Slots*libraries)), fewer)}
}

// roughly formats an amount as flags accept it, rounded down.
func roughly(bytes uint64) string {
	if bytes >= 8*humanize.GiByte {
		return fmt.Sprintf("%dGiB", bytes/humanize.GiByte)
	}
	return fmt.Sprintf("%dMiB", bytes>>20)
}

// chooseGPU finds the GPU by its index or UUID.
func (c Config) chooseGPU(driver *cuda.Driver) (cuda.Info, error) {
	devices := driver.Devices()
	n, err := strconv.Atoi(c.GPU)
	if c.GPU == "" {
		n, err = 0, nil
	}
	if err != nil {
		info, err := driver.Find(c.GPU)
		if err != nil {
			return info, fmt.Errorf("worker: GPU %s (--gpu): %w", c.GPU, err)
		}
		return info, nil
	}
	if n < 0 || n >= len(devices) {
		return cuda.Info{}, fmt.Errorf("worker: GPU %d (--gpu): this process sees %d; look at CUDA_VISIBLE_DEVICES", n, len(devices))
	}
	return devices[n], nil
}

// openPinned opens the tier of pinned host memory between the GPU and the disk.
// The memory is pinned in the background, whatever its size.
func (c Config) openPinned(driver *cuda.Driver, gpu *cuda.Device, identity memory.Identity, m *opened) error {
	bytes, source := c.PinnedLimitBytes, "--pinned-limit"
	switch bytes {
	case NoSpill:
		return nil
	case 0:
		limit, err := hostmemory.UsableMemory()
		if err != nil {
			return fmt.Errorf("worker: %w", err)
		}
		sharing := c.GPUWorkers
		if sharing <= 0 {
			sharing = len(driver.Devices())
		}
		bytes, source = min(limit.Bytes/2/uint64(sharing), alloc.MaxBytes), "half of "+limit.Source+", shared by the workers"
	}
	host, err := hostmemory.NewSlab(bytes/hugePage*hugePage, identity)
	if err != nil {
		return fmt.Errorf("worker: pinned memory (--pinned-limit): %w", err)
	}
	m.then(host.Close)
	begin := time.Now()
	stage := min(host.Size()/4, mirrorBytes) / hugePage * hugePage
	tier, err := gpu.NewTier(host, cuda.TierConfig{StageBytes: stage, AheadBytes: pinAhead, Pinned: func(err error) {
		if err != nil {
			c.Log.Error("not all of the pinned memory is to be had: results go to disk instead", "error", err)
			return
		}
		c.Log.Info("pinned memory is complete", "bytes", host.Size(), "took", time.Since(begin).Round(time.Millisecond))
	}})
	if err != nil {
		return fmt.Errorf("worker: %w", err)
	}
	m.then(tier.Close)
	m.below = append(m.below, tier)
	if stage > 0 {
		if m.mirror, err = mirror.New(tier, tier.Size(), stage); err != nil {
			return fmt.Errorf("worker: %w", err)
		}
	}
	c.Log.Info("results that the GPU has no room for go to pinned memory", "limit", humanize.IBytes(tier.Size()), "by", source)
	return nil
}

const (
	// hugePage is the size of a large page in bytes, the unit of pinned memory.
	hugePage = 2 << 20
	// mirrorBytes is the size of the area of pinned memory through which clients of this host read
	// objects; at most a quarter of the tier.
	mirrorBytes = 4 << 30
	// pinAhead is the amount of pinned memory that is prepared beyond the amount in use.
	pinAhead = 4 << 30
)

// stagingTold returns a function that logs how many stream copies had to use pageable instead of
// pinned memory. It logs again only when this number has doubled.
func (c Config) stagingTold(slab *cuda.Slab) func() {
	told := uint64(0)
	return func() {
		s := slab.Staging()
		if s.Pageable <= 2*told {
			return
		}
		told = s.Pageable
		c.Log.Warn("copies between the GPU and streams go by memory that is not pinned, at a part of the speed", "gpu", slab.Device().String(),
			"times", s.Pageable, "pinned_buffers", s.Pinned, "error", s.Err)
	}
}

// watchGPU calls fail once, when the GPU is lost, stops answering, or fails a check. It probes the
// GPU regularly, since possibly nothing else uses the GPU and would notice, and runs a check for
// each entry in doubts. It calls look before each probe. stop ends the watching and waits for it.
func watchGPU(gpu *cuda.Device, check *cuda.Check, doubts <-chan struct{}, look func(), fail func(error)) (stop func()) {
	done := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() {
		probes := time.NewTicker(probeEvery)
		defer probes.Stop()
		failures := 0
		for {
			select {
			case <-done:
				return
			case <-gpu.Failed():
				fail(fmt.Errorf("worker: %s is lost: %w", gpu, gpu.Health()))
				return
			case <-doubts:
				if err := check.Run(checkWithin); err != nil && gpu.Health() == nil {
					fail(fmt.Errorf("worker: %w: %s fails a check: %w", cuda.ErrUnhealthy, gpu, err))
					return
				}
			case <-probes.C:
				look()
				err := gpu.Probe()
				if err == nil {
					failures = 0
				} else if failures++; failures >= probeFailures && gpu.Health() == nil {
					fail(fmt.Errorf("worker: %w: %s does not answer, %d times in a row: %w", cuda.ErrUnhealthy, gpu, failures, err))
					return
				}
			}
		}
	})
	return func() {
		close(done)
		watching.Wait()
	}
}
