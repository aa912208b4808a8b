package server

import (
	"context"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

const (
	// scavengeEvery is the interval between checks for unused memory. The scheduler counts as idle
	// if it allocated less than scavengeQuiet bytes since the last check.
	scavengeEvery = time.Second
	scavengeQuiet = 4 << 20
	// A collection is worth it only if more than scavengeWork bytes were allocated since the last
	// one here, and more than scavengeResident bytes are resident.
	scavengeWork     = 8 << 20
	scavengeResident = 64 << 20
)

// scavenge returns memory to the operating system when a period of work has been followed by an
// idle one. The garbage collector runs by itself only when the heap has grown by its live size
// again, and in an idle scheduler that may never happen: after a million tasks it would keep 600 MB
// for good.
func scavenge(ctx context.Context) {
	samples := []metrics.Sample{
		{Name: "/gc/heap/allocs:bytes"},
		{Name: "/memory/classes/total:bytes"},
		{Name: "/memory/classes/heap/released:bytes"},
	}
	tick := time.NewTicker(scavengeEvery)
	defer tick.Stop()
	var seen, collected uint64
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		metrics.Read(samples)
		allocated, resident := samples[0].Value.Uint64(), samples[1].Value.Uint64()-samples[2].Value.Uint64()
		if allocated-seen < scavengeQuiet && allocated-collected > scavengeWork && resident > scavengeResident {
			debug.FreeOSMemory()
			collected = allocated
		}
		seen = allocated
	}
}
