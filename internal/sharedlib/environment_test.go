package sharedlib

import (
	"os"
	"os/exec"
	"testing"
)

// TestOthersSeeTheOriginalEnvironment: what libraries of linear algebra read at their start is not
// passed on to child processes, and replaces nothing that they inherit.
func TestOthersSeeTheOriginalEnvironment(t *testing.T) {
	const child = "MILLRACE_TEST_CHILD"
	if os.Getenv(child) == "" {
		cmd := exec.Command(os.Args[0], "-test.run", "^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), child+"=1", "OPENBLAS_NUM_THREADS=7")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	if n := os.Getenv("OPENBLAS_NUM_THREADS"); n != "7" {
		t.Errorf("OPENBLAS_NUM_THREADS is %q, want 7", n)
	}
	out, err := exec.Command("sh", "-c", "echo $OPENBLAS_NUM_THREADS $MKL_DYNAMIC").Output()
	if err != nil || string(out) != "7\n" {
		t.Errorf("a child process sees %q, %v; want 7", out, err)
	}
}
