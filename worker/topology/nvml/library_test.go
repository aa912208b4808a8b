//go:build cgo && linux

package nvml

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/worker/topology"
)

// TestOldLibrary calls the C code with a library that lacks many functions. A process can load only
// one library, so each run of the test (-count) has a process of its own.
func TestOldLibrary(t *testing.T) {
	const inside = "NVML_TEST_LIBRARY"
	if os.Getenv(inside) == "" {
		command := exec.Command(os.Args[0], "-test.run=^TestOldLibrary$", "-test.count=1")
		command.Env = append(os.Environ(), inside+"=yes")
		if out, err := command.CombinedOutput(); err != nil || !strings.Contains(string(out), "PASS") {
			t.Errorf("%v: %s", err, out)
		}
		return
	}
	if _, err := Open("/nonexistent/libnvidia-ml.so.1"); !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "install NVIDIA's driver") {
		t.Errorf("got %v", err)
	}
	library := filepath.Join(t.TempDir(), "libnvidia-ml.so.1")
	if out, err := exec.Command("cc", "-shared", "-fPIC", "-o", library, "testdata/nvml.c").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	n, err := Open(library)
	if err != nil {
		t.Fatal(err)
	}
	r, err := n.Report()
	if err != nil || r.Driver != "470.1" || r.CUDA != "11.4" || len(r.GPUs) != 1 || len(r.Notes) != 0 {
		t.Fatalf("%+v, %v", r, err)
	}
	if g := r.GPUs[0]; g.UUID != "GPU-1" || g.Name != "Old" || g.PCIBusID != "0000:1b:00.0" || g.TotalBytes != 80 || g.ComputeMajor != 8 || g.ComputeMinor != 6 || g.MIGEnabled {
		t.Errorf("%+v", g)
	}
	s, err := n.Sample("GPU-1")
	if err != nil || s.UsedBytes != 30 || s.Throttled != nil || s.UtilizationPercent != 0 || !slices.Equal(s.Processes, []topology.Process{{PID: 7, UsedBytes: 9}, {PID: 8}}) {
		t.Errorf("%+v, %v", s, err)
	}
	if s.NVLink == nil || *s.NVLink != (topology.Carried{ReceivedBytes: 2048, SentBytes: 1 << 43}) {
		t.Errorf("NVLink %+v", s.NVLink)
	}
	if pcie := n.PCIe("GPU-1"); pcie == nil || *pcie != (topology.Rates{Received: 198e6, Sent: 197e6}) {
		t.Errorf("PCIe %+v", pcie)
	}
	if _, err := n.Sample("GPU-2"); err == nil || !strings.Contains(err.Error(), "failed") {
		t.Errorf("got %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var got topology.Event
	if err := n.Watch(ctx, func(e topology.Event) { got = e; cancel() }); err != nil || fmt.Sprint(got) != "GPU-1: Xid 79: the GPU has fallen off the bus" {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := Open("/elsewhere/libnvidia-ml.so.1"); err == nil || !strings.Contains(err.Error(), "has loaded") {
		t.Errorf("a second library: %v", err)
	}
	if err := n.Close(); err != nil {
		t.Error(err)
	}
}
