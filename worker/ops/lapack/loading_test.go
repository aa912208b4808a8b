//go:build cgo

package lapack

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/millrace/millrace/internal/leaktest"
)

// A Python may take long to say its packages: a worker that cannot start does not wait for it.
func TestStopEndsTheSearchWithItsPython(t *testing.T) {
	dir := t.TempDir()
	python := place(t, dir, "bin", "python")
	asked := filepath.Join(dir, "asked")
	if err := syscall.Mkfifo(asked, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(python, []byte("#!/bin/sh\necho now > "+asked+"\nexec cat "+asked+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	l := Finder{Python: python, program: filepath.Join(dir, "millrace")}.Start(t.Context())
	if _, err := os.ReadFile(asked); err != nil { // returns when the Python runs
		t.Fatal(err)
	}
	l.Stop()
	if library, err := l.Library(); library != nil || !errors.Is(err, errStopped) {
		t.Errorf("a stopped search: %v, %v", library, err)
	}
	if err := leaktest.Find(); err != nil {
		t.Error(err)
	}
}
