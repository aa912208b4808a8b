package exitcause_test

import (
	"os/exec"
	"testing"

	"github.com/millrace/millrace/internal/exitcause"
)

func TestCauseOfDeath(t *testing.T) {
	for script, want := range map[string]string{
		"exit 0":        "exited with code 0",
		"exit 7":        "exited with code 7",
		"kill -SEGV $$": "killed by SIGSEGV",
		"kill -KILL $$": "killed by SIGKILL (not by the OOM killer, as far as its counter tells)",
	} {
		oom := exitcause.OOMKills()
		cmd := exec.Command("/bin/sh", "-c", script)
		_ = cmd.Run() // the process state holds the result
		if got := exitcause.Of(cmd.ProcessState, oom).String(); got != want {
			t.Errorf("%s: %s", script, got)
		}
	}
	killed := exitcause.Cause{ExitCode: -1, Signal: "SIGKILL", OutOfMemory: true}
	if got := killed.String(); got != "killed by the kernel's OOM killer (SIGKILL)" {
		t.Error(got)
	}
}
