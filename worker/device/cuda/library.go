package cuda

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"
	"unsafe"
)

const maxArguments = 32

// errNoLibrary says that one of NVIDIA's libraries was not found.
var errNoLibrary = errors.New("not found")

// library is a library that was loaded at run time. It is never closed: these libraries keep
// threads and state of their own.
type library struct {
	name    string // as in libNAME.so
	file    string
	handle  uint64
	mu      sync.Mutex // guards symbols
	symbols map[string]uint64
}

// call calls a function whose arguments are integers or addresses; memory at an address is pinned
// or not Go's. It returns the library's own status. The error means that the library has no such
// function.
func (l *library) call(function string, arguments ...uint64) (int32, error) {
	l.mu.Lock()
	address, known := l.symbols[function]
	if !known {
		address = findSymbol(l.handle, function)
		l.symbols[function] = address
	}
	l.mu.Unlock()
	if address == 0 {
		return 0, fmt.Errorf("%s has no %s: it is of another version", l.file, function)
	}
	var all [maxArguments]uint64
	copy(all[:], arguments)
	return callFunction(address, &all), nil
}

// addressOf returns the address of a value, which pinner keeps in place.
func addressOf[T any](pinner *runtime.Pinner, p *T) uint64 {
	pinner.Pin(p)
	return uint64(uintptr(unsafe.Pointer(p)))
}

// cString returns the address of a copy of the text that ends with a zero byte.
func cString(pinner *runtime.Pinner, s string) uint64 {
	b := append([]byte(s), 0)
	return addressOf(pinner, &b[0])
}

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
		handle, err := openLibrary(path)
		if err != nil {
			refused = append(refused, err.Error())
			continue
		}
		at := findSymbol(handle, symbol)
		if at == 0 {
			refused = append(refused, fmt.Sprintf("%s has no %s", path, symbol))
			continue
		}
		return &library{name: name, file: fileOf(at), handle: handle, symbols: map[string]uint64{}}, nil
	}
	return nil, fmt.Errorf("lib%s.so %w: install the wheels of CUDA into the Python that runs tasks, or the toolkit, or say where it is; tried %s",
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
	f.once.Do(f.askPython)
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

// askPython finds the package folders: first those of the Python that runs tasks, then those of the
// system's Python, since a virtual environment may lack NVIDIA's packages.
func (f *finder) askPython() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for _, python := range []string{f.python, "python3", "python"} {
		if python == "" {
			continue
		}
		// Without the option -S, the list includes the paths of virtual environments and of the
		// user.
		out, err := exec.CommandContext(ctx, python, "-c", "import sys; print('\\n'.join(p for p in sys.path if p))").Output()
		if err != nil {
			continue
		}
		for site := range strings.Lines(string(out)) {
			if site = strings.TrimSuffix(site, "\n"); !slices.Contains(f.sites, site) {
				f.sites = append(f.sites, site)
			}
		}
	}
}
