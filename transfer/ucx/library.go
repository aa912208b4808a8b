package ucx

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/internal/sharedlib"
)

// libraryName is the name that the dynamic linker searches for in the system.
const libraryName = "libucp.so.0"

// find searches for libucp.so.0 near a program: in a ucx folder, in the wheels libucx-cu12 and
// libucx-cu13 of the Python environment that the program is part of, and in the tools of a
// checkout. If there is none, it returns libraryName.
func find(program string) string {
	dir := filepath.Dir(program)
	for _, pattern := range []string{
		filepath.Join(dir, "ucx", "lib", libraryName),
		filepath.Join(dir, "libucx", "lib", libraryName),
		filepath.Join(dir, "..", "lib", "python3*", "site-packages", "libucx", "lib", libraryName),
		// From the bin folder of a wheel: site-packages/millrace/bin.
		filepath.Join(dir, "..", "..", "libucx", "lib", libraryName),
		filepath.Join(dir, "..", ".tools", "ucx", "lib", libraryName),
	} {
		// Glob fails only if dir contains brackets; then nothing is found.
		found, _ := filepath.Glob(pattern)
		slices.Sort(found)
		if len(found) > 0 {
			return filepath.Clean(found[len(found)-1])
		}
	}
	return libraryName
}

// Locate returns the libucp.so.0 that would be loaded, without loading it: the given one, else the
// one that Find returns. Its errors match ErrUnavailable.
func Locate(library string) (string, error) {
	if !built {
		return "", fmt.Errorf("%w: this program was built without cgo", ErrUnavailable)
	}
	library = Config{Library: library}.library()
	if strings.ContainsRune(library, filepath.Separator) {
		return library, checkFiles(library)
	}
	// These are the folders that the dynamic linker usually searches. Its cache is not read,
	// because the format of the cache is not stable.
	folders := append(filepath.SplitList(os.Getenv("LD_LIBRARY_PATH")), "/usr/local/lib", "/usr/lib64", "/lib64", "/usr/lib", "/lib", "/opt/ucx/lib")
	multiarch, _ := filepath.Glob("/usr/lib/*-linux-gnu") // as in find
	for _, folder := range append(folders, multiarch...) {
		if path := filepath.Join(folder, library); folder != "" {
			if _, err := os.Stat(path); err == nil {
				return path, checkFiles(path)
			}
		}
	}
	return "", fmt.Errorf("%w: no %s beside this program or in the system's folders", ErrUnavailable, library)
}

// Modules returns the names of UCX's transport modules that lie beside the library which Locate
// returns: "cma", "cuda", "ib". It is empty if the library is not found, or has its modules
// elsewhere.
func Modules(library string) (names []string) {
	path, err := Locate(library)
	if err != nil {
		return nil
	}
	const prefix = "libuct_"
	found, _ := filepath.Glob(filepath.Join(filepath.Dir(path), "ucx", prefix+"*.so*")) // as in find
	for _, f := range found {
		name := strings.TrimPrefix(filepath.Base(f), prefix)
		names = append(names, name[:strings.IndexAny(name, ".-")])
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func (c Config) library() string {
	if c.Library != "" {
		return c.Library
	}
	program, err := os.Executable()
	if err != nil {
		return libraryName
	}
	if real, err := filepath.EvalSymlinks(program); err == nil {
		program = real
	}
	return find(program)
}

// checkFiles checks that the libraries to be mapped are complete: the dynamic linker dies by SIGBUS
// on a truncated file. A name without a folder means the system's library; its files are not
// checked.
func checkFiles(library string) error {
	if !strings.ContainsRune(library, filepath.Separator) {
		return nil
	}
	files := []string{library}
	for _, pattern := range []string{"libu*.so.0", filepath.Join("ucx", "libu*.so.0")} {
		found, _ := filepath.Glob(filepath.Join(filepath.Dir(library), pattern)) // as in find
		files = append(files, found...)
	}
	for _, f := range files {
		if err := sharedlib.Check(f); err != nil {
			return fmt.Errorf("%w: %s: %w; install the wheel libucx-cu13==1.19.0 anew, or name another libucp.so.0", ErrUnavailable, f, err)
		}
	}
	return nil
}

// spareDescriptors is how many descriptors UCX opens at start, with some more for the connections
// that follow.
const spareDescriptors = 64

// checkDescriptors checks that UCX will not run out of descriptors while it starts: UCX would abort
// the process.
func checkDescriptors() error {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("%w: the limit of open files: %w", ErrUnavailable, err)
	}
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return fmt.Errorf("%w: count the open files: %w", ErrUnavailable, err)
	}
	if uint64(len(open))+spareDescriptors > limit.Cur {
		return fmt.Errorf("%w: %d files are open and %d may be, which leaves too few for ucx; raise ulimit -n", ErrUnavailable, len(open), limit.Cur)
	}
	return nil
}
