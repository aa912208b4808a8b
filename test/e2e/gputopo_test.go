//go:build cgo && linux

package e2e

import (
	"slices"
	"strings"
	"testing"

	millrace "github.com/millrace/millrace/clients/go"
	"github.com/millrace/millrace/memory/cuda/cudatest"
)

// The transport of bytes between GPUs, and its rate, are reported for pairs and for a task.
func TestGPUTopoAndExplainTellWhatCarriesBytes(t *testing.T) {
	c, _ := startGPUs(t, 2, "--device-memory-limit", "64MiB", "--pinned-limit", "16MiB")
	client, ctx := c.dial(t), soon(t)
	full := func() *millrace.Future {
		made, err := client.Submit(ctx, millrace.Native("array.full"), millrace.Args([]any{1 << 20}, 1.5), millrace.WithWorkers("gpu-0"))
		if err != nil {
			t.Fatal(err)
		}
		return made
	}
	use := func(x *millrace.Future, at string) *millrace.Future {
		used, err := client.Submit(ctx, millrace.Native("bench.noop"), millrace.Args(x), millrace.WithWorkers(at))
		if err != nil {
			t.Fatal(err)
		}
		if err := used.Wait(ctx); err != nil {
			t.Fatal(err)
		}
		return used
	}
	use(full(), "gpu-1")
	carried := func(s string) bool {
		return strings.HasPrefix(s, "copies ") && strings.Contains(s, "GB/s, gather ")
	}
	within(t, "topo says what carries the bytes", func() bool {
		pairs, _ := c.succeed(t, "topo", "--json", "--probe=false")["pairs"].([]any)
		if len(pairs) != 2 {
			return false // they connect in both directions, whichever fetches
		}
		for _, p := range pairs {
			p, _ := p.(map[string]any)
			if transport, _ := p["transport"].(string); p["path"] != "ipc" || !carried(transport) {
				return false
			}
		}
		return true
	})
	here := use(full(), "gpu-0")
	workers, _ := c.succeed(t, "explain", here.Key(), "--namespace", namespace(t), "-o", "json")["workers"].([]any)
	sources := map[string]string{}
	for _, w := range workers {
		w, _ := w.(map[string]any)
		name, _ := w["worker"].(string)
		sources[name], _ = w["sources"].(string)
	}
	by, found := strings.CutPrefix(sources["gpu-1"], "8.0 MiB from gpu-0 by ipc (")
	if sources["gpu-0"] != "" || !found || !carried(by) {
		t.Errorf("explain says %q", sources)
	}
	// Placement of an ended task is not explained, so the table is about a waiting task.
	made := full()
	if err := made.Wait(ctx); err != nil {
		t.Fatal(err)
	}
	waits, err := client.Submit(ctx, millrace.Native("bench.noop"), millrace.Args(made), millrace.WithWorkers("gpu-9"))
	if err == nil {
		err = client.Flush(ctx)
	}
	if err != nil {
		t.Fatal(err)
	}
	table, _, code := c.command(t, "", "explain", waits.Key(), "--namespace", namespace(t))
	if code != 0 || !strings.Contains(table, "8.0 MiB from gpu-0 by ipc (copies ") {
		t.Errorf("exit code %d:\n%s", code, table)
	}
}

