package doctor

import (
	"context"
	"errors"
	"fmt"
	"runtime"

	"github.com/millrace/millrace/worker/ops/lapack"
)

// linalg checks the library of BLAS and LAPACK that workers would load.
func (c Config) linalg(ctx context.Context) Finding {
	f := Finding{Check: "linear-algebra", State: OK}
	library, err := lapack.Finder{Library: c.BLASLibrary, Python: firstOf(c.Python)}.Find(ctx)
	var missing *lapack.MissingError
	switch {
	case errors.As(err, &missing) && c.BLASLibrary != "":
		f.State, f.Found, f.Remedy = Fail, missing.Cause, missing.Remedy
	case errors.As(err, &missing):
		f.State, f.Found, f.Remedy = Warn, "pure Go, which is many times slower than a library of BLAS and LAPACK: "+missing.Cause, missing.Remedy
	case err != nil:
		f.State, f.Found = Fail, err.Error()
	case library == nil:
		f.Found = "pure Go, as --blas-library none says"
	default:
		f.Found = fmt.Sprintf("%s, up to %d threads for all workers: %s", library, runtime.NumCPU(), library.File)
	}
	return f
}
