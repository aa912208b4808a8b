package worker

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

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
