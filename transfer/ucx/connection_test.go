package ucx

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestConnectionSaysWhichTransportReads(t *testing.T) {
	wheel := version{1, 19, 0}
	for transports, want := range map[string]string{
		"posix/memory cma/memory":                           "cma",
		"sysv/memory posix/memory cma/memory cuda_ipc/cuda": "cuda_ipc",
		"rc_mlx5/mlx5_0:1 tcp/eth0":                         "rc_mlx5",
		"tcp/eth0":                                          "tcp, emulated",
		"posix/memory":                                      "posix, emulated",
		"":                                                  "unknown",
	} {
		l := describe(wheel, strings.Fields(transports), true)
		got := l.Transport
		if l.Emulated {
			got += ", emulated"
		}
		if got != want || (l.Why == "") != (!l.Emulated && l.Transport != "unknown") {
			t.Errorf("%q: %s, why %q", transports, got, l.Why)
		}
	}
	old := describe(version{1, 13, 1}, []string{"cma/memory"}, true)
	if !old.Emulated || !strings.Contains(old.Why, "1.13.1") {
		t.Errorf("an old library: %+v", old)
	}
}

func TestFindLooksBesideTheProgram(t *testing.T) {
	root := t.TempDir()
	program := filepath.Join(root, "bin", "millrace")
	if got := find(program); got != libraryName {
		t.Errorf("with nothing there: %s", got)
	}
	for _, place := range []string{".tools/ucx/lib", "lib/python3.12/site-packages/libucx/lib", "bin/ucx/lib"} {
		dir := filepath.Join(root, place)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		want := filepath.Join(dir, libraryName)
		if err := os.WriteFile(want, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if got := find(program); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}
