//go:build cgo && linux

package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
)

// sysfs describes a machine with two GPUs, each below a switch of its own. Only GPU 1 has a network
// card next to it. The buses are those of the fake driver.
func sysfs(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	write := func(path, text string) {
		at := filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(at), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at, []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	link := func(path, to string) {
		at := filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(at), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(filepath.Join(root, to), at); err != nil {
			t.Fatal(err)
		}
	}
	pci := func(chain string, node string) string {
		at := "devices/" + chain
		write(at+"/numa_node", node)
		write(at+"/local_cpulist", "0-1")
		link("bus/pci/devices/"+filepath.Base(chain), at)
		return at
	}
	for i, bus := range []string{"0000:1b:00.0", "0000:1c:00.0"} {
		at := pci([]string{"pci0000:10/0000:10:01.0/", "pci0000:20/0000:20:01.0/"}[i]+bus, "0")
		write(at+"/vendor", "0x10de")
		write(at+"/class", "0x030200")
	}
	for name, chain := range map[string]string{"mlx5_0": "pci0000:30/0000:30:01.0/0000:31:00.0", "mlx5_1": "pci0000:20/0000:20:02.0/0000:28:00.0"} {
		link("class/infiniband/"+name+"/device", pci(chain, "0"))
		write("class/infiniband/"+name+"/ports/1/state", "4: ACTIVE")
		write("class/infiniband/"+name+"/ports/1/link_layer", "InfiniBand")
	}
	return root
}

// A worker gets the network card near its GPU, if its UCX has RDMA. A setting of the user has
// priority.
func TestWorkersAreToldTheCardNearTheirGPU(t *testing.T) {
	withRDMA := filepath.Join(t.TempDir(), "libucp.so.0")
	for _, name := range []string{withRDMA, filepath.Join(filepath.Dir(withRDMA), "ucx", "libuct_ib.so.0")} {
		if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			t.Fatal(err)
		}
		// The files are inspected: any program will do.
		elf, err := os.ReadFile("/proc/self/exe")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, elf, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, tc := range map[string]struct {
		env  []string
		want string // of GPU 1
	}{
		"nearest":         {[]string{"MILLRACE_UCX_LIBRARY=" + withRDMA}, "mlx5_1:1"},
		"without RDMA":    {[]string{"MILLRACE_UCX_LIBRARY=/nonexistent/libucp.so.0"}, ""},
		"UCX_NET_DEVICES": {[]string{"MILLRACE_UCX_LIBRARY=" + withRDMA, "UCX_NET_DEVICES=mlx5_0:1"}, "mlx5_0:1"},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := program(t, "up", "--gpu", "1")
			c := upOf(t, cmd, append(tc.env, "MILLRACE_SYSFS="+sysfs(t)))
			text, err := says(t, c.env, "get", "workers", "-o", "json")
			var got struct {
				Workers []struct {
					Gpu struct{ PciBusId, NetDevices string }
				}
			}
			if err != nil || json.Unmarshal([]byte(text), &got) != nil || len(got.Workers) != 1 {
				t.Fatalf("%v: %s", err, text)
			}
			if got.Workers[0].Gpu.NetDevices != tc.want {
				t.Errorf("%+v, want %q", got.Workers[0], tc.want)
			}
		})
	}
}
