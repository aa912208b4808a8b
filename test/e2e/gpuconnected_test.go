//go:build cgo && linux

package e2e

import (
	"syscall"
	"testing"
	"time"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

// Workers on GPUs of one host have each other's memory mapped before any fetch. This is so for a
// restarted worker, too.
func TestGPUWorkersOfAHostAreConnectedFromTheStart(t *testing.T) {
	const gpus = 2
	began := time.Now()
	c, _ := startGPUs(t, gpus, "--device-memory-limit", "16MiB", "--pinned-limit", "16MiB")
	ready := time.Since(began)
	client, ctx := c.dial(t), soon(t)
	// connected waits until each active worker has a path to each other one, but none to the
	// process that is gone. It returns the pid of one worker.
	connected := func(gone uint64) (pid uint64) {
		t.Helper()
		within(t, "all pairs are connected", func() bool {
			list, err := client.FullWorkers(ctx, millracev1.WorkerState_WORKER_STATE_ACTIVE)
			if err != nil || len(list) != gpus {
				return false
			}
			open := 0
			for _, w := range list {
				if w.GetPid() == int64(gone) {
					return false
				}
				for _, peer := range list {
					open += routesTo(t, w, peer)
				}
			}
			pid = uint64(list[0].GetPid())
			return open == gpus*(gpus-1)
		})
		return pid
	}
	pid := connected(0)
	t.Logf("ready after %v, connected after %v", ready.Round(time.Millisecond), time.Since(began).Round(time.Millisecond))
	if err := syscall.Kill(int(pid), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	connected(pid)
}

// routesTo counts the open paths between two workers that have not carried any bytes yet.
func routesTo(t *testing.T, reader, source *millracev1.Worker) (open int) {
	t.Helper()
	for _, l := range reader.GetRoutes() {
		if l.GetPeerWorkerId() != source.GetWorkerId() || l.GetPath() != millracev1.TransferPath_TRANSFER_PATH_IPC || l.GetState() != millracev1.RouteState_ROUTE_STATE_OPEN {
			continue
		}
		if open++; l.GetBytesPerSecond() <= 0 || l.GetLatency() == nil || l.GetReceivedBytes() != 0 {
			t.Errorf("%s from %s: %v", reader.GetName(), source.GetName(), l)
		}
	}
	return open
}
