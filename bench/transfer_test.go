//go:build cgo && linux

package bench_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/millrace/millrace/bench"
	"github.com/millrace/millrace/memory/cuda/cudatest"
)

// fake is the fake driver of all tests: a process can load only one driver. It is nil until a test
// needs it.
var fake *cudatest.Fake

func TestMain(m *testing.M) {
	code := m.Run()
	if fake != nil {
		if err := fake.Close(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// gpus returns two GPUs of a fake driver that computes nothing, and a program that uses them:
// MILLRACE_BIN, or else one that is built here. Tests that use it must not run in parallel.
func gpus(t *testing.T) (program, library string, environment []string) {
	t.Helper()
	if fake == nil {
		var err error
		if fake, err = cudatest.Start(2, 2<<30); err != nil {
			t.Fatal(err)
		}
	}
	environment = []string{cudatest.Environment + "=" + os.Getenv(cudatest.Environment)}
	// go test repeats tests if a file changed that they looked at, but not if a program changed
	// that they run.
	if program = os.Getenv("MILLRACE_BIN"); program != "" {
		if _, err := os.Stat(program); err != nil {
			t.Fatalf("MILLRACE_BIN: %v", err)
		}
		return program, fake.Library, environment
	}
	program = filepath.Join(t.TempDir(), "millrace")
	build := exec.Command("go", "build", "-o", program, "github.com/millrace/millrace/cmd/millrace")
	build.Env = append(os.Environ(), "CGO_ENABLED=1")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return program, fake.Library, environment
}

// Workers on GPUs fetch objects by CUDA IPC. The result contains the workers' reports of their
// fetches, and a plain copy of the same size, besides the client's times.
func TestBenchesBetweenGPUs(t *testing.T) {
	program, library, environment := gpus(t)
	sizes := []int{256 << 10, 1 << 20}
	t.Run("several", func(t *testing.T) {
		out, err := bench.Transfer(t.Context(), bench.TransferConfig{
			Executable: program, Protocols: []string{"auto"}, GPUs: true, Sizes: []int{1 << 20, 64 << 20}, Objects: []int{1, 3}, Samples: 2, CUDALibrary: library,
			Environment: environment,
		})
		if err != nil {
			t.Fatal(err)
		}
		// Several small objects are not measured.
		if len(out.Rows) != 3 || out.Rows[2].Objects != 3 || out.Rows[2].Bytes != 64<<20 {
			t.Fatalf("%+v", out.Rows)
		}
		if row := out.Rows[2]; row.Path != "ipc" || row.WorkerP50 <= 0 || row.RawP50 <= 0 || row.Arrived != 0 {
			t.Errorf("%+v", row)
		}
	})
	t.Run("transfer", func(t *testing.T) {
		out, err := bench.Transfer(t.Context(), bench.TransferConfig{
			Executable: program, Protocols: []string{"auto"}, GPUs: true, Sizes: sizes, Samples: 3, CUDALibrary: library, Environment: environment,
		})
		if err != nil {
			t.Fatal(err)
		}
		if len(out.Rows) != 2 || out.Memory != "cuda" || out.EmptyUS <= 0 {
			t.Fatalf("%+v", out)
		}
		for _, row := range out.Rows {
			if row.Path != "ipc" || row.Rate <= 0 || row.RawRate <= 0 || row.RestedP50 <= 0 || row.Ratio <= 0 || row.WorkerRatio <= 0 {
				t.Errorf("%+v", row)
			}
			if row.Begun <= 0 || row.Placed < row.Begun || row.Arrived < row.Placed || row.WorkerP99 < row.WorkerP50 {
				t.Errorf("%+v", row)
			}
		}
	})
	t.Run("alltoall", func(t *testing.T) {
		out, err := bench.AllToAll(t.Context(), bench.AllToAllConfig{
			Executable: program, Workers: 2, Protocol: "auto", GPUs: true, Sizes: sizes, Repetitions: 3, CUDALibrary: library, Environment: environment,
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, row := range out.Rows {
			if row.RawRate <= 0 || row.Ratio <= 0 || row.SeenP50 <= 0 || row.SeenP50 > row.P99 || row.SeenRatio <= 0 {
				t.Errorf("%+v", row)
			}
		}
	})
	t.Run("broadcast", func(t *testing.T) {
		out, err := bench.Broadcast(t.Context(), bench.BroadcastConfig{
			Executable: program, Workers: 2, Protocol: "auto", GPUs: true, Sizes: sizes, Repetitions: 3, CUDALibrary: library, Environment: environment,
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, row := range out.Rows {
			if row.SeenP50 <= 0 || row.SeenP50 > row.Max || row.SeenSingle <= 0 || row.RawP50 <= 0 {
				t.Errorf("%+v", row)
			}
		}
	})
	t.Run("data", func(t *testing.T) {
		out, err := bench.Data(t.Context(), bench.DataConfig{
			Executable: program, Bytes: 4 << 20, Repetitions: 2, GPUs: true, CUDALibrary: library, Environment: environment,
		})
		if err != nil {
			t.Fatal(err)
		}
		if out.Memory != "cuda" || out.Path != "shared memory" || out.WriteRate <= 0 || out.ReadRate <= 0 || out.InPlace.Samples == 0 {
			t.Errorf("%+v", out)
		}
	})
}
