package e2e

import (
	"bytes"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	millrace "github.com/millrace/millrace/clients/go"
)

// The examples for GPUs run on host workers, too; they check their results, and end with "ok".
func TestExamplesEndWithOK(t *testing.T) {
	kmeans := filepath.Join(t.TempDir(), "kmeans")
	if out, err := exec.Command("go", "build", "-o", kmeans, "github.com/millrace/millrace/examples/kmeans").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	script := func(name string) string { return filepath.Join("..", "..", "examples", name) }
	for name, command := range map[string][]string{
		"arrays": {python(), script("arrays.py"), "--repetitions", "1", "--progress", "--json", filepath.Join(t.TempDir(), "arrays.json")},
		"svd":    {python(), script("svd.py"), "--repetitions", "1", "--rows", "4000,2000", "--gpus", "1,2"},
		"kmeans": {kmeans, "-points", "8000", "-clusters", "8", "-dimensions", "4", "-iterations", "4", "-chunks", "3", "-repetitions", "1"},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.CommandContext(soon(t), command[0], command[1:]...)
			cmd.Env = environment(millrace.EnvSchedulerFile + "=" + shared.file)
			var out, progress bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &progress
			if err := cmd.Run(); err != nil {
				t.Fatalf("%v\n%s%s", err, out.String(), progress.String())
			}
			lines := strings.Split(strings.TrimSpace(out.String()), "\n")
			if last := lines[len(lines)-1]; !strings.HasPrefix(last, "ok") {
				t.Errorf("the last line is %q in\n%s", last, out.String())
			}
		})
	}
}
