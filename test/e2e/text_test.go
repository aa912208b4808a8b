package e2e

import (
	"bytes"
	"os/exec"
	"strings"
	"testing"

	millrace "github.com/millrace/millrace/clients/go"
)

// What tasks print, in whatever encoding and however it is cut, ends no worker's session, and every task ends.
func TestTasksMayPrintAnything(t *testing.T) {
	cmd := exec.CommandContext(soon(t), python(), "testdata/printing.py")
	cmd.Env = environment(millrace.EnvSchedulerFile + "=" + shared.file)
	var out, errors bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errors
	if err := cmd.Run(); err != nil || strings.TrimSpace(out.String()) != "ok" {
		t.Fatalf("%v\n%s%s", err, out.String(), errors.String())
	}
}
