package e2e

import (
	"strings"
	"testing"

	millrace "github.com/millrace/millrace/clients/go"
)

// TestTopoShowsPathsAndRates: after an object of one worker was used on another one, topo
// shows its path and the rate.
func TestTopoShowsPathsAndRates(t *testing.T) {
	for _, tc := range []struct{ protocol, path string }{{"auto", "borrow"}, {"grpc", "grpc"}} {
		t.Run(tc.protocol, func(t *testing.T) {
			t.Parallel()
			up := startCluster(t, "--workers", "2", "--slots", "1", "--memory-limit", "128MiB", "--protocol", tc.protocol)
			c := up.dial(t)
			ctx := soon(t)
			if err := c.WaitForWorkers(ctx, 2); err != nil {
				t.Fatal(err)
			}
			var pairs []any
			// On a busy machine a better path may not answer in time, and is tried again later.
			within(t, "topo shows the pair, with its path and a rate", func() bool {
				made, err := c.Submit(ctx, millrace.Native("array.full"), millrace.Args([]any{1 << 20}, 1.5), millrace.WithWorkers("host-0"))
				if err != nil {
					t.Fatal(err)
				}
				defer made.Release()
				for range 3 {
					sum, err := c.Submit(ctx, millrace.Native("array.reduce"), millrace.Args(made, "sum"), millrace.WithWorkers("host-1"))
					if err != nil {
						t.Fatal(err)
					}
					if v, err := sum.Value(ctx); err != nil {
						t.Fatalf("%v %v", v, err)
					}
				}
				pairs, _ = up.succeed(t, "topo", "--json", "--probe=false")["pairs"].([]any)
				if len(pairs) == 0 {
					return false
				}
				p, _ := pairs[0].(map[string]any)
				rate, _ := p["gb_per_s"].(float64)
				better, _ := p["better"].([]any)
				return p["path"] == tc.path && rate > 0 && len(better) == 0
			})
			if p, _ := pairs[0].(map[string]any); len(pairs) != 1 || p["reader"] != "host-1" || p["source"] != "host-0" {
				t.Errorf("%v", pairs)
			}
			// The other direction is probed.
			within(t, "topo shows both directions", func() bool {
				all, _ := up.succeed(t, "topo", "--json")["pairs"].([]any)
				return len(all) == 2
			})
			table, _, code := up.command(t, "", "topo")
			if code != 0 || !strings.Contains(table, tc.path) || !strings.Contains(table, "host-0") {
				t.Errorf("exit code %d:\n%s", code, table)
			}
		})
	}
}
