//go:build cgo && linux

package ucx_test

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/transfertest"
)

var figures = flag.Bool("figures", false, "print latencies and rates beside raw reads")
var inline = flag.Int("inline", 0, "Config.InlineBytes of the source")

// into is a sink that uses the same region again for each object.
type into struct{ region transfer.Region }

func (into) Capabilities() transfer.SinkCapabilities { return transfer.SinkCapabilities{} }

func (f into) Place(_ context.Context, _ int, head transfer.Head) ([]transfer.Region, error) {
	r := f.region
	r.Frame.Bytes = head.Bytes()
	return []transfer.Region{r}, nil
}

func (f into) Done(_ int, err error) {
	if err != nil {
		panic(err)
	}
}

func median(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}

// TestFiguresBesideRaw compares a fetch with a raw read of the same connection, in one run. It
// asserts no times, because the machines of tests are busy.
func TestFiguresBesideRaw(t *testing.T) {
	eachPair(t, manyPlaces, func(t *testing.T, p pair) {
		t.Helper()
		sizes, times := []int{1 << 10, 64 << 10, 9 << 20}, 5
		if *figures {
			sizes, times = append(sizes, 16<<20, 256<<20), 200
		}
		order := p.order()
		order.Sizes, order.Inline = sizes, *inline
		c := startChild(t, order, newObjects(t))
		r := newReaderAt(t, p, transfertest.Patience)
		connection, err := r.path.Connect(t.Context(), c.peer)
		if err != nil {
			t.Fatal(err)
		}
		if *figures {
			fmt.Println(connection, connection.Transports)
		}
		local, err := r.room.Take(uint64(sizes[len(sizes)-1]))
		if err != nil {
			t.Fatal(err)
		}
		for i, n := range sizes {
			reps := max(3, min(times, (4<<30)/n))
			if n >= 16<<20 {
				reps = max(3, times/20)
			}
			raw := func() []time.Duration {
				d, err := r.path.Raw(t.Context(), c.peer, memory.Frame{Offset: memory.HeaderBytes, Bytes: uint64(n)}, local, reps)
				if err != nil {
					t.Fatal(err)
				}
				return d
			}
			raw() // touches the pages for the first time
			before := raw()
			var whole []time.Duration
			for range reps {
				begun := time.Now()
				if err := r.path.Fetch(t.Context(), c.peer, []transfer.Ref{{Task: idOf(i + 1), Generation: 1}}, into{local}); err != nil {
					t.Fatal(err)
				}
				whole = append(whole, time.Since(begun))
			}
			rawTook, took := median(append(before, raw()...)), median(whole)
			if *figures {
				fmt.Printf("%-30s %9d bytes: raw %v (%.2f GB/s), fetch %v (%.2f GB/s), ratio %.2f\n", t.Name(), n,
					rawTook, float64(n)/rawTook.Seconds()/1e9, took, float64(n)/took.Seconds()/1e9, float64(took)/float64(rawTook))
			}
		}
	})
}
