//go:build cgo && linux

package cuda

import (
	"encoding/json"
	"errors"
	"flag"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

var writeCUBINs = flag.Bool("cubins", false, "write the built-in kernels' CUBINs and their manifest")

// nvrtcFolder is what tools/fetch-nvrtc fills.
func nvrtcFolder() string {
	if folder := os.Getenv("MILLRACE_NVRTC"); folder != "" {
		return folder
	}
	return "../../../.tools/nvrtc/lib"
}

var testCompiler = sync.OnceValues(func() (*compiler, error) {
	return openCompiler(&finder{given: []string{nvrtcFolder()}, python: "none"})
})

func nvrtc(t *testing.T) *compiler {
	t.Helper()
	c, err := testCompiler()
	if err != nil {
		t.Fatalf("%v; tools/fetch-nvrtc brings it", err)
	}
	return c
}

func TestBuiltinKernelsAreThoseOfTheirSource(t *testing.T) {
	c := nvrtc(t)
	source := builtinSource()
	want := manifest{SourceSHA256: sha256Hex([]byte(source)), Flags: compileFlags, NVRTC: c.version, CUBINs: map[string]string{}}
	cubins := map[string][]byte{}
	for _, arch := range builtinArchs {
		cubin, err := c.compile("builtin.cu", source, arch, compileFlags)
		if err != nil {
			t.Fatalf("%s: %v", arch, err)
		}
		cubins[arch] = cubin
		want.CUBINs[arch] = sha256Hex(cubin)
	}
	if *writeCUBINs {
		text, err := json.MarshalIndent(want, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile("kernels/manifest.json", append(text, '\n'), 0o600); err != nil {
			t.Fatal(err)
		}
		for arch, cubin := range cubins {
			if err := os.WriteFile(filepath.Join("kernels", "builtin."+arch+".cubin"), cubin, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		return
	}
	got, err := builtinManifest()
	if err != nil {
		t.Fatal(err)
	}
	if got.SourceSHA256 != want.SourceSHA256 || !slices.Equal(got.Flags, want.Flags) {
		t.Error("kernels/*.cubin are of another source or other flags: run tools/cubins")
	}
	if !slices.Equal(slices.Sorted(maps.Keys(got.CUBINs)), slices.Sorted(maps.Keys(want.CUBINs))) {
		t.Errorf("CUBINs of %v, want %v", got.CUBINs, builtinArchs)
	}
	for arch, sum := range got.CUBINs {
		if cubin := []byte(kernelText("builtin." + arch + ".cubin")); sha256Hex(cubin) != sum {
			t.Errorf("builtin.%s.cubin is not the one that the manifest names: run tools/cubins", arch)
		}
	}
}

func TestErrorsOfTheCompilerNameTheLine(t *testing.T) {
	_, err := nvrtc(t).compile("source", "extern \"C\" __global__ void f(int *p) {\n  *p = ;\n}\n", "sm_90", userFlags)
	var refused *compileError
	if !errors.As(err, &refused) || !strings.Contains(refused.log, "source(2): error") {
		t.Errorf("got %v", err)
	}
}
