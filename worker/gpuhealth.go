package worker

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/memory/cuda"
	"github.com/millrace/millrace/worker/topology"
)

// GPUMonitor reports facts about GPUs that CUDA does not provide; NVML implements it.
// Its methods may be called from any goroutine.
type GPUMonitor interface {
	// Sample returns the state of the GPU with the given UUID.
	Sample(uuid string) (topology.Sample, error)
	// PCIe measures what the GPU carries over PCIe, for some 10 ms: its counters wrap too often for
	// sums. Nil: it is not known.
	PCIe(uuid string) *topology.Rates
	// Watch reports the events of all GPUs, until the context ends.
	Watch(ctx context.Context, report func(topology.Event)) error
}

const (
	// sampleEvery is the interval between samples of the state of the GPU, and of network devices.
	sampleEvery = 2 * time.Second
	// sampleKeeps is the age at which a sample no longer counts as the present state.
	sampleKeeps = 10 * time.Second
)

// gpuHealth collects the known state of a worker's GPU.
type gpuHealth struct {
	config Config
	uuid   string
	// doubt requests a check of the GPU soon; leave makes the worker leave in an orderly way.
	doubt func()
	leave func(error)

	mu        sync.Mutex
	last      *millracev1.GpuHealth // guarded by mu; nil before the first sample
	taken     time.Time             // the time of last; guarded by mu
	missing   bool                  // the latest attempt to take a sample failed; guarded by mu
	xids      uint64                // guarded by mu
	lastEvent string                // guarded by mu
	warned    bool                  // guarded by mu
	nvlink    int                   // errors of NVLink; guarded by mu
}

// current returns the last sample, nil if there is none or if it is older than sampleKeeps. It may
// be called from any goroutine.
func (h *gpuHealth) current() *millracev1.GpuHealth {
	h.mu.Lock()
	defer h.mu.Unlock()
	if time.Since(h.taken) > sampleKeeps {
		return nil
	}
	return h.last
}

// watch samples the GPU and receives its events. It calls fail when the GPU must not be used any
// more. stop ends the watching and waits for it.
func (h *gpuHealth) watch(fail func(error)) (stop func()) {
	if h.config.GPUMonitor == nil || h.uuid == "" {
		return func() {}
	}
	ctx, cancel := context.WithCancel(context.Background())
	var watching sync.WaitGroup
	watching.Go(func() {
		if err := h.config.GPUMonitor.Watch(ctx, func(e topology.Event) { h.happened(e, fail) }); err != nil {
			h.config.Log.Info("errors of the GPU are not watched", "gpu", h.uuid, "error", err)
		}
	})
	watching.Go(func() { eachSample(ctx, h.sample) })
	return func() {
		cancel()
		watching.Wait()
	}
}

// maxNVLinkErrors is the number of NVLink errors at which the GPU is drained.
// Fewer count as transient.
const maxNVLinkErrors = 3

// happened handles an event. An event that names no GPU is counted by all workers but ends none of
// them; instead each worker has its own GPU checked. An event of another GPU only marks that GPU as
// suspect, so that its possibly broken memory is not read.
func (h *gpuHealth) happened(e topology.Event, fail func(error)) {
	if e.UUID != "" && !e.Of(h.uuid) {
		h.config.suspects.add(e, time.Now())
		return
	}
	verdict := e.Verdict()
	h.mu.Lock()
	if e.Kind == topology.Xid {
		h.xids++
	}
	if e.Kind == topology.Xid && e.Xid == 74 {
		if h.nvlink++; h.nvlink >= maxNVLinkErrors {
			verdict = topology.Drain
		}
	}
	h.lastEvent = e.String()
	h.mu.Unlock()
	if e.UUID == "" {
		verdict = topology.Doubtful
	}
	h.config.Log.Warn("the driver reports an error of the GPU", "gpu", h.uuid, "event", e.String(), "verdict", verdict.String())
	switch verdict {
	case topology.Fatal:
		fail(fmt.Errorf("worker: %w: %s", cuda.ErrUnhealthy, e))
	case topology.Drain:
		h.leave(fmt.Errorf("worker: the GPU needs a reset (nvidia-smi --gpu-reset, when nothing uses it): %s", e))
	case topology.Doubtful:
		h.doubt()
	case topology.Harmless:
	}
}

// sample takes one sample. It logs the first of several errors in a row.
func (h *gpuHealth) sample() {
	s, err := h.config.GPUMonitor.Sample(h.uuid)
	h.mu.Lock()
	changed := h.missing != (err != nil)
	h.missing = err != nil
	h.mu.Unlock()
	switch {
	case err != nil && changed:
		h.config.Log.Info("the state of the GPU is not known; the worker goes on asking", "gpu", h.uuid, "error", err)
	case changed:
		h.config.Log.Info("the state of the GPU is known again", "gpu", h.uuid)
	}
	if err != nil {
		return
	}
	g := &millracev1.GpuHealth{
		UsedBytes: s.UsedBytes, UtilizationPercent: uint32(s.UtilizationPercent), MemoryPercent: uint32(s.MemoryPercent), ClockMhz: uint32(s.ClockMHz),
		ThrottleReasons: s.Throttled, Watts: s.Watts, Celsius: uint32(max(s.Celsius, 0)), CorrectedEccErrors: s.CorrectedECC, UncorrectedEccErrors: s.UncorrectedECC,
	}
	if s.NVLink != nil {
		g.NvLinkReceivedBytes, g.NvLinkSentBytes = &s.NVLink.ReceivedBytes, &s.NVLink.SentBytes
	}
	if carries := h.config.GPUMonitor.PCIe(h.uuid); carries != nil {
		g.PcieReceivedBytesPerSecond, g.PcieSentBytesPerSecond = &carries.Received, &carries.Sent
	}
	var who []string
	for _, p := range s.Processes {
		if ours(p.PID) {
			continue
		}
		g.ForeignProcesses++
		g.ForeignBytes += p.UsedBytes
		who = append(who, fmt.Sprintf("pid %d: %d bytes", p.PID, p.UsedBytes))
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if g.ForeignProcesses > 0 && !h.warned {
		h.warned = true
		h.config.Log.Warn("other processes use this GPU", "gpu", h.uuid, "processes", strings.Join(who, "; "))
	}
	g.Xids, g.LastEvent = h.xids, h.lastEvent
	h.last, h.taken = g, time.Now()
}

// ours reports whether a process belongs to this worker or to a worker of the same supervisor.
// Each worker leads a session of its own, and its parent is the supervisor.
func ours(pid int) bool {
	leader, err := unix.Getsid(pid)
	if err != nil {
		return pid == os.Getpid()
	}
	if own, err := unix.Getsid(0); err == nil && own == leader {
		return true
	}
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(leader) + "/stat")
	if err != nil {
		return false
	}
	// The process name, in parentheses, may contain any character, so the fields are counted from
	// the last closing parenthesis: state, parent.
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	return len(fields) > 1 && fields[1] == strconv.Itoa(os.Getppid())
}

// facts completes CUDA's description of the GPU with the facts that the supervisor knows about the
// machine.
func (c Config) facts(g *millracev1.Gpu) {
	if g == nil || c.GPUFacts == nil {
		return
	}
	if uuid := c.GPUFacts.GetUuid(); strings.HasPrefix(uuid, "MIG-") {
		g.Uuid = uuid // with an older driver, CUDA reports the UUID of the whole GPU
	}
	g.NumaNode, g.Placement, g.NetDevices, g.Links = c.GPUFacts.NumaNode, c.GPUFacts.GetPlacement(), c.GPUFacts.GetNetDevices(), c.GPUFacts.GetLinks()
}
