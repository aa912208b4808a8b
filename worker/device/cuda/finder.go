package cuda

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/millrace/millrace/internal/sharedlib"
)

// finder searches for NVIDIA's libraries: in the places that the options name, in the packages of a
// Python, in the toolkit's usual folders, and with the dynamic linker.
type finder struct {
	given  []string
	python string
	once   sync.Once
	sites  []string // package folders, first those of the Python that runs tasks
}

// open loads the first library of that name that can be loaded and that has the symbol. The
// versions are in order of preference.
func (f *finder) open(name, symbol string, versions ...string) (*library, error) {
	var refused []string
	for _, path := range f.candidates(name, versions) {
		lib, err := sharedlib.Open(path)
		if err != nil {
			refused = append(refused, err.Error())
			continue
		}
		if lib.Symbol(symbol) == 0 {
			refused = append(refused, fmt.Sprintf("%s has no %s", path, symbol))
			continue
		}
		return &library{lib, lib.FileOf(symbol)}, nil
	}
	return nil, fmt.Errorf("lib%s.so %w: install the wheels of CUDA into the Python that runs tasks, or the toolkit, or add its folder to LD_LIBRARY_PATH; tried %s",
		name, errNoLibrary, strings.Join(refused, "; "))
}

func (f *finder) candidates(name string, versions []string) []string {
	var folders []string
	var out []string
	for _, given := range f.given {
		if strings.HasPrefix(filepath.Base(given), "lib"+name+".so") {
			out = append(out, given)
		}
		folders = append(folders, given)
	}
	// The system's Python is asked, too: a virtual environment may lack NVIDIA's packages.
	f.once.Do(func() { f.sites = sharedlib.PackageFolders(context.Background(), f.python, "python3", "python") })
	for _, site := range f.sites {
		folders = append(folders, filepath.Join(site, "nvidia", "*", "lib"))
	}
	folders = append(folders, "/usr/local/cuda/lib64", "/usr/local/cuda-*/lib64", "/usr/local/cuda*/targets/*/lib")
	for _, folder := range folders {
		for _, v := range versions {
			found, err := filepath.Glob(filepath.Join(folder, "lib"+name+".so."+v))
			if err == nil {
				out = append(out, found...)
			}
		}
	}
	for _, v := range versions {
		out = append(out, "lib"+name+".so."+v)
	}
	return slices.Compact(out)
}
