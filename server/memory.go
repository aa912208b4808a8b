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
	// scavengeWork is how much must have been allocated since the last collection here for another one to be worth it;
	// below scavengeResident none ever is.
	scavengeWork     = 8 << 20
	scavengeResident = 64 << 20
)

// scavenge gives memory back to the system once work has been followed by quiet. The collector runs by itself
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
