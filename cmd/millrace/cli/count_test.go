package cli

import (
	"io"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/millrace/millrace/worker/topology"
)

// A GPU's worker runs several tasks at once if there is memory for their processes. All GPUs get
// the same number.
func TestGPUSlots(t *testing.T) {
	const gib = 1 << 30
	for _, c := range []struct {
		bytes []uint64
		want  int
	}{
		{[]uint64{140 * gib}, 4}, {[]uint64{140 * gib, 141 * gib}, 4}, {[]uint64{80 * gib, 24 * gib}, 1}, {[]uint64{31 * gib}, 2},
		{[]uint64{15 * gib}, 1}, {[]uint64{1 * gib}, 1}, {[]uint64{0}, 1},
	} {
		var gpus []topology.Device
		for _, n := range c.bytes {
			gpus = append(gpus, topology.Device{TotalBytes: n})
		}
		if got := gpuSlots(gpus); got != c.want {
			t.Errorf("%d slots for GPUs of %v bytes, want %d", got, c.bytes, c.want)
		}
	}
}

// The number of workers on the host follows from the cores and the slots.
func TestWorkerCount(t *testing.T) {
	cores := runtime.NumCPU()
	for _, c := range []struct {
		slots         string
		workers, each int
	}{
		{"0", min(cores, 8), max(1, cores/min(cores, 8))},
		{strconv.Itoa(cores), 1, cores},
		{strconv.Itoa(2 * cores), 1, 2 * cores},
		{"1", min(cores, 8), 1},
	} {
		a := workerApp(t, map[string]string{"slots": c.slots})
		workers, slots, err := a.workerCount(&fleet{})
		if err != nil || workers != c.workers || slots != c.each {
			t.Errorf("--slots %s: %d workers with %d slots (%v), want %d with %d", c.slots, workers, slots, err, c.workers, c.each)
		}
	}
}

// With --first, names and GPUs begin at that number.
func TestFirstWorker(t *testing.T) {
	f := &fleet{gpus: []topology.Device{{UUID: "GPU-a", TotalBytes: 16 << 30}, {UUID: "GPU-b", TotalBytes: 16 << 30}}, top: &topology.Topology{}}
	a := workerApp(t, map[string]string{"first": "1", "name": "gpu"})
	workers, slots, err := a.workerCount(f)
	if err != nil || workers != 1 {
		t.Fatalf("%d workers (%v), want 1: the second GPU's", workers, err)
	}
	children, err := a.children(f, workers, slots)
	if err != nil || len(children) != 1 || children[0].Name != "gpu-1" || !strings.HasPrefix(children[0].Device, "GPU-b") {
		t.Errorf("%+v (%v), want gpu-1 on GPU-b", children, err)
	}
	if children, err = a.children(&fleet{}, 2, 1); err != nil || len(children) != 2 || children[1].Name != "gpu-2" {
		t.Errorf("%+v (%v), want gpu-1 and gpu-2", children, err)
	}
	for _, flags := range []map[string]string{{"first": "2"}, {"first": "1", "workers": "2"}} {
		if _, _, err := workerApp(t, flags).workerCount(f); err == nil || !strings.Contains(err.Error(), "there are 2 GPUs") {
			t.Errorf("%v: %v, want an error that counts the GPUs", flags, err)
		}
	}
}

// workerApp returns the command "worker" with these flags.
func workerApp(t *testing.T, flags map[string]string) *app {
	t.Helper()
	a := &app{out: io.Discard, err: io.Discard}
	cmd, _, err := a.root().Find([]string{"worker"})
	for name, value := range flags {
		if err == nil {
			err = cmd.Flags().Set(name, value)
		}
	}
	if err == nil {
		a.settings, err = loadSettings(cmd)
	}
	if err != nil {
		t.Fatal(err)
	}
	return a
}
