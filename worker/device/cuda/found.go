package cuda

import (
	"slices"
	"strings"

	"github.com/millrace/millrace/worker/ops"
)

// Found is the result of the search for one of NVIDIA's libraries.
type Found struct {
	// Name is as in libNAME.so; For names the operations that need it.
	Name, For string
	// File is the file that was loaded; Err says why none was.
	File string
	Err  error
}

// FindLibraries searches for the libraries as a worker does: in the given places, in the packages
// of a Python, in the toolkit's folder, and with the dynamic linker. It needs no GPU.
func FindLibraries(python string, given ...string) []Found {
	f := &finder{given: given, python: python}
	list := []Found{{Name: "nvrtc"}, {Name: "cublas"}, {Name: "cusolver"}, {Name: "cufft"}}
	symbols := []string{"nvrtcCompileProgram", "cublasCreate_v2", "cusolverDnCreate", "cufftCreate"}
	versions := [][]string{{"13", "12"}, {"13", "12"}, {"12", "11"}, {"12", "11"}}
	for i := range list {
		list[i].For = strings.Join(needing(list[i].Name), ", ")
		l, err := f.open(list[i].Name, symbols[i], versions[i]...)
		if list[i].Err = err; err == nil {
			list[i].File = l.file
		}
	}
	return list
}

// needing returns the operations that need a library.
func needing(library string) (names []string) {
	registry := ops.NewRegistry(ops.CUDAKernel())
	for _, name := range registry.Names() {
		if op, err := registry.Lookup(name); err == nil && slices.Contains(op.Libraries, library) {
			names = append(names, name)
		}
	}
	return names
}
