package e2e

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The command shows the output of tasks that have ended, and follows that of later ones.
func TestLogsShowAndFollowTheOutputOfTasks(t *testing.T) {
	c := startCluster(t, "--workers", "2")
	say := func(key, text string) {
		t.Helper()
		file := filepath.Join(t.TempDir(), "graph.yaml")
		if err := os.WriteFile(file, []byte("tasks:\n- {key: "+key+", op: 'builtins:print', args: ["+text+"]}\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if text, errs, code := c.command(t, "", "submit", "-f", file, "--wait"); code != 0 {
			t.Fatalf("exit code %d\n%s%s", code, text, errs)
		}
	}
	say("first", `"one\ntwo \x1b[2J"`)
	if text, errs, code := c.command(t, "", "logs", "--task", "first"); code != 0 || text != "one\ntwo \\u001b[2J\n" {
		t.Errorf("exit code %d: %q %s", code, text, errs)
	}
	if text, _, code := c.command(t, "", "logs"); code != 0 || !strings.Contains(text, "[first host-") || !strings.Contains(text, "] one\n") {
		t.Errorf("exit code %d: %q", code, text)
	}
	if text, _, code := c.command(t, "", "logs", "--namespace", "other"); code != 0 || text != "" {
		t.Errorf("of another namespace: exit code %d: %q", code, text)
	}
	if got := c.succeed(t, "logs", "--task", "first", "--json"); got["text"] != "one\ntwo \x1b[2J\n" || got["key"] != "first" || got["stderr"] != false {
		t.Errorf("as JSON: %v", got)
	}
	if _, errs, code := c.command(t, "", "logs", "--worker", "nobody"); code != 3 || !strings.Contains(errs, `there is no worker "nobody"`) {
		t.Errorf("exit code %d: %s", code, errs)
	}

	follow := exec.Command(binary, "logs", "-f", "--scheduler-file", c.file)
	out, err := follow.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := follow.Start(); err != nil {
		t.Fatal(err)
	}
	ended := false
	defer func() {
		if !ended {
			_ = follow.Process.Kill()
			_ = follow.Wait()
		}
	}()
	lines := bufio.NewScanner(out)
	for want := range strings.SplitSeq("one|two|three|four", "|") {
		if want == "three" {
			say("second", "three")
		}
		if want == "four" {
			say("third", "four")
		}
		if !lines.Scan() || !strings.Contains(lines.Text(), "] "+want) {
			t.Fatalf("%q instead of %s: %v", lines.Text(), want, lines.Err())
		}
	}
	if err := follow.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	ended = true
	if err := follow.Wait(); err != nil {
		t.Errorf("after an interrupt: %v", err)
	}
}
