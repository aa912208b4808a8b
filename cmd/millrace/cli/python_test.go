package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The reason why an interpreter cannot run tasks is reported before a worker starts.
func TestUnusablePythonsAreRefused(t *testing.T) {
	dir := t.TempDir()
	script := func(name, text string, mode os.FileMode) string {
		name = filepath.Join(dir, name)
		if err := os.WriteFile(name, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return name
	}
	for name, want := range map[string]string{
		filepath.Join(dir, "missing"):         "there is no such program",
		"no-such-program-of-this-name":        "there is no such program",
		script("plain", "#!/bin/sh\n", 0o600): "it may not be executed",
		dir:                                   "it may not be executed",
		"/bin/true":                           "it is not a Python interpreter",
		script("loud", "#!/bin/sh\nexec yes\n", 0o700):                                             "it is not a Python interpreter",
		script("fails", "#!/bin/sh\nexit 3\n", 0o700):                                              "exit status 3",
		script("old", "#!/bin/sh\necho x >&2; echo No module named millrace >&2; exit 1\n", 0o700): "No module named millrace",
	} {
		if err := tryPython(t.Context(), name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
	if err := tryPython(t.Context(), script("fine", "#!/bin/sh\necho '"+pythonMark+" 3.13'\n", 0o700)); err != nil {
		t.Error(err)
	}
}
