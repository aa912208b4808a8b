package ipc

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// timer is the event of a copy that takes a fixed real time.
type timer struct {
	takes time.Duration
	ends  time.Time
}

func (e *timer) Query() (bool, error) { return !time.Now().Before(e.ends), nil }

func (e *timer) Await(spin time.Duration) (bool, error) {
	for until := time.Now().Add(spin); ; {
		if now := time.Now(); !now.Before(e.ends) || !now.Before(until) {
			return !now.Before(e.ends), nil
		}
	}
}

func processor() time.Duration {
	var use unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &use) // it cannot fail for this process
	return time.Duration(use.Utime.Nano() + use.Stime.Nano())
}

// Measures by how much the waiter notices the end of a copy late, and how much of a processor it
// takes meanwhile. unbound: it does not know how fast the link is at most.
func BenchmarkWait(b *testing.B) {
	for _, c := range []struct {
		name    string
		takes   time.Duration
		fastest float64
		bytes   uint64
	}{
		{"15us", 15 * time.Microsecond, fastestLink, 1 << 20},
		{"180us", 180 * time.Microsecond, fastestLink, 64 << 20},
		{"180us/unbound", 180 * time.Microsecond, 0, 64 << 20},
		{"1ms", time.Millisecond, 0, 16 << 20},
		{"10ms", 10 * time.Millisecond, 0, 64 << 20},
	} {
		b.Run(c.name, func(b *testing.B) {
			var places [2][]place
			for kind := range places {
				for range window {
					places[kind] = append(places[kind], place{event: &timer{takes: c.takes}})
				}
			}
			cq := newCopyQueue(places)
			cq.fastest = c.fastest
			cq.submit = func(p *post) error {
				e := p.event.(*timer)
				e.ends = time.Now().Add(e.takes)
				return nil
			}
			cpu := processor()
			for b.Loop() {
				var cut cutting
				g := newGroup()
				cut.large(0, 0, c.bytes, chunkBytes, g, 0)
				cq.add(cut.pieces)
				for g.open > 0 {
					if _, err := cq.wait(b.Context(), g, time.Minute); err != nil {
						b.Fatal(err)
					}
				}
			}
			each := b.Elapsed() / time.Duration(b.N)
			b.ReportMetric(float64((each-c.takes).Nanoseconds())/1e3, "us-late")
			b.ReportMetric(100*float64(processor()-cpu)/float64(b.Elapsed()), "%-of-a-core")
		})
	}
}
