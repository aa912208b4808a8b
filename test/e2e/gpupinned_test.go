//go:build cgo && linux

package e2e

import (
	"testing"

	millrace "github.com/millrace/millrace/clients/go"
	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

// readByOtherGPU makes objects of 5 MiB on gpu-0, reads all of them on gpu-1, and compares the
// bytes.
func readByOtherGPU(t *testing.T, client *millrace.Client, objects int) {
	t.Helper()
	ctx := soon(t)
	var all []*millrace.Future
	var want [][]byte
	for i := range objects {
		content := someBytes(byte(i), 5<<20+i)
		f, err := client.Scatter(ctx, array(t, content), millrace.WithWorkers("gpu-0"))
		if err != nil {
			t.Fatal(err)
		}
		all, want = append(all, f), append(want, content)
	}
	for i, f := range all {
		// A slice of the whole array is a copy, made on the other GPU.
		again, err := client.Submit(ctx, millrace.Native("array.slice"), millrace.Args(f, []any{0}), millrace.WithWorkers("gpu-1"))
		if err != nil {
			t.Fatal(err)
		}
		checkArray(t, again, want[i])
	}
}

// An object that a GPU spilled to pinned memory is read by another GPU directly from there: it does
// not return to the first GPU, and goes through no stream.
func TestGPUReadsPinnedMemoryOfPeers(t *testing.T) {
	c, _ := startGPUs(t, 2, "--device-memory-limit", "24MiB", "--pinned-limit", "96MiB", "--spill-limit", "none")
	client, ctx := c.dial(t), soon(t)
	readByOtherGPU(t, client, 10)
	within(t, "gpu-1 reports how it read", func() bool {
		workers, err := client.FullWorkers(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range workers {
			for _, l := range w.GetRoutes() {
				if w.GetName() == "gpu-1" && l.GetPath() == millracev1.TransferPath_TRANSFER_PATH_GRPC && l.GetReceivedBytes() > 0 {
					t.Fatalf("%d bytes came in a stream", l.GetReceivedBytes())
				}
				if w.GetName() == "gpu-1" && l.GetPath() == millracev1.TransferPath_TRANSFER_PATH_PINNED && l.GetState() == millracev1.RouteState_ROUTE_STATE_OPEN && l.GetReceivedBytes() >= 5<<20 {
					return true
				}
			}
		}
		return false
	})
}
