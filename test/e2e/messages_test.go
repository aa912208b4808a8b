package e2e

import (
	"bytes"
	"os/exec"
	"strings"
	"testing"

	millrace "github.com/millrace/millrace/clients/go"
)

// endsWithOK runs a Python script against the shared cluster. The script must print "ok"; the
// output of its tasks is not shown.
func endsWithOK(t *testing.T, script string) {
	t.Helper()
	cmd := exec.CommandContext(soon(t), python(), "testdata/"+script)
	cmd.Env = environment(millrace.EnvSchedulerFile+"="+shared.file, "MILLRACE_OUTPUT=0")
	var out, errors bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errors
	if err := cmd.Run(); err != nil || strings.TrimSpace(out.String()) != "ok" {
		t.Fatalf("%v\n%s%s", err, out.String(), errors.String())
	}
}

// Output of tasks, in any encoding and cut at any byte, never ends a worker's session, and every
// task ends.
func TestTasksMayPrintAnything(t *testing.T) { endsWithOK(t, "printing.py") }

// Small inputs and arguments travel in messages, however many there are.
func TestInputsAndArgumentsLargerThanAMessage(t *testing.T) { endsWithOK(t, "many_inputs.py") }
