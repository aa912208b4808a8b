//go:build cgo && linux

package bench_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/millrace/millrace/bench"
	"github.com/millrace/millrace/memory/cuda/cudatest"
)

// Objects of workers on GPUs go by CUDA IPC, and a bare copy of as many bytes is measured beside them.
func TestTransferBetweenGPUs(t *testing.T) {
	fake, err := cudatest.Start(2, 256<<20)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := fake.Close(); err != nil {
			t.Error(err)
		}
	})
	program := filepath.Join(t.TempDir(), "millrace")
	build := exec.Command("go", "build", "-o", program, "github.com/millrace/millrace/cmd/millrace")
	build.Env = append(os.Environ(), "CGO_ENABLED=1")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	out, err := bench.Transfer(t.Context(), bench.TransferConfig{
		Executable: program, Protocols: []string{"auto"}, GPUs: true, Sizes: []int{256 << 10, 1 << 20}, Samples: 3,
		CUDALibrary: fake.Library, Environment: []string{cudatest.Environment + "=" + os.Getenv(cudatest.Environment)},
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(out.Rows) != 2 || out.Memory != "cuda" {
		t.Fatalf("%+v", out)
	}
	for _, row := range out.Rows {
		if row.Path != "ipc" || row.Rate <= 0 || row.RawRate <= 0 || row.Ratio <= 0 {
			t.Errorf("%+v", row)
		}
	}
}
