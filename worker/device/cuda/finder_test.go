package cuda

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// pythonOf creates an interpreter with one package folder, and a library of that name in the
// folder.
func pythonOf(t *testing.T, name, library string) (python, file string) {
	t.Helper()
	dir := t.TempDir()
	site := filepath.Join(dir, "site packages")
	file = filepath.Join(site, "nvidia", "cu13", "lib", library)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	python = filepath.Join(dir, name)
	if err := os.WriteFile(python, []byte("#!/bin/sh\necho '"+site+"'\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return python, file
}

// TestLibrariesAreTakenFromThePythonOfTasksFirst checks that a library of the Python that runs
// tasks comes before that of the system's Python, which is searched, too.
func TestLibrariesAreTakenFromThePythonOfTasksFirst(t *testing.T) {
	own, first := pythonOf(t, "python", "libcublas.so.13")
	system, second := pythonOf(t, "python3", "libcublas.so.13")
	_, other := pythonOf(t, "python3", "libnvrtc.so.13")
	t.Setenv("PATH", filepath.Dir(system))
	if err := os.Rename(other, filepath.Join(filepath.Dir(second), "libnvrtc.so.13")); err != nil {
		t.Fatal(err)
	}
	f := &finder{python: own}
	got := f.candidates("cublas", []string{"13", "12"})
	if at := slices.Index(got, first); at != 0 || slices.Index(got, second) <= at {
		t.Errorf("%s should come before %s in %q", first, second, got)
	}
	if got := f.candidates("nvrtc", []string{"13"}); got[0] != filepath.Join(filepath.Dir(second), "libnvrtc.so.13") {
		t.Errorf("nvrtc is looked for in %q", got)
	}
	f = &finder{python: filepath.Join(t.TempDir(), "missing")}
	if got := f.candidates("cublas", []string{"13"}); got[0] != second {
		t.Errorf("without the Python of tasks: %q", got)
	}
}
