package topology_test

import (
	"testing"

	"github.com/millrace/millrace/worker/topology"
)

// The counters of RDMA ports are in units of 4 octets, those of network interfaces in octets. A
// counter that is not there is not 0.
func TestCarriedByReadsTheCountersOfADevice(t *testing.T) {
	s := newTree(t)
	count := func(dir, received, sent, in, out string) {
		s.write(dir+"/"+received, in)
		s.write(dir+"/"+sent, out)
	}
	rdma := func(port, in, out string) {
		count("class/infiniband/"+port+"/counters", "port_rcv_data", "port_xmit_data", in, out)
	}
	ethernet := func(name, in, out string) {
		count("class/net/"+name+"/statistics", "rx_bytes", "tx_bytes", in, out)
	}
	rdma("mlx5_0/ports/1", "1000", "0")
	rdma("mlx5_0/ports/2", "7", "8")
	rdma("mlx5_1/ports/1", "2305843009213693952", "1") // 2^61
	rdma("mlx5_2/ports/1", "N/A (no PMA)", "1")
	s.write("class/infiniband/mlx5_3/ports/1/state", "4: ACTIVE")
	ethernet("eth0", "12345678901234", "5")
	ethernet("lo", "0", "0")
	s.write("class/net/eth1/statistics/rx_bytes", "5")
	s.write("counters/port_rcv_data", "1")
	for device, want := range map[string]*topology.Carried{
		"mlx5_0:1": {ReceivedBytes: 4000},
		"mlx5_0:2": {ReceivedBytes: 28, SentBytes: 32},
		"mlx5_0":   {ReceivedBytes: 4000},
		"mlx5_1:1": {ReceivedBytes: 1 << 63, SentBytes: 4},
		"mlx5_2:1": nil,
		"mlx5_3:1": nil,
		"mlx5_9:1": nil,
		"eth0":     {ReceivedBytes: 12345678901234, SentBytes: 5},
		"lo":       {},
		"eth1":     nil,
		"":         nil, "..": nil, "../../class/net/lo": nil, "mlx5_0:../1": nil, "mlx5_0:": nil,
	} {
		got := topology.CarriedBy(s.root, device)
		if (got == nil) != (want == nil) || got != nil && *got != *want {
			t.Errorf("%q: %+v, want %+v", device, got, want)
		}
	}
}

func TestRatesAreThoseBetweenTwoLooks(t *testing.T) {
	at := func(received, sent uint64) *topology.Carried {
		return &topology.Carried{ReceivedBytes: received, SentBytes: sent}
	}
	for _, c := range []struct {
		before, after *topology.Carried
		seconds       float64
		want          *topology.Rates
	}{
		{at(10, 5), at(30, 5), 2, &topology.Rates{Received: 10}},
		{nil, at(30, 5), 2, nil},
		{at(30, 5), nil, 2, nil},
		{at(30, 5), at(40, 4), 2, nil}, // the driver was loaded again
		{at(30, 5), at(40, 6), 0, nil},
	} {
		got := c.after.Since(c.before, c.seconds)
		if (got == nil) != (c.want == nil) || got != nil && *got != *c.want {
			t.Errorf("from %+v to %+v: %+v, want %+v", c.before, c.after, got, c.want)
		}
	}
}
