package web

import (
	"cmp"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/schedapi"
)

// laneMetrics describe how a worker reads its peers. They are sums over peers: a series for each
// pair would be too many.
type laneMetrics struct{ peers, rate *prometheus.Desc }

// lane is one way of the bytes, as the labels have it.
type lane struct{ path, transport, staged string }

func newLaneMetrics() laneMetrics {
	labels := []string{"worker", "path", "transport", "staged"}
	return laneMetrics{
		peers: prometheus.NewDesc("millrace_worker_lane_peers", "Peers that the worker reads in this way. staged: the ends at which the bytes go through host memory (none, source, reader, both).", labels, nil),
		rate:  prometheus.NewDesc("millrace_worker_lane_connect_bytes_per_second", "Rate of a read that was timed when the peer was connected; the lowest of the peers.", labels, nil),
	}
}

func (m laneMetrics) describe(to chan<- *prometheus.Desc) {
	to <- m.peers
	to <- m.rate
}

func (m laneMetrics) collect(to chan<- prometheus.Metric, w *schedapi.Worker) {
	peers, slowest := make(map[lane]float64), make(map[lane]float64)
	var last ids.WorkerID
	for i := range w.Routes {
		// The paths to one peer are together, best first: the first open one counts.
		r := &w.Routes[i]
		if r.State != schedapi.RouteOpen || r.Peer == last {
			continue
		}
		last = r.Peer
		l := laneOf(r)
		peers[l]++
		if rate := r.ConnectBytesPerSecond; rate > 0 && (slowest[l] == 0 || rate < slowest[l]) {
			slowest[l] = rate
		}
	}
	for l, n := range peers {
		to <- prometheus.MustNewConstMetric(m.peers, prometheus.GaugeValue, n, w.Name, l.path, l.transport, l.staged)
	}
	for l, rate := range slowest {
		to <- prometheus.MustNewConstMetric(m.rate, prometheus.GaugeValue, rate, w.Name, l.path, l.transport, l.staged)
	}
}

func laneOf(r *schedapi.Route) lane {
	l := lane{path: r.Path.String(), staged: cmp.Or(r.Staged, "none")}
	if r.Path != schedapi.PathIPC { // its text has figures, which differ between peers
		l.transport = r.Transport
	}
	return l
}
