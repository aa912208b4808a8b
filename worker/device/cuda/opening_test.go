//go:build cgo && linux

package cuda

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/sharedlib"
)

// builtLibrary compiles a library. Those below count the handles that are open; one of their
// functions may fail.
func builtLibrary(t *testing.T, name, code string) (file string) {
	t.Helper()
	dir := t.TempDir()
	source := filepath.Join(dir, "library.c")
	if err := os.WriteFile(source, []byte(code), 0o600); err != nil {
		t.Fatal(err)
	}
	compiler := os.Getenv("CC")
	if compiler == "" {
		compiler = "cc"
	}
	file = filepath.Join(dir, "lib"+name+".so.1")
	if out, err := exec.Command(compiler, "-shared", "-fPIC", "-o", file, source).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return file
}

// opened returns how many objects of the library are open.
func opened(t *testing.T, file, count string) int32 {
	t.Helper()
	lib, err := sharedlib.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	n, err := lib.Call(count)
	if err != nil {
		t.Fatal(err)
	}
	return int32(n)
}

const fakeBLAS = `#include <stdint.h>
static int open_;
int blas_open(void) { return open_; }
int cublasCreate_v2(uint64_t *h) { *h = 7; open_++; return 0; }
int cublasDestroy_v2(uint64_t h) { if (h != 7) return 1; open_--; return 0; }
int cublasSetStream_v2(uint64_t h, uint64_t s) { (void)s; return FAIL_STREAM; }
int cublasSetWorkspace_v2(uint64_t h, uint64_t at, uint64_t n) { (void)at; (void)n; return FAIL_WORKSPACE; }
`

const fakeSolver = `#include <stdint.h>
static int open_;
int solver_open(void) { return open_; }
int cusolverDnCreate(uint64_t *h) { *h = 8; open_++; return 0; }
int cusolverDnDestroy(uint64_t h) { if (h != 8) return 1; open_--; return 0; }
int cusolverDnCreateParams(uint64_t *p) { if (FAIL_PARAMS) return FAIL_PARAMS; *p = 9; open_++; return 0; }
int cusolverDnDestroyParams(uint64_t p) { if (p != 9) return 1; open_--; return 0; }
int cusolverDnSetStream(uint64_t h, uint64_t s) { (void)s; return FAIL_STREAM; }
`

// TestNothingStaysOpenOfALibraryThatDoesNotStart checks that the handles which were created before
// a failure are destroyed.
func TestNothingStaysOpenOfALibraryThatDoesNotStart(t *testing.T) {
	for _, c := range []struct{ fails, want string }{
		{"", ""},
		{"FAIL_STREAM", "cublasSetStream_v2 answers 3"},
		{"FAIL_WORKSPACE", "cublasSetWorkspace_v2 answers 3"},
	} {
		file := builtLibrary(t, "cublas", defines(c.fails, "FAIL_STREAM", "FAIL_WORKSPACE")+fakeBLAS)
		b := openWith(t, file)
		if _, err := b.getBLAS(); !fails(err, c.want) {
			t.Errorf("%s: %v", c.fails, err)
		}
		want := int32(1)
		if c.fails != "" {
			want = 0
		}
		if n := opened(t, file, "blas_open"); n != want {
			t.Errorf("cuBLAS with %q: %d handles are open", c.fails, n)
		}
	}
	blas := builtLibrary(t, "cublas", defines("", "FAIL_STREAM", "FAIL_WORKSPACE")+fakeBLAS)
	for _, c := range []struct{ fails, want string }{
		{"", ""},
		{"FAIL_PARAMS", "cusolverDnCreateParams answers 3"},
		{"FAIL_STREAM", "cusolverDnSetStream answers 3"},
	} {
		file := builtLibrary(t, "cusolver", defines(c.fails, "FAIL_STREAM", "FAIL_PARAMS")+fakeSolver)
		b := openWith(t, blas, file)
		if _, _, err := b.getSolver(); !fails(err, c.want) {
			t.Errorf("%s: %v", c.fails, err)
		}
		want := int32(2)
		if c.fails != "" {
			want = 0
		}
		if n := opened(t, file, "solver_open"); n != want {
			t.Errorf("cuSOLVER with %q: %d handles are open", c.fails, n)
		}
	}
}

// defines gives the value 3 to one name, 0 to the others.
func defines(fails string, names ...string) string {
	var b strings.Builder
	for _, n := range names {
		value := "0"
		if n == fails {
			value = "3"
		}
		b.WriteString("#define " + n + " " + value + "\n")
	}
	return b.String()
}

// fails reports whether the error has that text; "" stands for no error.
func fails(err error, want string) bool {
	return err == nil && want == "" || err != nil && want != "" && strings.Contains(err.Error(), want)
}

func openWith(t *testing.T, libraries ...string) *bench {
	t.Helper()
	if fake == nil {
		t.Skip("needs the fake driver")
	}
	return open(t, 16<<20, Options{Libraries: libraries, Python: "none"})
}
