//go:build cgo

package sharedlib

import (
	"cmp"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestNeededLibrariesOfTheSameFolderAreFound: a library needs another one, which needs a third one.
// None says where the others are.
func TestNeededLibrariesOfTheSameFolderAreFound(t *testing.T) {
	dir := t.TempDir()
	build := func(name, code string, needs ...string) string {
		source, file := filepath.Join(dir, name+".c"), filepath.Join(dir, "lib"+name+".so")
		if err := os.WriteFile(source, []byte(code), 0o600); err != nil {
			t.Fatal(err)
		}
		arguments := []string{"-shared", "-fPIC", "-Wl,-soname,lib" + name + ".so", "-L" + dir, "-o", file, source}
		for _, n := range needs {
			arguments = append(arguments, "-l"+n)
		}
		if out, err := exec.Command(cmp.Or(os.Getenv("CC"), "cc"), arguments...).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return file
	}
	build("millracethird", "int third(void) { return 3; }")
	build("millracesecond", "int third(void); int second(void) { return third() + 4; }", "millracethird")
	first := build("millracefirst", "int second(void); int first(void) { return second() + 5; }", "millracesecond")
	if _, err := Open(first); err == nil {
		t.Fatal("the dynamic linker finds the libraries by itself")
	}
	l, err := OpenWithNeighbours(first)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := l.Call("first"); n != 12 || err != nil {
		t.Errorf("%d, %v; want 12", n, err)
	}
}
