package web

import (
	"fmt"
	"maps"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace/millrace/server/schedapi"
)

// A worker has one series for each way of the bytes, whatever the number of its peers.
func TestMetricsOfLanes(t *testing.T) {
	const open, unreachable = schedapi.RouteOpen, schedapi.RouteUnreachable
	w := &schedapi.Worker{Name: "gpu-0", Routes: []schedapi.Route{
		{Peer: 1, Path: schedapi.PathIPC, State: open, Transport: "copies 370 GB/s", ConnectBytesPerSecond: 300},
		{Peer: 1, Path: schedapi.PathGRPC, State: open},
		{Peer: 2, Path: schedapi.PathIPC, State: open, Transport: "copies 371 GB/s", ConnectBytesPerSecond: 200},
		{Peer: 3, Path: schedapi.PathIPC, State: unreachable},
		{Peer: 3, Path: schedapi.PathUCX, State: open, Transport: "rc_mlx5", Staged: "both", ConnectBytesPerSecond: 23},
		{Peer: 4, Path: schedapi.PathUCX, State: open, Transport: "rc_mlx5", ConnectBytesPerSecond: 45},
		{Peer: 5, Path: schedapi.PathUCX, State: unreachable},
		{Peer: 5, Path: schedapi.PathGRPC, State: open},
		{Peer: 6, Path: schedapi.PathPinned, State: open, Transport: "shared memory", Staged: "both"},
	}}
	registry := prometheus.NewPedanticRegistry()
	if err := registry.Register(laneCollector{newLaneMetrics(), w}); err != nil {
		t.Fatal(err)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			got[fmt.Sprintf("%s %s %s %s %s", f.GetName(), labels["worker"], labels["path"], labels["transport"], labels["staged"])] = m.GetGauge().GetValue()
		}
	}
	const peers, rate = "millrace_worker_lane_peers gpu-0 ", "millrace_worker_lane_connect_bytes_per_second gpu-0 "
	want := map[string]float64{
		peers + "ipc  none": 2, peers + "ucx rc_mlx5 both": 1, peers + "ucx rc_mlx5 none": 1, peers + "grpc  none": 1, peers + "pinned shared memory both": 1,
		rate + "ipc  none": 200, rate + "ucx rc_mlx5 both": 23, rate + "ucx rc_mlx5 none": 45,
	}
	if !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// laneCollector has the metrics of one worker.
type laneCollector struct {
	laneMetrics
	worker *schedapi.Worker
}

func (c laneCollector) Describe(to chan<- *prometheus.Desc) { c.describe(to) }
func (c laneCollector) Collect(to chan<- prometheus.Metric) { c.collect(to, c.worker) }
