//go:build cgo && linux

package e2e

import (
	"debug/elf"
	"fmt"
	"regexp"
	"strings"
	"testing"
)

// The program starts on any machine with a sufficiently new C library: drivers, CUDA's libraries
// and UCX are loaded when they are needed.
func TestProgramNeedsTheCLibraryOnly(t *testing.T) {
	program, err := withCUDA()
	if err != nil {
		t.Fatal(err)
	}
	file, err := elf.Open(program)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	libraries, err := file.ImportedLibraries()
	if err != nil {
		t.Fatal(err)
	}
	parts := regexp.MustCompile(`^(libc\.so\.6|libm\.so\.6|libpthread\.so\.0|libdl\.so\.2|libresolv\.so\.2|ld-linux-.*)$`)
	for _, l := range libraries {
		if !parts.MatchString(l) {
			t.Errorf("it needs %s to start", l)
		}
	}
	symbols, err := file.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	var major, minor int
	for _, s := range symbols {
		var a, b int
		if n, _ := fmt.Sscanf(strings.TrimPrefix(s.Version, "GLIBC_"), "%d.%d", &a, &b); n == 2 && (a > major || a == major && b > minor) {
			major, minor = a, b
		}
		if strings.HasPrefix(s.Name, "cu") && s.Section == elf.SHN_UNDEF || strings.HasPrefix(s.Name, "ucp_") {
			t.Errorf("it needs %s to start", s.Name)
		}
	}
	t.Logf("it needs glibc %d.%d, as built here", major, minor)
	if major == 0 {
		t.Error("the version of the C library that it needs is not known")
	}
}
