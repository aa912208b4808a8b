package ucx

import (
	"os"
	"path/filepath"
	"slices"
)

// libraryName is the system's: the dynamic linker searches for it.
const libraryName = "libucp.so.0"

// Find looks for libucp.so.0 in what may lie beside a program: a ucx folder, the
// wheels libucx-cu12 and libucx-cu13 in the Python environment that the program
// is part of, and the tools of a checkout. Without any it returns the system's
// name for it.
func Find(program string) string {
	dir := filepath.Dir(program)
	for _, pattern := range []string{
		filepath.Join(dir, "ucx", "lib", libraryName),
		filepath.Join(dir, "libucx", "lib", libraryName),
		filepath.Join(dir, "..", "lib", "python3*", "site-packages", "libucx", "lib", libraryName),
		// A wheel's own bin folder: site-packages/millrace/bin.
		filepath.Join(dir, "..", "..", "libucx", "lib", libraryName),
		filepath.Join(dir, "..", ".tools", "ucx", "lib", libraryName),
	} {
		// The pattern is well-formed unless dir has brackets; then nothing is found.
		found, _ := filepath.Glob(pattern)
		slices.Sort(found)
		if len(found) > 0 {
			return filepath.Clean(found[len(found)-1])
		}
	}
	return libraryName
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
	return Find(program)
}
