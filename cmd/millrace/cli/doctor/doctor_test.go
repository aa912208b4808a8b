package doctor_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/millrace/millrace/cmd/millrace/cli/doctor"
)

func find(t *testing.T, c doctor.Config, check string) doctor.Finding {
	t.Helper()
	for _, f := range doctor.Run(context.Background(), c) {
		if f.Found == "" {
			t.Errorf("%s found nothing to say", f.Check)
		}
		if f.State != doctor.OK && f.Remedy == "" && f.Check == check {
			t.Errorf("%s is %s without a remedy: %s", f.Check, f.State, f.Found)
		}
		if f.Check == check {
			return f
		}
	}
	t.Fatalf("no check %s", check)
	return doctor.Finding{}
}

func TestWithoutUCX(t *testing.T) {
	broken := filepath.Join(t.TempDir(), "libucp.so.0")
	if err := os.WriteFile(broken, []byte("not a library"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, library := range []string{broken, "/nowhere/libucp.so.0"} {
		f := find(t, doctor.Config{Library: library}, "ucx")
		if f.State != doctor.Warn || !strings.Contains(f.Remedy, "pip install libucx-cu13==1.19.0") || !strings.Contains(f.Found, library) {
			t.Errorf("%s: %+v", library, f)
		}
	}
}

func TestLocalDirectoryThatCannotBeWritten(t *testing.T) {
	f := find(t, doctor.Config{LocalDirectory: "/nowhere"}, "local-directory")
	if f.State != doctor.Fail || !strings.Contains(f.Remedy, "--local-directory") {
		t.Errorf("%+v", f)
	}
	if !doctor.Failed([]doctor.Finding{f}) {
		t.Error("a failure does not count")
	}
}

func TestPythonWithoutMillrace(t *testing.T) {
	f := find(t, doctor.Config{Python: []string{"/nowhere/python"}}, "python")
	if f.State != doctor.Warn || !strings.Contains(f.Remedy, "pip install millrace") {
		t.Errorf("%+v", f)
	}
}

func TestWithoutALibraryOfLinearAlgebra(t *testing.T) {
	if f := find(t, doctor.Config{BLASLibrary: "none"}, "linear-algebra"); f.State != doctor.OK || !strings.Contains(f.Found, "pure Go") {
		t.Errorf("%+v", f)
	}
	// It is there as little as a library that this program cannot load.
	if f := find(t, doctor.Config{BLASLibrary: "/nowhere/libopenblas.so.0"}, "linear-algebra"); f.State != doctor.Fail || f.Remedy == "" {
		t.Errorf("%+v", f)
	}
}
