package rpc

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// handledCalls are the metrics of gRPC that are of use: the ended calls, by method and code, of the
// methods that were called. The others would be hundreds of series of zeros.
type handledCalls struct{ all prometheus.Collector }

const handledName = `"grpc_server_handled_total"`

// Describe is part of prometheus.Collector.
func (h handledCalls) Describe(to chan<- *prometheus.Desc) {
	each(h.all.Describe, func(d *prometheus.Desc) {
		if strings.Contains(d.String(), handledName) {
			to <- d
		}
	})
}

// Collect is part of prometheus.Collector.
func (h handledCalls) Collect(to chan<- prometheus.Metric) {
	each(h.all.Collect, func(m prometheus.Metric) {
		if strings.Contains(m.Desc().String(), handledName) {
			to <- m
		}
	})
}

// each calls visit for each value that send sends.
func each[T any](send func(chan<- T), visit func(T)) {
	values := make(chan T)
	go func() {
		defer close(values)
		send(values)
	}()
	for v := range values {
		visit(v)
	}
}
