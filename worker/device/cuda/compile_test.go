//go:build cgo && linux

package cuda

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	gpu "github.com/millrace/millrace/memory/cuda"
)

var writeCUBINs = flag.Bool("cubins", false, "write the built-in kernels' CUBINs and their manifest")

// nvrtcFolder is the folder that tools/fetch-nvrtc fills, unless MILLRACE_NVRTC names another.
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

// manifest records how the CUBINs beside it were compiled.
type manifest struct {
	// SourceSHA256 is the hash of builtinSource without its comments. Flags are the flags of the
	// compilation, NVRTC is the compiler's version.
	SourceSHA256 string
	Flags        []string
	NVRTC        string
	// CUBINs are the hashes of the files, by architecture.
	CUBINs map[string]string
}

func builtinManifest() (manifest, error) {
	var m manifest
	err := json.Unmarshal([]byte(kernelText("manifest.json")), &m)
	return m, err
}

func sha256Hex(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

var cComment = regexp.MustCompile(`//[^\n]*|(?s:/\*.*?\*/)`)

// withoutComments returns a source without comments, blank lines and the spaces at the ends of
// lines: a change of those does not change the compiled code. The source must not have comment
// markers in strings.
func withoutComments(source string) string {
	var kept []string
	for line := range strings.SplitSeq(cComment.ReplaceAllString(source, ""), "\n") {
		if line = strings.TrimRight(line, " \t"); line != "" {
			kept = append(kept, line)
		}
	}
	return strings.Join(kept, "\n")
}

func TestCommentsDoNotMakeBuiltinKernelsStale(t *testing.T) {
	const plain = "int a;\nint b = 1 / 2;"
	if got := withoutComments("// Two\n\nint a;  // one\n/* the\nother */\nint b = 1 / 2;\n"); got != plain {
		t.Errorf("%q, want %q", got, plain)
	}
	if withoutComments("int a;") == withoutComments("int  b;") {
		t.Error("other code is taken for the same")
	}
}

// The manifest has the hash of the source from which the CUBINs were compiled, and so this source
// compiles. Short tests do not compile it again, which takes half a minute.
func TestBuiltinKernelsAreThoseOfTheirSource(t *testing.T) {
	c := nvrtc(t)
	source := builtinSource()
	want := manifest{SourceSHA256: sha256Hex([]byte(withoutComments(source))), Flags: compileFlags, NVRTC: c.version, CUBINs: map[string]string{}}
	cubins := map[string][]byte{}
	for _, arch := range append([]string{builtinPTX}, builtinArchs...) {
		want.CUBINs[arch] = ""
		if testing.Short() && !*writeCUBINs {
			continue
		}
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
			if err := os.WriteFile(filepath.Join("kernels", codeFile(arch)), cubin, 0o600); err != nil {
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
		if cubin := []byte(kernelText(codeFile(arch))); sha256Hex(cubin) != sum {
			t.Errorf("%s is not the one that the manifest names: run tools/cubins", codeFile(arch))
		}
	}
}

func codeFile(arch string) string {
	if arch == builtinPTX {
		return "builtin." + arch + ".ptx"
	}
	return "builtin." + arch + ".cubin"
}

// TestEachDeviceHasBuiltinKernelsWithoutACompiler checks the choice of the built-in code. An A10 or
// L4 runs the machine code for an A100. For GPUs newer than all known ones the driver compiles the
// PTX code.
func TestEachDeviceHasBuiltinKernelsWithoutACompiler(t *testing.T) {
	for capability, want := range map[[2]int]string{
		{8, 0}: "builtin.sm_80.cubin", {8, 6}: "builtin.sm_80.cubin", {8, 9}: "builtin.sm_80.cubin", {9, 0}: "builtin.sm_90.cubin",
		{10, 0}: "builtin.sm_100.cubin", {10, 3}: "builtin.sm_100.cubin", {12, 0}: "builtin.compute_80.ptx", {12, 1}: "builtin.compute_80.ptx",
	} {
		if got := builtinFile(capability[0], capability[1]); got != want {
			t.Errorf("%v gets %s, want %s", capability, got, want)
		}
	}
	if fake == nil {
		t.Skip("the driver of this machine has one kind of device")
	}
	before := driver
	defer func() { driver = before }()
	defer fake.Heal()
	for _, capability := range []uint64{86, 120} {
		fake.Capability.Store(capability)
		var err error
		if driver, err = gpu.Load(gpu.Config{Library: fake.Library}); err != nil {
			t.Fatal(err)
		}
		b := open(t, 16<<20, Options{Libraries: []string{t.TempDir()}, Python: "none"})
		if _, err := b.code.builtin("turn_4"); err != nil {
			t.Errorf("compute capability %d, without a compiler: %v", capability, err)
		}
	}
}

// TestGPUTakesThePTXOfDevicesToCome checks that the driver compiles the PTX for the present device
// and finds the kernels of the CUBINs in it.
func TestGPUTakesThePTXOfDevicesToCome(t *testing.T) {
	b := open(t, 16<<20, Options{})
	m, err := b.gpu.Load([]byte(kernelText("builtin." + builtinPTX + ".ptx")))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"fill", "turn_4", "bench_point", "upper_float64"} {
		if _, err := m.Function(name); err != nil {
			t.Error(err)
		}
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
}

func TestErrorsOfTheCompilerNameTheLine(t *testing.T) {
	_, err := nvrtc(t).compile("source", "extern \"C\" __global__ void f(int *p) {\n  *p = ;\n}\n", "sm_90", userFlags)
	var refused *compileError
	if !errors.As(err, &refused) || !strings.Contains(refused.log, "source(2): error") {
		t.Errorf("got %v", err)
	}
}
