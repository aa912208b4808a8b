package cli

import (
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
