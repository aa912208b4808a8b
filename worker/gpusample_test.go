package worker

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/worker/topology"
)

// flaky is a GPUMonitor whose samples fail while broken is set. Each sample has another number of
// used bytes.
type flaky struct {
	used   atomic.Uint64
	broken atomic.Bool
}

func (f *flaky) Sample(string) (topology.Sample, error) {
	if f.broken.Load() {
		return topology.Sample{}, errors.New("the driver is busy")
	}
	return topology.Sample{UsedBytes: f.used.Add(1)}, nil
}

func (f *flaky) PCIe(string) *topology.Rates { return nil }

func (f *flaky) Watch(context.Context, func(topology.Event)) error { return nil }

func TestSamplesGoOnAfterAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := new(flaky)
		h := &gpuHealth{config: Config{GPUMonitor: m, Log: slog.New(slog.NewTextHandler(t.Output(), nil))}, uuid: "GPU-1"}
		stop := h.watch(nil)
		defer stop()
		after := func(wait time.Duration) { time.Sleep(wait); synctest.Wait() }
		after(time.Millisecond)
		if h.current().GetUsedBytes() != 1 {
			t.Fatalf("the first sample: %v", h.current())
		}
		m.broken.Store(true)
		after(sampleEvery)
		if h.current().GetUsedBytes() != 1 {
			t.Errorf("after one error: %v", h.current())
		}
		after(sampleKeeps)
		if h.current() != nil {
			t.Errorf("an old sample is shown as the present state: %v", h.current())
		}
		m.broken.Store(false)
		after(sampleEvery)
		if h.current().GetUsedBytes() != 2 {
			t.Errorf("after the errors: %v", h.current())
		}
	})
}

// linked is a GPUMonitor of a GPU whose driver counts what the links carry.
type linked struct{ flaky }

func (*linked) Sample(string) (topology.Sample, error) {
	return topology.Sample{NVLink: &topology.Carried{ReceivedBytes: 5, SentBytes: 0}}, nil
}

func (*linked) PCIe(string) *topology.Rates { return &topology.Rates{Received: 0, Sent: 2.5} }

// A counter that the driver lacks is absent from the report; a link that carried nothing has 0.
func TestCountersOfLinksAreReported(t *testing.T) {
	health := func(m GPUMonitor) *millracev1.GpuHealth {
		h := &gpuHealth{config: Config{GPUMonitor: m, Log: slog.New(slog.NewTextHandler(t.Output(), nil))}, uuid: "GPU-1"}
		h.sample()
		return h.current()
	}
	if got := health(new(flaky)); got == nil || got.NvLinkReceivedBytes != nil || got.NvLinkSentBytes != nil || got.PcieReceivedBytesPerSecond != nil || got.PcieSentBytesPerSecond != nil {
		t.Errorf("without counters: %v", got)
	}
	got := health(new(linked))
	if got.GetNvLinkReceivedBytes() != 5 || got.NvLinkSentBytes == nil || *got.NvLinkSentBytes != 0 ||
		got.PcieReceivedBytesPerSecond == nil || *got.PcieReceivedBytesPerSecond != 0 || got.GetPcieSentBytesPerSecond() != 2.5 {
		t.Errorf("with counters: %v", got)
	}
}
