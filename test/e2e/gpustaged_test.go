//go:build cgo && linux

package e2e

import (
	"slices"
	"testing"

	millrace "github.com/millrace/millrace/clients/go"
	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

// Without the transport that reads from GPU to GPU, UCX reads slabs on GPUs through pinned memory.
// The route says so, with the rate at connect and the reason.
func TestGPUUCXWithoutCUDAIPC(t *testing.T) {
	transports := "self,posix,cma"
	if onRealGPU() {
		transports += ",sysv,cuda_copy" // UCX has its own way to the driver, which no fake one satisfies
	}
	c, _ := startGPUs(t, 2, "--device-memory-limit", "64MiB", "--pinned-limit", "96MiB", "--protocol", "ucx", "--ucx-tls", transports)
	client, ctx := c.dial(t), soon(t)
	content := someBytes(1, 20<<20+1)
	f, err := client.Scatter(ctx, array(t, content), millrace.WithWorkers("gpu-0"))
	if err != nil {
		t.Fatal(err)
	}
	again, err := client.Submit(ctx, millrace.Native("array.slice"), millrace.Args(f, []any{0}), millrace.WithWorkers("gpu-1"))
	if err != nil {
		t.Fatal(err)
	}
	checkArray(t, again, content)
	var route *millracev1.Route
	within(t, "gpu-1 reports how it read", func() bool {
		for _, w := range activeWorkers(t, client) {
			at := slices.IndexFunc(w.GetRoutes(), func(l *millracev1.Route) bool {
				return w.GetName() == "gpu-1" && l.GetPath() == millracev1.TransferPath_TRANSFER_PATH_UCX && l.GetReceivedBytes() > 0
			})
			if at >= 0 {
				route = w.GetRoutes()[at]
			}
		}
		return route != nil
	})
	if route.GetTransport() != "cma" || route.GetStaged() != "both" || route.GetConnectBytesPerSecond() <= 0 || route.GetConnectionReason() == "" {
		t.Errorf("%v", route)
	}
}
