package faults

import (
	"cmp"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestMainJobBetweenHosts: the digits of the main job, by Python functions and native operations,
// with two workers that share only the network.
func TestMainJobBetweenHosts(t *testing.T) {
	python, err := filepath.Abs(cmp.Or(os.Getenv("MILLRACE_PYTHON"), filepath.Join("..", "..", ".venv", "bin", "python")))
	if err != nil {
		t.Fatal(err)
	}
	forEachProtocol(t, betweenHosts, func(t *testing.T, p protocol) {
		t.Helper()
		c := start(t, 3)
		for host := 1; host <= 2; host++ {
			c.run(spec{host: host, protocol: p, args: []string{"--python", python}})
		}
		cmd := exec.CommandContext(c.ctx(), python, filepath.Join("..", "..", "examples", "digits.py"), "--rows", "200000", "--picture", filepath.Join(t.TempDir(), "digits.png"))
		cmd.Env = append(os.Environ(), "MILLRACE_ADDRESS="+c.lab.Host(0).Address()+":"+port, "MILLRACE_TOKEN="+token)
		began := time.Now()
		out, err := cmd.CombinedOutput()
		t.Logf("after %v:\n%s", time.Since(began).Round(time.Millisecond), out)
		if lines := strings.Split(strings.TrimSpace(string(out)), "\n"); err != nil || !strings.HasPrefix(lines[len(lines)-1], "ok") {
			t.Fatalf("the main job did not end with ok: %v", err)
		}
		for _, name := range []string{"w1-0", "w2-0"} {
			// A worker reports its bytes some time after they travelled.
			c.until(name+" took part: it reports tasks, bytes in and bytes out", func() bool {
				w := c.awaitWorker(name)
				return w.GetFinishedTasks() > 0 && w.GetReceivedBytes() > 0 && w.GetSentBytes() > 0
			})
		}
		c.awaitRoute(p, "w2-0", "w1-0")
	})
}
