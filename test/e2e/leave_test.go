package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	millrace "github.com/millrace/millrace/clients/go"
)

// TestWorkerLeavesWithoutALoss: a worker that gets SIGTERM, directly or by its supervisor, finishes
// its running tasks. Other workers copy the objects that only it had: scattered data is kept, and
// no result is computed again.
func TestWorkerLeavesWithoutALoss(t *testing.T) {
	for _, to := range []string{"worker", "supervisor"} {
		t.Run(to, func(t *testing.T) {
			c := startCluster(t, "--workers", "1", "--memory-limit", "256MiB")
			leaving := c.worker(t, "--name", "leaving", "--memory-limit", "256MiB")
			client := c.dial(t)
			pid := int(active(t, client, "host-0", "leaving-0")["leaving-0"].GetPid())
			if to == "supervisor" {
				pid = leaving.cmd.Process.Pid
			}
			there, wish := millrace.WithWorkers("leaving-0"), millrace.WithPreferredWorkers("leaving-0")
			numbers := make([]float64, 1<<17)
			for i := range numbers {
				numbers[i] = float64(i)
			}
			data, err := client.Scatter(soon(t), numbers, there)
			if err != nil {
				t.Fatal(err)
			}
			dir := t.TempDir()
			// The task records each run, and its result is too large to be kept anywhere but on its
			// worker.
			noted := func(name string, seconds float64) *millrace.Future {
				file := filepath.Join(dir, name)
				code := fmt.Sprintf("(lambda f: [open(%q, 'a').write('x'), __import__('time').sleep(%v), __import__('numpy').full(100000, 2.5)][2])(0)", file, seconds)
				f, err := client.Submit(soon(t), millrace.Python("builtins:eval"), millrace.Args(code), wish)
				if err != nil {
					t.Fatal(err)
				}
				return f
			}
			done := noted("done", 0)
			if err := done.Wait(soon(t)); err != nil {
				t.Fatal(err)
			}
			running := noted("running", 3)
			runs := func(name string) string {
				text, err := os.ReadFile(filepath.Join(dir, name))
				if err != nil {
					return ""
				}
				return string(text)
			}
			within(t, "the task runs", func() bool { return runs("running") == "x" })
			if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			if code := leaving.code(t); code != 0 {
				t.Errorf("exit code %d", code)
			}
			if log := leaving.log.String(); !strings.Contains(log, "drained") || strings.Contains(log, "leaving before") {
				t.Errorf("it wrote:\n%s", log)
			}
			active(t, client, "host-0")
			for name, f := range map[string]*millrace.Future{"done": done, "running": running} {
				if got, err := millrace.Get[[]float64](soon(t), f); err != nil || len(got) != 100_000 || runs(name) != "x" {
					t.Errorf("%s: %d numbers after runs %q, %v", name, len(got), runs(name), err)
				}
			}
			if got, err := millrace.Get[[]float64](soon(t), data); err != nil || len(got) != len(numbers) || got[7] != 7 {
				t.Errorf("scattered: %d numbers, %v", len(got), err)
			}
		})
	}
}
