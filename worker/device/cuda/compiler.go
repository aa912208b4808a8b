package cuda

import (
	"fmt"
	"path/filepath"
	"runtime"
	"strings"
	"unsafe"

	"github.com/millrace/millrace/internal/sharedlib"
)

// compiler is NVRTC: it compiles CUDA C++ to a CUBIN or PTX for one architecture.
type compiler struct {
	lib     *library
	version string
	// instead, if set, compiles in place of NVRTC: tests compile kernels for the CPU.
	instead func(source string) ([]byte, error)
}

// compileError says that a source does not compile. Its text is the compiler's output, with line
// numbers of the source.
type compileError struct{ log string }

func (e *compileError) Error() string { return e.log }

func openCompiler(f *finder) (*compiler, error) {
	lib, err := f.open("nvrtc", "nvrtcCompileProgram", "13", "12")
	if err != nil {
		return nil, err
	}
	// When it compiles, NVRTC asks the dynamic linker for this library by its name alone, so load
	// it now by its path.
	beside, err := filepath.Glob(filepath.Join(filepath.Dir(lib.file), "libnvrtc-builtins.so.*"))
	if err != nil {
		return nil, err
	}
	for _, file := range beside {
		if _, err := sharedlib.Open(file); err != nil {
			return nil, err
		}
	}
	var pinner runtime.Pinner
	defer pinner.Unpin()
	var major, minor int32
	if err := lib.mustCall("nvrtcVersion", sharedlib.AddressOf(&pinner, &major), sharedlib.AddressOf(&pinner, &minor)); err != nil {
		return nil, fmt.Errorf("%s: %w", lib.file, err)
	}
	return &compiler{lib: lib, version: fmt.Sprintf("%d.%d", major, minor)}, nil
}

// compileFlags are the flags for all kernels but those of users (see userFlags). A product and a
// sum are not fused into one operation, so that each is rounded as on the host.
var compileFlags = []string{"--std=c++17", "--fmad=false", "--device-as-default-execution-space", "-DNDEBUG"}

// compile returns a CUBIN for an sm_ architecture, PTX for a compute_ architecture. name stands for
// the source file in messages.
func (c *compiler) compile(name, source, arch string, flags []string) ([]byte, error) {
	if c.instead != nil {
		return c.instead(source)
	}
	var pinner runtime.Pinner
	defer pinner.Unpin()
	var program uint64
	call := c.lib.mustCall
	if err := call("nvrtcCreateProgram", sharedlib.AddressOf(&pinner, &program), sharedlib.CString(&pinner, source), sharedlib.CString(&pinner, name), 0, 0, 0); err != nil {
		return nil, err
	}
	defer func() { _ = call("nvrtcDestroyProgram", sharedlib.AddressOf(&pinner, &program)) }()
	options := []uint64{sharedlib.CString(&pinner, "--gpu-architecture="+arch)}
	for _, f := range flags {
		options = append(options, sharedlib.CString(&pinner, f))
	}
	if err := call("nvrtcCompileProgram", program, uint64(len(options)), sharedlib.AddressOf(&pinner, &options[0])); err != nil {
		log, logErr := c.take(&pinner, program, "nvrtcGetProgramLog")
		if logErr != nil {
			return nil, err
		}
		return nil, &compileError{strings.TrimSpace(strings.TrimRight(string(log), "\x00"))}
	}
	if strings.HasPrefix(arch, "compute_") {
		return c.take(&pinner, program, "nvrtcGetPTX")
	}
	return c.take(&pinner, program, "nvrtcGetCUBIN")
}

// take returns the output that an NVRTC function writes. It first gets the size from the function
// with the same name and the ending Size.
func (c *compiler) take(pinner *runtime.Pinner, program uint64, function string) ([]byte, error) {
	var size uint64
	if err := c.lib.mustCall(function+"Size", program, sharedlib.AddressOf(pinner, &size)); err != nil {
		return nil, err
	}
	if size == 0 {
		return nil, fmt.Errorf("%s has no output", function)
	}
	out := make([]byte, size)
	pinner.Pin(&out[0])
	return out, c.lib.mustCall(function, program, uint64(uintptr(unsafe.Pointer(&out[0]))))
}
