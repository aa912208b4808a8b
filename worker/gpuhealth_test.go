//go:build cgo && linux

package worker_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/millrace/millrace/memory/cuda"
	"github.com/millrace/millrace/memory/cuda/cudatest"
	"github.com/millrace/millrace/worker"
	"github.com/millrace/millrace/worker/topology"
	"github.com/millrace/millrace/worker/workertest"
)

const fakeUUID = "GPU-fafafafa-fafa-fafa-fafa-fafafafafa00"

// monitor is a GPUMonitor that reports the events that the test sends.
type monitor struct{ events chan topology.Event }

func (m *monitor) Sample(string) (topology.Sample, error) { return topology.Sample{UsedBytes: 1}, nil }

func (m *monitor) PCIe(string) *topology.Rates { return nil }

func (m *monitor) Watch(ctx context.Context, report func(topology.Event)) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case e := <-m.events:
			report(e)
		}
	}
}

// monitored starts a worker whose GPUMonitor reports the test's events.
func monitored(t *testing.T) (*cudatest.Fake, *running, *monitor) {
	t.Helper()
	f, change := onGPU(t)
	m := &monitor{events: make(chan topology.Event)}
	w := start(t, workertest.NewScheduler(t), func(c *worker.Config) {
		change(c)
		c.GPUMonitor = m
	})
	return f, w, m
}

// A program's fault, or a contained error in the memory of another process, does not damage the
// objects on the GPU. It is no reason for the worker to leave and lose them.
func TestEventsThatAWorkerSurvives(t *testing.T) {
	_, w, m := monitored(t)
	for _, xid := range []uint64{13, 31, 43, 63, 94, 119, 154, 74, 74, 99999} {
		m.events <- topology.Event{UUID: fakeUUID, Kind: topology.Xid, Xid: xid}
	}
	m.events <- topology.Event{UUID: fakeUUID, Kind: topology.ECC}
	m.events <- topology.Event{Kind: topology.Xid, Xid: 79} // of an unknown GPU
	m.events <- topology.Event{UUID: "GPU-of-a-neighbour", Kind: topology.Xid, Xid: 79}
	d := data(t, w.Registration.GetDataAddress())
	if err := write(t, d, 100, bytesTensor(1<<20), random(1, 1<<20)); err != nil {
		t.Fatal(err)
	}
	w.release(100, 1)
	w.end(t)
}

func TestEventsThatEndAWorker(t *testing.T) {
	t.Run("fatal", func(t *testing.T) {
		_, w, m := monitored(t)
		m.events <- topology.Event{UUID: fakeUUID, Kind: topology.Xid, Xid: 79}
		if err := <-w.ended; !errors.Is(err, cuda.ErrUnhealthy) || !strings.Contains(err.Error(), "fallen off the bus") {
			t.Errorf("ended with %v", err)
		}
	})
	t.Run("a check that fails", func(t *testing.T) {
		f, w, m := monitored(t)
		f.Fail("cuMemcpyDtoDAsync_v2", cudatest.Unknown, 0, 1)
		m.events <- topology.Event{UUID: fakeUUID, Kind: topology.Xid, Xid: 99999}
		if err := <-w.ended; !errors.Is(err, cuda.ErrUnhealthy) || !strings.Contains(err.Error(), "fails a check") {
			t.Errorf("ended with %v", err)
		}
	})
	t.Run("needs a reset", func(t *testing.T) {
		_, w, m := monitored(t)
		m.events <- topology.Event{UUID: fakeUUID, Kind: topology.Xid, Xid: 64}
		w.Until("the farewell", func() bool { return w.Leaving })
		if err := <-w.ended; err != nil {
			t.Errorf("it did not leave properly: %v", err)
		}
	})
	t.Run("NVLink again and again", func(t *testing.T) {
		_, w, m := monitored(t)
		for range 3 {
			m.events <- topology.Event{UUID: fakeUUID, Kind: topology.Xid, Xid: 74}
		}
		w.Until("the farewell", func() bool { return w.Leaving })
		if err := <-w.ended; err != nil {
			t.Errorf("it did not leave properly: %v", err)
		}
	})
}

// If every call fails and no error says that the context is lost, a worker would fail each task
// immediately and therefore attract all tasks. So it must end.
func TestAGPUThatDoesNotAnswerEndsItsWorker(t *testing.T) {
	f, w, _ := monitored(t)
	f.Fail("cuMemGetInfo_v2", 304, 0, 1<<30)
	err := <-w.ended
	if !errors.Is(err, cuda.ErrUnhealthy) || !strings.Contains(err.Error(), "does not answer, 5 times in a row") {
		t.Errorf("ended with %v", err)
	}
}
