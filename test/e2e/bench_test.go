package e2e

import (
	"strings"
	"testing"

	"github.com/millrace/millrace/bench"
)

// TestBenchPrintsItsContract: the output on stdout consists of the fields that other programs rely
// on. The test does not judge the figures.
func TestBenchPrintsItsContract(t *testing.T) {
	tasks := "bench workers tasks seconds tasks_per_second scheduler_cpu_us_per_task client_cpu_us_per_task peak_rss_bytes version"
	for _, tc := range []struct{ args, fields string }{
		{"tasks --zero --workers 2 --tasks 2000 --repetitions 1", tasks},
		{"tasks --workers 1 --tasks 500 --repetitions 1", tasks},
		{"tasks --zero --workers 1 --tasks 2000 --repetitions 2 --viewers 2 --against " + binary,
			tasks + " viewers stream_bytes against against_version against_tasks_per_second against_tasks_per_second_spread " +
				"against_peak_rss_bytes tasks_per_second_ratio tasks_per_second_ratio_spread"},
		{"graph --shape merge --zero --workers 2 --tasks 300 --repetitions 1", tasks + " shape us_per_task"},
		{"graph --shape tree --zero --workers 2 --tasks 300 --repetitions 1", tasks + " shape us_per_task"},
		{"graph --shape stencil --zero --workers 2 --tasks 300 --repetitions 1", tasks + " shape us_per_task"},
		{"graph --shape chain --zero --workers 2 --tasks 300 --repetitions 1", tasks + " shape us_per_task"},
		{"graph --shape random --workers 2 --tasks 300 --repetitions 1", tasks + " shape us_per_task"},
		{"graph --shape fanout --workers 2 --tasks 300 --repetitions 1", tasks + " shape us_per_task"},
		{"latency --samples 200", "submit_result_us dependent_start_us"},
		{"taskbench --workers 1 --iterations 2 --steps 50 --repetitions 1", "rows metg50_us steps tasks submitted_us notified_us between_us version"},
		{"hop --sizes 16B,64KiB --samples 2", "rows memory version"},
		{"data --bytes 4MiB --repetitions 1", "bytes write_gb_per_s read_gb_per_s client_peak_bytes worker_peak_bytes"},
		{"spill --total 32MiB --slab 16MiB --chunk 2MiB", "bench rows total_bytes slab_bytes chunk_bytes worker_rss_bytes worker_peak_bytes version"},
		{"idle --protocol grpc --for 1s", "worker_cores most_cores scheduler_cores version"},
		{"broadcast --workers 3 --sizes 64KiB --repetitions 1", "rows"},
		{"transfer --protocol borrow --sizes 64KiB --samples 3", "rows"},
		{"transfer --protocol grpc --sizes 64KiB --samples 3", "rows"},
		{"transfer --protocol ucx --sizes 64KiB --samples 3", "rows"},
		{"transfer --hosts host-0,host-1 --sizes 64KiB,1MiB --objects 1,50 --samples 2", "rows source reader raw memory"},
		{"alltoall --protocol ucx --workers 2 --sizes 64KiB --repetitions 1", "rows"},
		{"data --client python --bytes 4MiB --repetitions 1 --python " + python(), "bytes write_gb_per_s read_gb_per_s client_peak_bytes worker_peak_bytes"},
	} {
		t.Run(tc.args, func(t *testing.T) {
			t.Parallel()
			out := shared.succeed(t, append(append([]string{"bench"}, strings.Fields(tc.args)...), "--json")...)
			for _, f := range strings.Fields(tc.fields) {
				if out[f] == nil {
					t.Errorf("no %s in %v", f, out)
				}
			}
			for _, f := range []string{"submit_result_us", "dependent_start_us"} {
				if out[f] != nil && (dig(out, f, "p50") == nil || dig(out, f, "p99") == nil) {
					t.Errorf("%s: %v", f, out[f])
				}
			}
		})
	}
}

// A benchmark ends if its workers cannot start; it does not wait for them.
func TestBenchEndsWithItsWorkers(t *testing.T) {
	_, err := bench.StartCluster(soon(t), bench.ClusterConfig{
		Executable: binary, Workers: 1, Arguments: []string{"--protocol", "ucx", "--ucx-library", "/nonexistent/libucp.so.0"},
	})
	if err == nil || !strings.Contains(err.Error(), "the workers ended") || !strings.Contains(err.Error(), "/nonexistent/libucp.so.0") {
		t.Errorf("got %v", err)
	}
}

// TestWorkerStaysWithinItsBounds: bytes that go through a worker's disk take no memory except the
// slab and buffers. The worker's own memory is below 128 MiB, and the peak is below the sum of the
// slab and that.
func TestWorkerStaysWithinItsBounds(t *testing.T) {
	const slab, own = 32 << 20, 128 << 20
	out := shared.succeed(t, "bench", "spill", "--total", "256MiB", "--slab", "32MiB", "--chunk", "4MiB", "--json")
	if rss, _ := out["worker_rss_bytes"].(float64); rss < 1<<20 || rss > own {
		t.Errorf("%.0f MiB without the slab", rss/(1<<20))
	}
	if peak, _ := out["worker_peak_bytes"].(float64); peak < slab || peak > slab+own {
		t.Errorf("a peak of %.0f MiB with a slab of %d", peak/(1<<20), slab>>20)
	}
}

// TestDataStaysWithinTwiceTheObject: when bytes travel by gRPC, neither client nor worker ever
// holds more than twice the size of the object, including code and buffers. (A mapping of the
// worker's memory would count for both.) The worker's peak includes the pages of its slab, so it is
// at least the object's size. The object before this one may also be there until the worker learns
// that it was released.
func TestDataStaysWithinTwiceTheObject(t *testing.T) {
	// The size is large compared to code and buffers, which depend on how busy the machine is.
	const size = 192 << 20
	for _, client := range []string{"go", "python"} {
		t.Run(client, func(t *testing.T) {
			out := shared.succeed(t, "bench", "data", "--protocol", "grpc", "--client", client, "--python", python(), "--bytes", "192MiB", "--repetitions", "1", "--json")
			for _, name := range []string{"client_write_peak_bytes", "client_read_peak_bytes", "worker_peak_bytes"} {
				most := 2.0 * size
				if name == "worker_peak_bytes" {
					most += size
				}
				if peak, _ := out[name].(float64); peak < size || peak > most {
					t.Errorf("%s is %.0f MiB for an object of %d MiB", name, peak/(1<<20), size>>20)
				}
			}
		})
	}
}
