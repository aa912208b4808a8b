package ops

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/millrace/millrace/worker/ops/lapack"
)

// testLibrary is a library, and the name of tests that use it.
type testLibrary struct {
	name    string
	library *lapack.Library
}

// linalgLibraries loads the libraries that tests use: NumPy's own copy of OpenBLAS, that of the
// wheel scipy-openblas64, and those that MILLRACE_BLAS names, which is a list of paths. Tests of
// full size also use the system's library and MKL, if they are installed. The list is empty in a
// program without cgo, which can load none.
//
// MKL comes last: it makes its routines known to all libraries that are loaded after it.
var linalgLibraries = sync.OnceValues(func() (all []testLibrary, err error) {
	add := func(name, path string) error {
		l, err := lapack.Load(path)
		if err == nil {
			all = append(all, testLibrary{name, l})
		}
		return err
	}
	packages := "../../.venv/lib/python3*/site-packages"
	for _, place := range []struct{ name, pattern string }{
		{"numpy", packages + "/numpy.libs/libscipy_openblas64_*.so"},
		{"wheel", packages + "/scipy_openblas64/lib/libscipy_openblas64_.so"},
	} {
		files, err := filepath.Glob(place.pattern)
		if err != nil {
			return nil, err
		}
		for _, file := range files {
			if err := add(place.name, file); err != nil {
				return nil, err
			}
		}
	}
	for i, file := range filepath.SplitList(os.Getenv("MILLRACE_BLAS")) {
		if err := add(fmt.Sprint("named", i), file); err != nil {
			return nil, err
		}
	}
	if !testing.Short() {
		_ = add("system", "libopenblas.so.0") // it need not be installed
		if files, _ := filepath.Glob("../../.venv/lib/libmkl_rt.so.*"); len(files) > 0 {
			if err := add("mkl", files[0]); err != nil {
				return nil, err
			}
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("no library: run make build, or name one in MILLRACE_BLAS")
	}
	return all, nil
})

// eachLinalg runs a test in pure Go, and with each library on two processors.
func eachLinalg(t *testing.T, f func(t *testing.T, env Env)) {
	t.Helper()
	t.Run("go", func(t *testing.T) { f(t, Env{}) })
	for _, l := range linalgAll(t) {
		t.Run(l.name, func(t *testing.T) { f(t, Env{Linalg: l.library, Cores: func() int { return 2 }}) })
	}
}

// linalgFor returns one library, nil without cgo.
func linalgFor(tb testing.TB) *lapack.Library {
	tb.Helper()
	if all := linalgAll(tb); len(all) > 0 {
		return all[0].library
	}
	return nil
}

func linalgAll(tb testing.TB) []testLibrary {
	tb.Helper()
	if !cgo {
		return nil
	}
	all, err := linalgLibraries()
	if err != nil {
		tb.Fatal(err)
	}
	return all
}
