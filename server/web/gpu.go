package web

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace/millrace/server/schedapi"
)

// gpuMetrics are the metrics that each GPU has.
type gpuMetrics []gpuMetric

type gpuMetric struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	of   func(*schedapi.GPUHealth) float64
}

func newGPUMetrics() gpuMetrics {
	metric := func(kind prometheus.ValueType, name, help string, of func(*schedapi.GPUHealth) float64) gpuMetric {
		return gpuMetric{prometheus.NewDesc("millrace_gpu_"+name, help, []string{"worker", "uuid"}, nil), kind, of}
	}
	gauge, counter := prometheus.GaugeValue, prometheus.CounterValue
	return gpuMetrics{
		metric(gauge, "memory_used_bytes", "Memory of the GPU in use by all processes.", func(h *schedapi.GPUHealth) float64 { return float64(h.UsedBytes) }),
		metric(gauge, "memory_foreign_bytes", "Memory of the GPU that others than its worker use.", func(h *schedapi.GPUHealth) float64 { return float64(h.ForeignBytes) }),
		metric(gauge, "utilization_ratio", "Share of the time in which kernels ran.", func(h *schedapi.GPUHealth) float64 { return float64(h.UtilizationPercent) / 100 }),
		metric(gauge, "clock_hertz", "Clock of the GPU's processors.", func(h *schedapi.GPUHealth) float64 { return float64(h.ClockMHz) * 1e6 }),
		metric(gauge, "throttled", "1 while something lowers the GPU's clock.", func(h *schedapi.GPUHealth) float64 { return float64(min(len(h.Throttled), 1)) }),
		metric(gauge, "power_watts", "Power that the GPU takes.", func(h *schedapi.GPUHealth) float64 { return h.Watts }),
		metric(gauge, "temperature_celsius", "Temperature of the GPU.", func(h *schedapi.GPUHealth) float64 { return float64(h.Celsius) }),
		metric(counter, "ecc_corrected_total", "Errors of memory that ECC corrected.", func(h *schedapi.GPUHealth) float64 { return float64(h.CorrectedECC) }),
		metric(counter, "ecc_uncorrected_total", "Errors of memory that ECC could not correct.", func(h *schedapi.GPUHealth) float64 { return float64(h.UncorrectedECC) }),
		metric(counter, "xid_errors_total", "Xid errors of the GPU since its worker started.", func(h *schedapi.GPUHealth) float64 { return float64(h.XIDs) }),
	}
}

func (m gpuMetrics) describe(to chan<- *prometheus.Desc) {
	for _, x := range m {
		to <- x.desc
	}
}

func (m gpuMetrics) collect(to chan<- prometheus.Metric, w *schedapi.Worker) {
	if w.GPUHealth == nil {
		return
	}
	for _, x := range m {
		to <- prometheus.MustNewConstMetric(x.desc, x.kind, x.of(w.GPUHealth), w.Name, w.GPU.UUID)
	}
}
