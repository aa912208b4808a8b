package sharedlib

import (
	"context"
	"os/exec"
	"slices"
	"strings"
	"time"
)

// PackageFolders returns the folders in which Pythons search for packages, those of the first
// Python first. A Python that is empty, or that does not run, has none. Wheels have libraries in
// these folders. The Pythons are ended when ctx is done.
func PackageFolders(ctx context.Context, pythons ...string) []string {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	var folders []string
	for _, python := range pythons {
		if python == "" {
			continue
		}
		// Without the option -S, the list includes the paths of virtual environments and of the
		// user.
		out, err := exec.CommandContext(ctx, python, "-c", "import sys; print('\\n'.join(p for p in sys.path if p))").Output()
		if err != nil {
			continue
		}
		for folder := range strings.Lines(string(out)) {
			if folder = strings.TrimSuffix(folder, "\n"); !slices.Contains(folders, folder) {
				folders = append(folders, folder)
			}
		}
	}
	return folders
}
