package e2e

import (
	"bytes"
	"errors"
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

// The first version of an executor, with which docs/executor-protocol.md begins, runs tasks. Its
// errors arrive with their reasons.
func TestFirstVersionOfAnExecutorRunsTasks(t *testing.T) {
	stats := filepath.Join(t.TempDir(), "stats")
	if out, err := exec.Command("go", "build", "-o", stats, "github.com/millrace/millrace/examples/executor").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	c := startCluster(t, "--workers", "1", "--memory-limit", "64MiB", "--exec", "stats="+stats)
	client, err := millrace.Dial(soon(t), millrace.WithSchedulerFile(c.file))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.Close(); err != nil {
			t.Error(err)
		}
	})
	submit := func(op millrace.Op, arguments millrace.Arguments) *millrace.Future {
		t.Helper()
		f, err := client.Submit(soon(t), op, arguments)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	mean := millrace.Exec("stats/mean")
	// A small array is in the header of the input, a large one in a frame.
	for _, n := range []int{10, 1_000_000} {
		array := submit(millrace.Native("array.arange"), millrace.Args(0.0, float64(n), 1.0))
		got, err := millrace.Get[float64](soon(t), submit(mean, millrace.Args(array)))
		if want := float64(n-1) / 2; err != nil || got != want {
			t.Errorf("the mean of %d numbers: %v, %v; want %v", n, got, err, want)
		}
	}
	text := submit(millrace.Native("core.identity"), millrace.Args("text"))
	for reason, f := range map[string]*millrace.Future{
		"FUNCTION_NOT_FOUND": submit(millrace.Exec("stats/median"), millrace.Args(text)),
		"INVALID_ARGUMENT":   submit(mean, millrace.Args("text")),
		"INPUT_UNREADABLE":   submit(mean, millrace.Args(text)),
	} {
		_, err := millrace.Get[float64](soon(t), f)
		if failed := (*millrace.TaskError)(nil); !errors.As(err, &failed) || failed.Reason != reason {
			t.Errorf("%v, want the reason %s", err, reason)
		}
	}
}
