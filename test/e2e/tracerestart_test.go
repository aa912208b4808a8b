package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	millrace "github.com/millrace/millrace/clients/go"
)

// Attempts of before a restart are not kept. A trace of their graph says so, and when the restart
// was: as an error if there is nothing else, beside the file and in it otherwise.
func TestATraceSaysWhatARestartHasLost(t *testing.T) {
	t.Parallel()
	scheduler := withJournal(t)
	c := scheduler.dial(t)
	scheduler.workers(t, c)
	run := func(key string) (graph string) {
		t.Helper()
		if _, err := submitted(t, c, millrace.Native("array.full"), key, []int{20_000}, 1.0).Array(soon(t)); err != nil {
			t.Fatal(err)
		}
		task, err := c.Task(soon(t), key)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint("g", task.GetGraphId())
	}
	command := func(args ...string) (stdout, stderr string, code int) {
		t.Helper()
		cmd := exec.CommandContext(soon(t), binary, args...)
		cmd.Env = environment("MILLRACE_ADDRESS="+scheduler.address, "MILLRACE_TOKEN=t0ken")
		var out, errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errs
		var exit *exec.ExitError
		if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		return out.String(), errs.String(), cmd.ProcessState.ExitCode()
	}
	const lost = "the scheduler was started again at "
	file := filepath.Join(t.TempDir(), "trace.json")
	graph := run("before")
	if out, errs, code := command("trace", graph, file); code != 0 || strings.Contains(out+errs, lost) {
		t.Errorf("without a restart: %d, %s%s", code, out, errs)
	}
	scheduler.restart(t)
	if out, errs, code := command("trace", graph, file+".none"); code == 0 || !strings.Contains(errs, lost) {
		t.Errorf("after the restart: %d, %s%s", code, out, errs)
	}
	if again := run("after"); again != graph {
		t.Fatalf("the client goes on in %s after %s", again, graph)
	}
	out, errs, code := command("trace", graph, file)
	if code != 0 || !strings.Contains(out, "1 attempt;") || !strings.Contains(errs, lost) {
		t.Errorf("after another task: %d, %s%s", code, out, errs)
	}
	text, err := os.ReadFile(file)
	if err != nil || !bytes.Contains(text, []byte("restart of the scheduler: earlier attempts are not kept")) || bytes.Contains(text, []byte(`"before"`)) {
		t.Errorf("the file: %v\n%s", err, text)
	}
}