// A slice is computed on the worker of its array: only the slice's own bytes travel, whatever the
// layout of the slice and the array.
func TestGPUSlicesTravelAsTheirBytesOnly(t *testing.T) {
	c, _ := startGPUs(t, 2, "--device-memory-limit", "64MiB", "--pinned-limit", "16MiB")
	client, ctx := c.dial(t), soon(t)
	// The array has 32 MiB.
	made, err := client.Submit(ctx, millrace.Native("array.full"), millrace.Args([]any{2048, 2048}, 1.5), millrace.WithWorkers("gpu-0"))
	if err != nil {
		t.Fatal(err)
	}
	if err := made.Wait(ctx); err != nil {
		t.Fatal(err)
	}
	for _, cut := range []struct{ start, stop, step []any }{
		{[]any{1}, []any{9}, []any{nil}}, // in one piece, 128 KiB
		{[]any{3, 5}, []any{2000, 1500}, []any{16, 9}},
	} {
		var parts []any
		for range 3 {
			part, err := client.Submit(ctx, millrace.Native("array.slice"), millrace.Args(made, cut.start, cut.stop, cut.step))
			if err != nil {
				t.Fatal(err)
			}
			if err := part.Wait(ctx); err != nil {
				t.Fatal(err)
			}
			parts = append(parts, part)
		}
		joined, err := client.Submit(ctx, millrace.Native("array.concat"), millrace.Args(parts...), millrace.WithWorkers("gpu-1"))
		if err != nil {
			t.Fatal(err)
		}
		if err := joined.Wait(ctx); err != nil {
			t.Fatal(err)
		}
	}
	const travel = 3*(8*2048*8) + 3*(125*167*8)
	within(t, "gpu-1 reports what it received", func() bool {
		workers, err := client.Workers(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range workers {
			if w.GetName() == "gpu-1" && w.GetReceivedBytes() >= travel {
				if w.GetReceivedBytes() > travel+1<<20 {
					t.Fatalf("%d bytes came to gpu-1, where slices of %d were needed", w.GetReceivedBytes(), travel)
				}
				return true
			}
		}
		return false
	})
}

// GPUs that cannot access each other's memory exchange objects by pinned memory of the host, or by
// streams if there is none. topo shows the path, and the reason.
func TestGPUsThatDoNotReachEachOther(t *testing.T) {
	if onRealGPU() {
		return // real GPUs can
	}
	for name, want := range map[string]struct {
		pinned, path, staged, why string
		refuse                    func(*cudatest.Fake)
	}{
		"no peer access":    {"16MiB", "pinned", "both", "PEER_ACCESS", func(f *cudatest.Fake) { f.RefusePeer.Store(1) }},
		"nor pinned memory": {"none", "grpc", "", "PEER_ACCESS", func(f *cudatest.Fake) { f.RefusePeer.Store(1) }},
		"not shared":        {"16MiB", "pinned", "both", "does not share", func(f *cudatest.Fake) { f.NoSharing.Store(1) }},
	} {
		t.Run(name, func(t *testing.T) {
			m := gpuMachine(t, 2, 256<<20)
			want.refuse(m.fake) // before they try it, when they register
			c := m.start(t, 2, "--device-memory-limit", "32MiB", "--pinned-limit", want.pinned)
			client, ctx := c.dial(t), soon(t)
			content := someBytes(3, 5<<20+1)
			at0, err := client.Scatter(ctx, array(t, content), millrace.WithWorkers("gpu-0"))
			if err != nil {
				t.Fatal(err)
			}
			at1, err := client.Submit(ctx, millrace.Native("array.slice"), millrace.Args(at0, []any{0}), millrace.WithWorkers("gpu-1"))
			if err != nil {
				t.Fatal(err)
			}
			checkArray(t, at1, content)
			within(t, "topo shows the path, and why not a better one", func() bool {
				pairs, _ := c.succeed(t, "topo", "--json", "--probe=false")["pairs"].([]any)
				at := slices.IndexFunc(pairs, func(x any) bool { p, _ := x.(map[string]any); return p["reader"] == "gpu-1" })
				if at < 0 {
					return false
				}
				p, _ := pairs[at].(map[string]any)
				better, _ := p["better"].([]any)
				staged, _ := p["staged"].(string)
				if p["path"] != want.path || staged != want.staged || len(better) == 0 {
					return false
				}
				first, _ := better[0].(map[string]any)
				why, _ := first["why"].(string)
				return first["path"] == "ipc" && strings.Contains(why, want.why)
			})
			workers, err := client.Workers(ctx)
			if err != nil {
				t.Fatal(err)
			}
			for _, w := range workers {
				for _, r := range w.GetRoutes() {
					if by := strings.ToLower(strings.TrimPrefix(r.GetPath().String(), "TRANSFER_PATH_")); by != want.path && r.GetReceivedBytes() > 0 {
						t.Errorf("%d bytes came to %s by %s", r.GetReceivedBytes(), w.GetName(), by)
					}
				}
			}
		})
	}
}
