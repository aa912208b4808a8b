package sharedlib

import (
	"debug/elf"
	"path/filepath"
	"strings"
)

// OpenWithNeighbours is like Open. If the dynamic linker does not find what the library needs, it
// first opens the needed libraries that lie in the same folder. The libraries of some wheels rely
// on a module of Python that has opened these.
func OpenWithNeighbours(path string) (*Library, error) {
	lib, err := Open(path)
	if err == nil || !strings.ContainsRune(path, filepath.Separator) {
		return lib, err
	}
	openNeeded(path, map[string]bool{path: true})
	return Open(path)
}

// openNeeded opens what a library needs and has in its folder, except the libraries that were seen
// before. An error shows when the library itself is opened.
func openNeeded(path string, seen map[string]bool) {
	f, err := elf.Open(path)
	if err != nil {
		return
	}
	defer f.Close()
	needed, _ := f.ImportedLibraries() // a file without the list needs nothing
	for _, name := range needed {
		neighbour := filepath.Join(filepath.Dir(path), name)
		if seen[neighbour] || Check(neighbour) != nil {
			continue
		}
		seen[neighbour] = true
		openNeeded(neighbour, seen)
		_, _ = Open(neighbour)
	}
}
