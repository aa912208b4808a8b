//go:build cgo

package lapack

import (
	"cmp"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// place creates an empty file, and returns its path.
func place(t *testing.T, parts ...string) string {
	t.Helper()
	file := filepath.Join(parts...)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	return file
}

// compile compiles testdata/blas.c with a definition, and returns the library's path.
func compile(t *testing.T, definition string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "libblas.so")
	if out, err := exec.Command(cmp.Or(os.Getenv("CC"), "cc"), "-shared", "-fPIC", "-D", definition, "-o", file, filepath.Join("testdata", "blas.c"), "-lm").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return file
}

func TestLibrariesAreTriedInTheOrderOfTheirPlaces(t *testing.T) {
	env, dir := t.TempDir(), t.TempDir()
	site := filepath.Join(env, "lib", "python3.12", "site-packages")
	python := place(t, env, "bin", "python")
	if err := os.WriteFile(python, []byte("#!/bin/sh\necho '"+site+"'\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	wheel := func(site string) string {
		return place(t, site, "scipy_openblas64", "lib", "libscipy_openblas64_.so")
	}
	want := append([]string{
		wheel(filepath.Join(dir, "bin")),
		wheel(site),
		place(t, site, "scipy_openblas32", "lib", "libscipy_openblas.so"),
		place(t, env, "lib", "libmkl_rt.so.2"),
		place(t, site, "numpy.libs", "libscipy_openblas64_-32a4b2a6.so"),
		place(t, env, "lib", "libopenblas.so.0"),
	}, systems...)
	place(t, site, "scipy.libs", "libscipy_openblas-6cdc3b4a.so") // not complete
	f := Finder{Python: python, program: filepath.Join(dir, "bin", "millrace")}
	if got := slices.Collect(f.candidates(t.Context())); !slices.Equal(got, want) {
		t.Errorf("candidates\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	f.Library = "/given/libmine.so"
	if got := slices.Collect(f.candidates(t.Context())); !slices.Equal(got, []string{f.Library}) {
		t.Errorf("candidates %q, want the given one", got)
	}
}

// TestPythonIsAskedOnlyIfNothingNearTheProgramServes: the start of Python takes time at the start
// of each worker.
func TestPythonIsAskedOnlyIfNothingNearTheProgramServes(t *testing.T) {
	dir := t.TempDir()
	asked := filepath.Join(dir, "asked")
	python := place(t, dir, "python")
	if err := os.WriteFile(python, []byte("#!/bin/sh\n>'"+asked+"'\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	place(t, dir, wheels[0])
	for range (Finder{Python: python, program: filepath.Join(dir, "millrace")}).candidates(t.Context()) {
		break
	}
	if _, err := os.Stat(asked); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Python was started: %v", err)
	}
}

func TestALibraryThatCannotBeUsedIsRefusedWithItsCause(t *testing.T) {
	text := place(t, t.TempDir(), "libtext.so")
	if err := os.WriteFile(text, []byte("not a library"), 0o644); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(compile(t, "RIGHT"))
	if err != nil {
		t.Fatal(err)
	}
	cut := place(t, t.TempDir(), "libcut.so")
	if err := os.WriteFile(cut, whole[:len(whole)/4], 0o644); err != nil {
		t.Fatal(err)
	}
	alone := place(t, t.TempDir(), "libmkl_rt.so.2")
	if err := os.WriteFile(alone, whole, 0o644); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct{ library, cause string }{
		"missing":               {filepath.Join(t.TempDir(), "libnone.so"), "no such file"},
		"a text":                {text, "not a library"},
		"truncated":             {cut, "cut short"},
		"without LAPACK":        {compile(t, "NO_LAPACK"), "neither dgemm_ nor dgesdd_"},
		"a wrong product":       {compile(t, "WRONG_PRODUCT"), "DGEMM returned a wrong product"},
		"wrong factors":         {compile(t, "WRONG_FACTORS"), "DGESDD returned factors of another matrix"},
		"MKL without parts":     {place(t, t.TempDir(), "libmkl_rt.so.2"), "libmkl_rt.so.2"},
		"unknown to the linker": {"libnothing-of-this-name.so.1", "libnothing-of-this-name.so.1"},
	} {
		l, err := Finder{Library: test.library}.Find(t.Context())
		if l != nil || !isMissing(err) || !strings.Contains(err.Error(), test.cause) || !strings.Contains(err.Error(), test.library) || !strings.Contains(err.Error(), "--blas-library") {
			t.Errorf("%s: %v, %v; want an error with %q, the path and the flag", name, l, err, test.cause)
		}
	}
}

func isMissing(err error) bool {
	var missing *MissingError
	return errors.As(err, &missing)
}

func TestNoneMeansNoLibrary(t *testing.T) {
	if l, err := (Finder{Library: None}).Find(t.Context()); l != nil || err != nil {
		t.Errorf("%v, %v; want neither a library nor an error", l, err)
	}
}

func TestEachRefusedCandidateIsNamed(t *testing.T) {
	dir := t.TempDir()
	first, second := place(t, dir, wheels[0]), place(t, dir, wheels[1])
	defer func(all []string) { systems = all }(systems)
	systems = nil
	_, err := Finder{program: filepath.Join(dir, "millrace")}.Find(t.Context())
	if !isMissing(err) || !strings.Contains(err.Error(), first) || !strings.Contains(err.Error(), second) || !strings.Contains(err.Error(), "pip install") {
		t.Errorf("%v; want both candidates and a remedy", err)
	}
}

// TestAnUnknownLibraryIsUsedOnRequestOnly: the reference library works, and is several times slower
// than pure Go. Distributions install it as liblapack.so.3.
func TestAnUnknownLibraryIsUsedOnRequestOnly(t *testing.T) {
	library := compile(t, "RIGHT")
	l, err := Finder{Library: library}.Find(t.Context())
	if err != nil || l.File != library || l.String() != "LAPACK, LP64" {
		t.Errorf("%v, %v; want the library that was asked for", l, err)
	}
	defer func(all []string) { systems = all }(systems)
	systems = []string{library}
	if l, err := (Finder{program: filepath.Join(t.TempDir(), "millrace")}).Find(t.Context()); l != nil || !isMissing(err) || !strings.Contains(err.Error(), "reference library") {
		t.Errorf("%v, %v; want a refusal", l, err)
	}
}

func TestNumPysCopyIsDescribed(t *testing.T) {
	l := numpys(t)
	if s := l.String(); !strings.HasPrefix(s, "OpenBLAS 0.") || !strings.HasSuffix(s, ", ILP64") {
		t.Errorf("it is described as %q", s)
	}
}

// TestIntegersThatDoNotFitAreRefused: an integer of 2^32 would arrive as 0 in a library with
// integers of 32 bits.
func TestIntegersThatDoNotFitAreRefused(t *testing.T) {
	l := *numpys(t)
	l.wide = false
	_, err := l.Call("dgemm", Letter('N'), Letter('N'), Int(1<<32), Int(1), Int(0), Float64(1), Array([]float64{1}), Int(1<<32),
		Array([]float64{1}), Int(1), Float64(0), Array([]float64{1}), Int(1<<32))
	if err == nil || !strings.Contains(err.Error(), "argument 3 of DGEMM is 4294967296") || !strings.Contains(err.Error(), "ILP64") {
		t.Errorf("%v; want a refusal of argument 3", err)
	}
}
