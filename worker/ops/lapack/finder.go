package lapack

import (
	"context"
	"fmt"
	"iter"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/millrace/millrace/internal/sharedlib"
)

// None as Finder.Library means that no library is used.
const None = "none"

// MissingError says that no library can be used.
type MissingError struct {
	// Cause says why, for each candidate. Remedy says what to do.
	Cause, Remedy string
}

func (e *MissingError) Error() string {
	return "no library of BLAS and LAPACK can be used: " + e.Cause + "; " + e.Remedy
}

// Finder searches for a library.
type Finder struct {
	// Library is the path of the library, or a name that the dynamic linker searches for. None: no
	// library. Empty: the first one of these places is taken that can be used: the wheels
	// scipy-openblas64 and scipy-openblas32 near this program and in the packages of Python; MKL
	// there; OpenBLAS as a part of NumPy there; the system.
	Library string
	// Python is the interpreter that runs tasks. Empty: its packages are not searched.
	Python string
	// program is the path of this program, for tests. Empty: it is found out.
	program string
}

// Find loads the library. It is nil without an error if Library is None. The error is a
// *MissingError, or that of ctx when ctx is done before a library is found.
func (f Finder) Find(ctx context.Context) (*Library, error) {
	if f.Library == None {
		return nil, nil
	}
	if !sharedlib.Built {
		return nil, &MissingError{"this program was built without cgo, or not for Linux", "build it with CGO_ENABLED=1"}
	}
	var refused, absent []string // absent are names that the dynamic linker does not find
	for path := range f.candidates(ctx) {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		l, err := Load(path)
		if err == nil && f.Library == "" && l.maker() == "" {
			err = fmt.Errorf("%s may be the reference library (%s), which is slower than pure Go: name it with --blas-library to use it", path, l.File)
		}
		if err == nil {
			return l, nil
		}
		if missing := fmt.Sprintf("%s: cannot open shared object file: No such file", path); f.Library == "" && strings.HasPrefix(err.Error(), missing) {
			absent = append(absent, path)
			continue
		}
		refused = append(refused, err.Error())
	}
	if len(absent) > 0 {
		refused = append(refused, "the system has none of "+strings.Join(absent, ", "))
	}
	if f.Library != "" {
		return nil, &MissingError{refused[0], `name another with --blas-library, or "none" to compute in pure Go`}
	}
	return nil, &MissingError{strings.Join(refused, "; "), "pip install scipy-openblas64 or NumPy for the Python that runs tasks, or name a library with --blas-library"}
}

// systems are the names by which distributions provide a library, best first. Those of OpenBLAS
// with 64 in the name take integers of 64 bits.
var systems = []string{"libopenblas64_.so.0", "libopenblas64.so.0", "libopenblas.so.0", "libopenblasp.so.0", "liblapack.so.3"}

// candidates returns paths in the order in which they are to be tried. Python is asked only if no
// wheel near this program or the interpreter can be used, because its start takes some 10 ms.
func (f Finder) candidates(ctx context.Context) iter.Seq[string] {
	return func(yield func(string) bool) {
		if f.Library != "" {
			yield(f.Library)
			return
		}
		tried := map[string]bool{}
		for _, search := range []func() []string{f.near, func() []string { return f.inPackages(ctx) }, func() []string { return systems }} {
			for _, path := range search() {
				if !tried[path] && !yield(path) {
					return
				}
				tried[path] = true
			}
		}
	}
}

// wheels are the files of the wheels scipy-openblas64 and scipy-openblas32 in a package folder.
var wheels = []string{
	filepath.Join("scipy_openblas64", "lib", "libscipy_openblas64_.so"),
	filepath.Join("scipy_openblas32", "lib", "libscipy_openblas.so"),
}

// near returns the wheels beside this program, in the Python environment that the program is part
// of, and in that of the Python that runs tasks.
func (f Finder) near() []string {
	program := f.program
	if program == "" {
		// Without the path of the program, that of the interpreter remains.
		program, _ = os.Executable()
		if real, err := filepath.EvalSymlinks(program); err == nil {
			program = real
		}
	}
	dir := filepath.Dir(program)
	folders := []string{
		dir,
		packagesOf(dir),
		filepath.Join(dir, "..", ".."), // from the bin folder of a wheel: site-packages/millrace/bin
	}
	// The interpreter of a virtual environment is a link that leads out of it, and is not followed.
	if python, err := exec.LookPath(f.Python); err == nil {
		folders = append(folders, packagesOf(filepath.Dir(python)))
	}
	return existing(folders, wheels...)
}

// packagesOf returns a pattern for the package folder of the environment with this bin folder.
func packagesOf(bin string) string {
	return filepath.Join(bin, "..", "lib", "python3*", "site-packages")
}

// inPackages returns the libraries in the packages of the Python that runs tasks.
func (f Finder) inPackages(ctx context.Context) []string {
	sites := sharedlib.PackageFolders(ctx, f.Python)
	var libs []string // the lib folders of the environments: MKL's wheel and Conda use them
	for _, site := range sites {
		if base := filepath.Base(site); base == "site-packages" || base == "dist-packages" {
			libs = append(libs, filepath.Dir(filepath.Dir(site)))
		}
	}
	libs = slices.Compact(libs)
	return slices.Concat(
		existing(sites, wheels...),
		existing(libs, "libmkl_rt.so.*"),
		// Names of the wheels of NumPy 1.26 and newer, and of older ones.
		existing(sites, filepath.Join("numpy.libs", "libscipy_openblas64_*.so"), filepath.Join("numpy.libs", "libopenblas64_*.so"), filepath.Join("numpy.libs", "lib*openblas*.so")),
		existing(libs, systems...),
	)
}

// existing returns the files that match patterns below folders: all matches of the first pattern,
// then those of the second, without repetitions.
func existing(folders []string, patterns ...string) (files []string) {
	for _, pattern := range patterns {
		for _, folder := range folders {
			// Glob fails only if the folder's name contains brackets; then nothing is found.
			found, _ := filepath.Glob(filepath.Join(folder, pattern))
			for _, file := range found {
				if file = filepath.Clean(file); !slices.Contains(files, file) {
					files = append(files, file)
				}
			}
		}
	}
	return files
}
