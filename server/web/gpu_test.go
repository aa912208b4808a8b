package web

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace/millrace/server/schedapi"
)

func TestMetricsOfAGPU(t *testing.T) {
	w := &schedapi.Worker{Name: "gpu-0", GPU: schedapi.GPU{UUID: "GPU-1"}}
	w.GPUHealth = &schedapi.GPUHealth{UsedBytes: 5, UtilizationPercent: 50, ClockMHz: 2, Throttled: []string{"power cap", "temperature"}, XIDs: 3}
	registry := prometheus.NewPedanticRegistry()
	if err := registry.Register(gpuCollector{newGPUMetrics(), w}); err != nil {
		t.Fatal(err)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]float64{
		"millrace_gpu_memory_used_bytes": 5, "millrace_gpu_utilization_ratio": 0.5, "millrace_gpu_clock_hertz": 2e6, "millrace_gpu_throttled": 1, "millrace_gpu_xid_errors_total": 3,
	}
	for _, f := range families {
		m := f.GetMetric()[0]
		if got := m.GetGauge().GetValue() + m.GetCounter().GetValue(); got != want[f.GetName()] {
			t.Errorf("%s is %v, want %v", f.GetName(), got, want[f.GetName()])
		}
		if len(m.GetLabel()) != 2 || m.GetLabel()[0].GetValue() != "GPU-1" && m.GetLabel()[1].GetValue() != "GPU-1" {
			t.Errorf("%s: labels %v", f.GetName(), m.GetLabel())
		}
	}
	if len(families) != 10 {
		t.Errorf("%d metrics", len(families))
	}
}

// gpuCollector has the metrics of one worker.
type gpuCollector struct {
	gpuMetrics
	worker *schedapi.Worker
}

func (c gpuCollector) Describe(to chan<- *prometheus.Desc) { c.describe(to) }
func (c gpuCollector) Collect(to chan<- prometheus.Metric) { c.collect(to, c.worker) }
