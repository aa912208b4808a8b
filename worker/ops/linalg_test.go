package ops

import (
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/millrace/millrace/worker/ops/lapack"
)

// linalgLibrary loads NumPy's own copy of OpenBLAS, or the library that MILLRACE_BLAS names. It is
// nil in a program without cgo, which can load none.
var linalgLibrary = sync.OnceValues(func() (*lapack.Library, error) {
	name := os.Getenv("MILLRACE_BLAS")
	if files, err := filepath.Glob("../../.venv/lib/python3*/site-packages/numpy.libs/libscipy_openblas64_*.so"); name == "" && err == nil && len(files) > 0 {
		name = files[0]
	}
	return lapack.Load(name)
})

// eachLinalg runs a test in pure Go, and with the library on two processors.
func eachLinalg(t *testing.T, f func(t *testing.T, env Env)) {
	t.Helper()
	t.Run("go", func(t *testing.T) { f(t, Env{}) })
	if lib := linalgFor(t); lib != nil {
		t.Run("library", func(t *testing.T) { f(t, Env{Linalg: lib, Cores: func() int { return 2 }}) })
	}
}

func linalgFor(tb testing.TB) *lapack.Library {
	tb.Helper()
	lib, err := linalgLibrary()
	if err != nil && cgo {
		tb.Fatalf("%v: run make build, or name a library in MILLRACE_BLAS", err)
	}
	return lib
}
