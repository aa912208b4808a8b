package lapack

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/millrace/millrace/internal/sharedlib"
)

// mklLayer is a way of threading of MKL, by the number that MKL_Set_Threading_Layer takes. The way
// with TBB is not used: it ignores the number of threads that a call may use. The way with GNU's
// OpenMP is no faster with two threads than with one.
type mklLayer int

const (
	mklIntel      mklLayer = 0
	mklSequential mklLayer = 1
	noMKL         mklLayer = -1 // another library
)

// choose tells MKL. It must come before all other calls.
func (layer mklLayer) choose(lib *sharedlib.Library) {
	if layer != noMKL {
		_, _ = lib.Call("MKL_Set_Threading_Layer", uint64(layer)) // versions without it need no choice
	}
}

// prepareMKL loads the libraries that MKL needs and does not name. Without them the first call
// would end the process. It is called before MKL is loaded.
func prepareMKL(path string) (mklLayer, error) {
	if _, err := sharedlib.OpenGlobal("libm.so.6"); err != nil {
		return noMKL, fmt.Errorf("%s needs libm.so.6: %w", path, err)
	}
	// The file may be a link. MKL searches for its parts in the folder of the true file.
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	}
	folder := filepath.Dir(path)
	has := func(part string) bool { return len(existing([]string{folder}, "libmkl_"+part+".so*")) > 0 }
	for _, part := range []string{"core", "intel_lp64", "intel_ilp64"} {
		if strings.ContainsRune(path, filepath.Separator) && !has(part) {
			return noMKL, fmt.Errorf("%s: its part libmkl_%s.so is missing in that folder; install MKL anew", path, part)
		}
	}
	if has("intel_thread") {
		for _, openmp := range []string{filepath.Join(folder, "libiomp5.so"), "libiomp5.so"} {
			if _, err := sharedlib.OpenGlobal(openmp); err == nil {
				return mklIntel, nil
			}
		}
	}
	if !has("sequential") {
		return noMKL, fmt.Errorf("%s: it has neither its part libmkl_sequential.so, nor libmkl_intel_thread.so with libiomp5.so; install MKL anew", path)
	}
	return mklSequential, nil
}

// isMKL reports whether the path is that of MKL's library that loads the others.
func isMKL(path string) bool { return strings.HasPrefix(filepath.Base(path), "libmkl_rt.so") }
