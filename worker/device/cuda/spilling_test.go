//go:build cgo && linux

package cuda

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	gpu "github.com/millrace/millrace/memory/cuda"

	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/host"
	"github.com/millrace/millrace/worker/ops"
)

// spilling moves data at the end of a slab to pinned memory and back, in both directions at once,
// as fast as the link allows.
type spilling struct {
	moved   atomic.Uint64
	stopped chan struct{}
	movers  sync.WaitGroup
}

const (
	spilledPart  = 64 << 20
	spilledParts = 16
	// movers is the number of goroutines for each direction.
	movers = 4
)

func (b *bench) spill(t *testing.T, tier *gpu.Tier) *spilling {
	t.Helper()
	s := &spilling{stopped: make(chan struct{})}
	at := b.slab.Size() - 2*spilledPart*spilledParts
	move := func(mover, first int, do func(off uint64, s memory.Space, f memory.Frame) error) {
		for i := mover; ; i = (i + movers) % spilledParts {
			select {
			case <-s.stopped:
				return
			default:
			}
			off := uint64(first+i) * spilledPart
			if err := do(off, b.slab, memory.Frame{Offset: at + off, Bytes: spilledPart}); err != nil {
				t.Error(err)
				return
			}
			s.moved.Add(spilledPart)
		}
	}
	for mover := range movers {
		s.movers.Go(func() { move(mover, 0, tier.Save) })
		s.movers.Go(func() { move(mover, spilledParts, tier.Load) })
	}
	return s
}

func (s *spilling) stop() {
	close(s.stopped)
	s.movers.Wait()
}

// TestGPUComputesWhileItSpills checks that computations take only little longer while results are
// moved to pinned memory and back.
func TestGPUComputesWhileItSpills(t *testing.T) {
	onGPU(t)
	b := open(t, 12<<30, Options{})
	space, err := host.NewSlab(2*spilledPart*spilledParts+64<<20, memory.Identity{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := space.Close(); err != nil {
			t.Error(err)
		}
	})
	pinned := make(chan error, 1)
	tier, err := b.gpu.NewTier(space, gpu.TierConfig{Pinned: func(err error) { pinned <- err }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := tier.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := <-pinned; err != nil {
		t.Fatal(err)
	}
	const n = 8192
	x, y := b.random(t, "float32", n, n), b.random(t, "float32", n, n)
	long := b.random(t, "float32", 1<<29)
	for _, c := range []struct {
		name, op string
		args     ops.Args
		times    int
	}{
		{"matmul 8192 float32", "array.matmul", ops.Args{Positional: []any{x, y}}, 15},
		{"matmul 8192 tf32", "array.matmul", ops.Args{Positional: []any{x, y}, Named: named{"tf32": true}}, 60},
		{"x0+1 over 2 GiB", "array.map", ops.Args{Positional: []any{"x0+1", long}}, 100},
	} {
		var alone, beside []time.Duration
		var moved uint64
		var spent time.Duration
		// The two alternate, because clock rates change as the device warms up.
		for range 3 {
			alone = append(alone, b.timed(t, c.times, c.op, c.args))
			s := b.spill(t, tier)
			began := time.Now()
			beside = append(beside, b.timed(t, c.times, c.op, c.args))
			s.stop()
			spent += time.Since(began)
			moved += s.moved.Load()
		}
		slices.Sort(alone)
		slices.Sort(beside)
		slower := 100 * (beside[1].Seconds()/alone[1].Seconds() - 1)
		tell(t, fmt.Sprintf("%s, alone", c.name), float64(alone[1])/1e6, "ms")
		tell(t, fmt.Sprintf("%s, while it spills", c.name), float64(beside[1])/1e6, "ms")
		tell(t, fmt.Sprintf("%s, slower by", c.name), slower, "%")
		tell(t, fmt.Sprintf("%s, spilled and brought back", c.name), float64(moved)/float64(spent), "GB/s")
		if slower > 10 {
			t.Errorf("%s takes %.1f %% longer while the slab spills", c.name, slower)
		}
	}
}
