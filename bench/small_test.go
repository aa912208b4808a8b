//go:build cgo && linux

package bench_test

import (
	"testing"

	"github.com/millrace/millrace/bench"
)

// Chains and stencils of small tasks on GPUs, with inputs that come with the completion
// notification, and inputs that are read from the other GPU. The points check their inputs.
func TestSmallTasksOnGPUs(t *testing.T) {
	program, library, environment := gpus(t)
	hops, err := bench.Hop(t.Context(), bench.HopConfig{
		Executable: program, GPUs: true, CUDALibrary: library, Environment: environment, Sizes: []int{16, 64 << 10, 1 << 20}, Samples: 2,
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(hops.Rows) != 3 || hops.Memory != "cuda" {
		t.Errorf("%+v", hops)
	}
	for _, pattern := range []string{"stencil_1d", "all_to_all", "trivial"} {
		sizes := []int{16, 64 << 10}
		if testing.Short() && pattern != "stencil_1d" {
			sizes = sizes[1:]
		}
		for _, size := range sizes {
			calls := 0
			out, err := bench.TaskBench(t.Context(), bench.TaskBenchConfig{
				Cluster: bench.ClusterConfig{Executable: program, Workers: 2, Environment: environment}, Device: "cuda", CUDALibrary: library,
				Pattern: pattern, Width: 3, Steps: 50, OutputBytes: size, Iterations: 4, Repetitions: 1, Progress: func(int, int) { calls++ },
			})
			if err != nil {
				t.Fatalf("%s of %d bytes: %v", pattern, size, err)
			}
			if len(out.Rows) != 3 || calls != 3 || out.Rows[2].Iterations != 1 || out.Rows[2].Granularity <= 0 || out.Rows[2].Steps > 50 ||
				out.Submitted <= 0 || out.Notified <= 0 {
				t.Errorf("%s of %d bytes, %d calls of Progress: %+v", pattern, size, calls, out)
			}
		}
	}
}
