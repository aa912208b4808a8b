package server

import (
	"context"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

const (
	// scavengeEvery is how often unused memory is looked at, and scavengeQuiet how little may have been allocated since
	// the last look for the scheduler to count as idle.
	scavengeEvery = time.Second
	scavengeQuiet = 4 << 20
	// scavengeBytes is how much must be in use above what is live for a collection to be worth it.
	scavengeBytes = 64 << 20
)

// scavenge gives memory back to the system once a large release has been followed by quiet. The collector runs by itself
// only when the heap has grown by its live size again, which an idle scheduler may never do: after a million tasks came
// and went it would keep 600 MB for good.
func scavenge(ctx context.Context) {
	samples := []metrics.Sample{
		{Name: "/gc/heap/allocs:bytes"},
		{Name: "/memory/classes/total:bytes"},
		{Name: "/memory/classes/heap/released:bytes"},
	}
	tick := time.NewTicker(scavengeEvery)
	defer tick.Stop()
	var allocated, settled uint64
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		metrics.Read(samples)
		now, resident := samples[0].Value.Uint64(), samples[1].Value.Uint64()-samples[2].Value.Uint64()
		quiet := now-allocated < scavengeQuiet
		allocated = now
		// What is resident after a collection is as small as it gets until something is allocated again.
		if quiet && resident > settled+scavengeBytes {
			debug.FreeOSMemory()
			metrics.Read(samples)
			allocated, settled = samples[0].Value.Uint64(), samples[1].Value.Uint64()-samples[2].Value.Uint64()
		}
		settled = min(settled, resident)
	}
}
