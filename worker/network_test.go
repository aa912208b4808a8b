package worker

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

// counters writes the counters of a network interface below a root of sysfs.
func counters(t *testing.T, root, name string, received, sent uint64) {
	t.Helper()
	dir := filepath.Join(root, "class/net", name, "statistics")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for file, n := range map[string]uint64{"rx_bytes": received, "tx_bytes": sent} {
		if err := os.WriteFile(filepath.Join(dir, file), fmt.Appendln(nil, n), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// A device has sums after the first sample, and rates after the second. One that the kernel does
// not count has neither.
func TestNetworkDevicesAreSampled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		root := t.TempDir()
		counters(t, root, "eth0", 1000, 0)
		n := &networkWatch{root: root, devices: func(context.Context) []string { return []string{"eth0", "mlx5_0:1"} }}
		if n.current() != nil {
			t.Error("there is a sample before the first")
		}
		stop := n.watch()
		synctest.Wait()
		first := n.current()
		if len(first) != 2 || first[0].GetReceivedBytes() != 1000 || first[0].SentBytes == nil || first[0].ReceivedBytesPerSecond != nil || first[0].SentBytesPerSecond != nil {
			t.Errorf("the first sample: %v", first)
		}
		counters(t, root, "eth0", 1000+5*uint64(sampleEvery.Seconds()), 0)
		time.Sleep(sampleEvery)
		synctest.Wait()
		second := n.current()
		if len(second) != 2 || second[0].GetReceivedBytesPerSecond() != 5 || second[0].SentBytesPerSecond == nil || *second[0].SentBytesPerSecond != 0 {
			t.Errorf("the second sample: %v", second)
		}
		for _, sample := range [][]*millracev1.NetworkDevice{first, second} {
			if d := sample[len(sample)-1]; d.GetName() != "mlx5_0:1" || d.ReceivedBytes != nil || d.SentBytes != nil || d.ReceivedBytesPerSecond != nil || d.SentBytesPerSecond != nil {
				t.Errorf("a device without counters: %v", d)
			}
		}
		stop()
		time.Sleep(sampleKeeps + time.Second)
		if got := n.current(); got != nil {
			t.Errorf("long after the last sample: %v", got)
		}
	})
}

func TestNetworkDevicesAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &networkWatch{root: t.TempDir(), devices: func(context.Context) []string { return slices.Repeat([]string{"eth0"}, 100) }}
		defer n.watch()()
		synctest.Wait()
		if got := len(n.current()); got != maxNetworkDevices {
			t.Errorf("%d devices", got)
		}
	})
}

// A worker reports the interface that has its address, and the devices that UCX may use.
func TestNetworkDevicesAreThoseToThePeers(t *testing.T) {
	root := t.TempDir()
	for port, state := range map[string]string{"mlx5_0/ports/1": "4: ACTIVE", "mlx5_1/ports/1": "1: DOWN"} {
		dir := filepath.Join(root, "class/infiniband", port)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "state"), []byte(state), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const everywhere, here = "0.0.0.0:0", "127.0.0.1:0"
	for name, tc := range map[string]struct {
		listen, chosen, near, environment, address string
		want                                       []string
	}{
		"on one host":                    {here, "", "", "", "127.0.0.1:5", []string{"lo"}},
		"a GPU on one host":              {here, "", "mlx5_0:1", "", "127.0.0.1:5", []string{"lo"}},
		"on all addresses":               {everywhere, "", "", "", "127.0.0.1:5", []string{"lo", "mlx5_0:1"}},
		"a GPU":                          {everywhere, "", "mlx5_4:1,mlx5_5:1", "", "127.0.0.1:5", []string{"lo", "mlx5_4:1", "mlx5_5:1"}},
		"chosen":                         {everywhere, "eth7, lo", "mlx5_4:1", "", "127.0.0.1:5", []string{"lo", "eth7"}},
		"chosen by the environment":      {everywhere, "", "mlx5_4:1", "eth7", "127.0.0.1:5", []string{"lo", "eth7"}},
		"all":                            {everywhere, "all", "", "", "127.0.0.1:5", []string{"lo", "mlx5_0:1"}},
		"all but some":                   {everywhere, "^eth0", "", "", "127.0.0.1:5", []string{"lo", "mlx5_0:1"}},
		"all but a port":                 {everywhere, "^eth0, mlx5_0:1", "", "", "127.0.0.1:5", []string{"lo"}},
		"all but a port by environment":  {everywhere, "", "", "^mlx5_0:1", "127.0.0.1:5", []string{"lo"}},
		"behind an address of a gateway": {here, "", "", "", "192.0.2.1:5", []string{"lo"}},
		"without an address":             {here, "", "", "", "", []string{"lo"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("UCX_NET_DEVICES", tc.environment)
			c := Config{Listen: tc.listen, Sysfs: root, Scheduler: "127.0.0.1:9", UCX: UCX{NetDevices: tc.chosen, Near: tc.near}}
			if got := c.networkDevices(t.Context(), tc.address); !slices.Equal(got, tc.want) {
				t.Errorf("%q, want %q", got, tc.want)
			}
		})
	}
}
