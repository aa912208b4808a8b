package cli

import (
	"bytes"
	"strings"
	"testing"
	"text/tabwriter"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

// mixedReader reads from a GPU of its host, from GPUs of two other hosts, and from one that no RDMA
// device reaches.
func mixedReader() []*millracev1.Worker {
	const (
		ipc, pinned, ucx, grpc    = millracev1.TransferPath_TRANSFER_PATH_IPC, millracev1.TransferPath_TRANSFER_PATH_PINNED, millracev1.TransferPath_TRANSFER_PATH_UCX, millracev1.TransferPath_TRANSFER_PATH_GRPC
		open, unreachable, active = millracev1.RouteState_ROUTE_STATE_OPEN, millracev1.RouteState_ROUTE_STATE_UNREACHABLE, millracev1.WorkerState_WORKER_STATE_ACTIVE
	)
	workers := []*millracev1.Worker{{WorkerId: 1, Name: "a-0", State: active, Routes: []*millracev1.Route{
		{PeerWorkerId: 2, Peer: "a-1", Path: ipc, State: open, Transport: "copies 370 GB/s", BytesPerSecond: 370e9, ConnectBytesPerSecond: 310e9},
		{PeerWorkerId: 3, Peer: "b-0", Path: ipc, State: unreachable, Reason: "not on this host"},
		{PeerWorkerId: 3, Peer: "b-0", Path: pinned, State: unreachable, Reason: "not on this host"},
		{PeerWorkerId: 3, Peer: "b-0", Path: ucx, State: open, Transport: "rc_mlx5", Staged: "both", BytesPerSecond: 21e9, ConnectBytesPerSecond: 23.4e9, ConnectionReason: "no dma-buf"},
		{PeerWorkerId: 3, Peer: "b-0", Path: grpc, State: open},
		{PeerWorkerId: 4, Peer: "c-0", Path: ucx, State: open, Transport: "rc_mlx5", Staged: "both", ConnectBytesPerSecond: 12e9},
		{PeerWorkerId: 5, Peer: "d-0", Path: ucx, State: unreachable, Reason: "no RDMA device"},
		{PeerWorkerId: 5, Peer: "d-0", Path: grpc, State: open, BytesPerSecond: 9e9},
	}}}
	for i, name := range []string{"a-1", "b-0", "c-0", "d-0"} {
		workers = append(workers, &millracev1.Worker{WorkerId: uint32(i + 2), Name: name, State: active})
	}
	return workers
}

// Topo, lists and descriptions of workers show the way of the bytes, its rates, and why there is no
// better way.
func TestLanesAreShown(t *testing.T) {
	workers := mixedReader()
	var table, wide, described bytes.Buffer
	a := &app{out: &table}
	if err := a.topoTable(pairsOf(workers), workers); err != nil {
		t.Fatal(err)
	}
	for out, print := range map[*bytes.Buffer]func(w *tabwriter.Writer){
		&wide: func(w *tabwriter.Writer) { workersTable(w, workers, true) }, &described: func(w *tabwriter.Writer) { workerText(w, workers[0]) },
	} {
		w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
		print(w)
		if err := w.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	for name, tc := range map[string]struct {
		text  string
		lines [][]string // what one line has, in order
	}{
		"topo": {table.String(), [][]string{
			{"READER", "SOURCE", "PATH", "GB/S", "AT CONNECT", "NOT BY"},
			{"a-0", "a-1", "ipc (copies 370 GB/s)", "370", "310"},
			{"a-0", "b-0", "ucx (rc_mlx5, staged at both ends)", "21", "23.4", "ipc: not on this host; pinned: not on this host; better ucx: no dma-buf"},
			{"a-0", "c-0", "ucx (rc_mlx5, staged at both ends)", "-", "12"},
			{"a-0", "d-0", "grpc", "9", "-", "ucx: no RDMA device"},
		}},
		"get workers": {wide.String(), [][]string{{"READS BY"}, {"a-0", "grpc: 1 peer; ipc: 1 peer, at least 310 GB/s; ucx (rc_mlx5, staged at both ends): 2 peers, at least 12 GB/s"}}},
		"describe": {described.String(), [][]string{
			{"reads a-1", "ipc (copies 370 GB/s), 370 GB/s, 310 GB/s at connect"},
			{"reads b-0", "ucx (rc_mlx5, staged at both ends), 21 GB/s, 23.4 GB/s at connect; not by ipc: not on this host; pinned: not on this host; better ucx: no dma-buf"},
			{"reads d-0", "grpc, 9 GB/s; not by ucx: no RDMA device"},
		}},
	} {
		for _, parts := range tc.lines {
			if !hasLine(tc.text, parts) {
				t.Errorf("%s: no line has %q:\n%s", name, parts, tc.text)
			}
		}
	}
}

// A description has what the links of a GPU and the network devices carry: 0 is a rate, and what is
// not known is left out.
func TestDescribeShowsWhatLinksAndNetworkDevicesCarry(t *testing.T) {
	rate, none, sum := 2.5e9, 0.0, uint64(3<<30)
	var out bytes.Buffer
	w := tabwriter.NewWriter(&out, 0, 8, 2, ' ', 0)
	workerText(w, &millracev1.Worker{
		GpuHealth: &millracev1.GpuHealth{NvLinkReceivedBytes: &sum, NvLinkSentBytes: new(uint64), PcieReceivedBytesPerSecond: &rate, PcieSentBytesPerSecond: &none},
		NetworkDevices: []*millracev1.NetworkDevice{
			{Name: "eth0", ReceivedBytes: &sum, SentBytes: &sum, ReceivedBytesPerSecond: &none, SentBytesPerSecond: &rate},
			{Name: "mlx5_0:1", ReceivedBytes: &sum, SentBytes: new(uint64)},
			{Name: "mlx5_1:1"},
		},
	})
	workerText(w, &millracev1.Worker{GpuHealth: new(millracev1.GpuHealth)})
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	for _, parts := range [][]string{
		{"nvlink", "3.0 GiB received, 0 B sent so far"},
		{"pcie", "2.5 GB/s received, 0 B/s sent"},
		{"network eth0", "0 B/s received, 2.5 GB/s sent; 3.0 GiB received, 3.0 GiB sent so far"},
		{"network mlx5_0:1", "3.0 GiB received, 0 B sent so far"},
		{"network mlx5_1:1", "not counted"},
	} {
		if !hasLine(out.String(), parts) {
			t.Errorf("no line has %q:\n%s", parts, out.String())
		}
	}
	for _, name := range []string{"nvlink", "pcie"} {
		if strings.Count(out.String(), name) != 1 {
			t.Errorf("%s is not there once:\n%s", name, out.String())
		}
	}
}

// hasLine reports whether one line of a text has all parts, in this order.
func hasLine(text string, parts []string) bool {
	for line := range strings.Lines(text) {
		found := true
		for _, p := range parts {
			_, rest, ok := strings.Cut(line, p)
			line, found = rest, found && ok
		}
		if found {
			return true
		}
	}
	return false
}
