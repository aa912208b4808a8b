package ucx

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestLocateSaysWhichLibraryAndWhyNot(t *testing.T) {
	if _, err := Locate("/nowhere/libucp.so.0"); !errors.Is(err, ErrUnavailable) {
		t.Errorf("a library that is not there: %v", err)
	}
	if !built {
		return
	}
	dir := t.TempDir()
	t.Setenv("LD_LIBRARY_PATH", dir)
	broken := filepath.Join(dir, libraryName)
	if err := os.WriteFile(broken, []byte("no library"), 0o600); err != nil {
		t.Fatal(err)
	}
	if path, err := Locate(libraryName); path != broken || !errors.Is(err, ErrUnavailable) {
		t.Errorf("a broken library in LD_LIBRARY_PATH: %q, %v", path, err)
	}
	if wheel := os.Getenv("MILLRACE_UCX_LIBRARY"); wheel != "" {
		if path, err := Locate(wheel); path != wheel || err != nil {
			t.Errorf("the wheel's: %q, %v", path, err)
		}
	}
}
