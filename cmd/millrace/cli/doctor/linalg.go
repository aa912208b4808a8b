package doctor

import (
	"fmt"
	"runtime"

	"github.com/millrace/millrace/worker/ops/lapack"
)

// linalg checks the library of BLAS and LAPACK that workers would load.
func (c Config) linalg() Finding {
	f := Finding{Check: "linear-algebra", State: OK}
	const slow = "pure Go, which is many times slower than a library of BLAS and LAPACK"
	library, err := lapack.Finder{Library: c.BLASLibrary, Python: firstOf(c.Python)}.Find()
	switch {
	case err != nil && c.BLASLibrary != "":
		f.State, f.Found, f.Remedy = Fail, err.Error(), "name a library that exists, or leave out --blas-library"
	case err != nil:
		f.State, f.Found = Warn, slow+": "+err.Error()
		f.Remedy = "pip install scipy-openblas64 or NumPy for the Python that runs tasks, or name your site's library with --blas-library"
	case library == nil:
		f.State, f.Found, f.Remedy = Warn, slow+" (--blas-library none)", "leave out --blas-library"
	default:
		f.Found = fmt.Sprintf("%s, up to %d threads for all workers: %s", library, runtime.NumCPU(), library.File)
	}
	return f
}
