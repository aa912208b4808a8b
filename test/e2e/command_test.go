package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	millrace "github.com/millrace/millrace/clients/go"
)

const graphFile = `
name: squares
tasks:
- key: cmd-a
  op: array.arange
  args: [0, 4, 1]
- key: cmd-m
  op: array.map
  args: ["x0*x0", {input: cmd-a}]
- key: cmd-s
  op: math:fsum
  args: [{input: cmd-m}]
`

func TestCommandsOnAGraph(t *testing.T) {
	file := filepath.Join(t.TempDir(), "graph.yaml")
	if err := os.WriteFile(file, []byte(graphFile), 0o600); err != nil {
		t.Fatal(err)
	}
	out := shared.succeed(t, "submit", "-f", file, "--json")
	graph, _ := out["graphId"].(string)
	if graph == "" {
		t.Fatalf("submit: %v", out)
	}
	if text, errs, code := shared.command(t, "", "wait", "g"+graph); code != 0 {
		t.Fatalf("wait: exit code %d\n%s%s", code, text, errs)
	}
	if got := shared.succeed(t, "get", "result", "cmd-s", "--json")["json"]; got != 14.0 {
		t.Errorf("fsum of squares: %v", got)
	}
	if got := dig(shared.succeed(t, "describe", "task", "cmd-s", "--json"), "task", "state"); got != "TASK_STATE_SUCCEEDED" {
		t.Errorf("describe task: %v", got)
	}
	if got := dig(shared.succeed(t, "describe", "graph", graph, "--json"), "graph", "state"); got != "GRAPH_STATE_SUCCEEDED" {
		t.Errorf("describe graph: %v", got)
	}
	if got := dig(shared.succeed(t, "get", "workers", "--json"), "workers"); len(got.([]any)) != 2 {
		t.Errorf("get workers: %v", got)
	}
	for _, args := range [][]string{
		{"status"}, {"top", "--once"}, {"events"}, {"trace", "g" + graph, "-"}, {"memory"}, {"memory", "host-1", "--limit", "1"}, {"get", "workers", "-o", "wide"}, {"get", "graphs"}, {"get", "tasks", "--graph", graph}, {"get", "clients"}, {"get", "datasets"},
		{"describe", "task", "cmd-s"}, {"describe", "graph", graph}, {"describe", "worker", "host-0"}, {"explain", "cmd-s"}, {"version"}, {"completion", "bash"},
	} {
		if text, errs, code := shared.command(t, "", args...); code != 0 || text == "" {
			t.Errorf("millrace %s: exit code %d\n%s%s", strings.Join(args, " "), code, text, errs)
		}
	}
	if text, _, code := shared.command(t, strings.ReplaceAll(graphFile, "cmd-", "cmd2-"), "submit", "-f", "-", "--wait"); code != 0 {
		t.Errorf("submit --wait: exit code %d\n%s", code, text)
	}
	for file, namespace := range map[string]string{
		`{"tasks": [{"key": "cmd-n", "op": "bench.noop"}]}`:                      "flag",
		`{"namespace": "file", "tasks": [{"key": "cmd-n", "op": "bench.noop"}]}`: "file",
	} {
		if text, errs, code := shared.command(t, file, "submit", "-f", "-", "--wait", "--namespace", "flag"); code != 0 {
			t.Errorf("submit --namespace: exit code %d\n%s%s", code, text, errs)
		}
		shared.succeed(t, "get", "result", "cmd-n", "--namespace", namespace, "--json")
	}
	failing := `{"tasks": [{"key": "cmd-bad", "op": "math:sqrt", "args": [-1]}]}`
	if text, errs, code := shared.command(t, failing, "submit", "-f", "-", "--wait"); code != 7 {
		t.Errorf("a failing task: exit code %d\n%s%s", code, text, errs)
	}
}

// A submission of a task whose old failure a client holds does not run it again, and says so.
func TestSubmitOfAHeldFailure(t *testing.T) {
	c := shared.dial(t)
	f, err := c.Submit(soon(t), millrace.Python("math:sqrt"), millrace.Args(-1), millrace.WithKey("held"))
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Wait(soon(t)); err == nil {
		t.Fatal("the square root of -1 is known")
	}
	again := `{"tasks": [{"key": "held", "op": "math:sqrt", "args": [-1]}]}`
	text, errs, code := shared.command(t, again, "submit", "-f", "-", "--wait", "--namespace", namespace(t))
	if code != 7 || !strings.Contains(errs, `"held"`) || !strings.Contains(errs, "millrace retry held") {
		t.Errorf("exit code %d\n%s%s", code, text, errs)
	}
}

func TestConfigShowsOriginsAndNoSecrets(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "millrace.yaml")
	if err := os.WriteFile(file, []byte("log-level: warn\ntoken: very-secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	out, errs, code := shared.command(t, "", "config", "show", "--origin", "--config", file, "--address", "h:1")
	if code != 0 {
		t.Fatalf("exit code %d\n%s", code, errs)
	}
	if strings.Contains(out, "very-secret") {
		t.Errorf("a secret is shown:\n%s", out)
	}
	for _, line := range []string{"log-level:", "# file", "# flag", "# environment"} {
		if !strings.Contains(out, line) {
			t.Errorf("%q is missing:\n%s", line, out)
		}
	}
}
