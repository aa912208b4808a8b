//go:build cgo && linux

package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

// Workers on GPUs of one host do not open UCX, not even for objects on a disk, which the paths
// between GPUs cannot read. The reason is what topo shows.
func TestGPUWorkersOfAHostLeaveUCXClosed(t *testing.T) {
	c, _ := startGPUs(t, 2, "--device-memory-limit", "24MiB", "--pinned-limit", "none", "--spill-limit", "1GiB")
	client := c.dial(t)
	readByOtherGPU(t, client, 8)
	within(t, "gpu-1 reports that streams have carried bytes, and why UCX has not", func() bool {
		streams, reason := false, ""
		for _, w := range activeWorkers(t, client) {
			for _, l := range w.GetRoutes() {
				switch {
				case w.GetName() != "gpu-1":
				case l.GetPath() == millracev1.TransferPath_TRANSFER_PATH_GRPC:
					streams = l.GetReceivedBytes() > 0
				case l.GetPath() == millracev1.TransferPath_TRANSFER_PATH_UCX:
					reason = l.GetReason()
				}
			}
		}
		return streams && strings.Contains(reason, "both workers are on one host")
	})
	for _, w := range activeWorkers(t, client) {
		maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", w.GetPid()))
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(maps), "libucp") || strings.Contains(string(maps), "libuct") {
			t.Errorf("%s has loaded UCX", w.GetName())
		}
	}
}
