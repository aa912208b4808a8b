//go:build prometheus

package prometheus

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// patience bounds the whole test.
const patience = 5 * time.Minute

// graph is work whose second task reads the result of the first one on another worker.
const graph = `{"tasks": [
  {"key": "a", "op": "array.arange", "args": [0, 1000000, 1], "options": {"workers": [{"name": "host-0"}]}},
  {"key": "s", "op": "array.reduce", "args": [{"input": "a"}], "kwargs": {"op": "sum"}, "options": {"workers": [{"name": "host-1"}]}}]}`

// start starts a process that ends with the test, and returns its stdout.
func start(ctx context.Context, t *testing.T, name string, args ...string) *bufio.Scanner {
	t.Helper()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = time.Minute
	var log strings.Builder
	cmd.Stderr = &log
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatalf("%s: %v (Prometheus: apt-get install prometheus)", name, err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("%s wrote:\n%s", name, log.String())
		}
	})
	return bufio.NewScanner(out)
}

// Each expression of the dashboard and of the rules has an answer while a cluster works. Those of
// GPUs have none here, and those of alerts need none.
func TestPanelsAndRulesHaveAnswers(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	millrace, dir := os.Getenv("MILLRACE_BIN"), t.TempDir()
	file := filepath.Join(dir, "scheduler.json")
	var site string
	// Workers of one host read inputs in place, unless the protocol makes them copy, as hosts do.
	lines := start(ctx, t, millrace, "up", "--device", "host", "--workers", "2", "--slots", "1", "--memory-limit", "64MiB", "--protocol", "grpc",
		"--journal", filepath.Join(dir, "journal"), "--scheduler-file", file, "--python", os.Getenv("MILLRACE_PYTHON"))
	for lines.Scan() && !strings.HasPrefix(lines.Text(), "ready") {
		if f := strings.Fields(lines.Text()); len(f) == 2 && f[0] == "http" {
			site = strings.TrimSuffix(strings.TrimPrefix(f[1], "http://"), "/metrics")
		}
	}
	if site == "" {
		t.Fatal("millrace up shows no HTTP port")
	}
	rules, err := filepath.Abs("../../deploy/prometheus/millrace.rules.yml")
	if err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(dir, "prometheus.yml")
	text := fmt.Sprintf("global: {scrape_interval: 1s, evaluation_interval: 1s}\nrule_files: [%s]\nscrape_configs: [{job_name: millrace, static_configs: [{targets: [%q]}]}]\n", rules, site)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	address := reserved(t)
	start(ctx, t, "prometheus", "--config.file="+config, "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+address, "--log.level=warn")
	waiting := map[string]string{}
	for title, expression := range expressions(t) {
		waiting[title] = expression
	}
	for round := 0; len(waiting) > 0 && ctx.Err() == nil; round++ {
		submit := exec.CommandContext(ctx, millrace, "submit", "--wait", "--scheduler-file", file, "--namespace", fmt.Sprint("round-", round), "-f", "-")
		submit.Stdin = strings.NewReader(graph)
		if out, err := submit.CombinedOutput(); err != nil && ctx.Err() == nil {
			t.Fatalf("submit: %v\n%s", err, out)
		}
		for title, expression := range waiting {
			n, err := query(ctx, address, expression)
			switch {
			case err != nil && strings.Contains(err.Error(), "connection refused"): // It starts.
			case err != nil:
				t.Errorf("%s: %s: %v", title, expression, err)
				delete(waiting, title)
			case n > 0 || strings.HasPrefix(title, "GPU") || strings.HasPrefix(title, "alert "):
				delete(waiting, title)
			}
		}
	}
	for title, expression := range waiting {
		t.Errorf("%s: no answer to %s", title, expression)
	}
}

// reserved returns an address at which a child may listen; no other process is given its port in
// the meantime.
func reserved(t *testing.T) string {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Close(fd); err != nil {
			t.Error(err)
		}
	})
	// Two bound sockets may share a port if both set SO_REUSEADDR and one does not listen.
	if err := errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1), unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}})); err != nil {
		t.Fatal(err)
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("127.0.0.1:%d", name.(*unix.SockaddrInet4).Port)
}

// expressions returns those of the dashboard and of the rules, by their titles.
func expressions(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile("../../deploy/grafana/millrace.json")
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(text, &dashboard); err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for _, p := range dashboard.Panels {
		for _, target := range p.Targets {
			found[p.Title] = target.Expr
		}
	}
	if text, err = os.ReadFile("../../deploy/prometheus/millrace.rules.yml"); err != nil {
		t.Fatal(err)
	}
	title := ""
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "- "), ": ")
		switch key {
		case "record", "alert":
			title = key + " " + value
		case "expr":
			found[title] = value
			if name, isRecord := strings.CutPrefix(title, "record "); isRecord {
				found["recorded "+name] = name
			}
		}
	}
	if len(found) < 20 {
		t.Fatalf("only %d expressions were found", len(found))
	}
	return found
}

// query returns the number of series of an answer that are numbers: a quantile of nothing is none.
func query(ctx context.Context, address, expression string) (int, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/api/v1/query?query="+url.QueryEscape(expression), nil)
	if err != nil {
		return 0, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	if response.StatusCode == http.StatusServiceUnavailable {
		return 0, nil // It starts.
	}
	var answer struct {
		Status, Error string
		Data          struct{ Result []struct{ Value [2]any } }
	}
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		return 0, err
	}
	if answer.Status != "success" {
		return 0, fmt.Errorf("%d: %s", response.StatusCode, answer.Error)
	}
	n := 0
	for _, series := range answer.Data.Result {
		if series.Value[1] != "NaN" {
			n++
		}
	}
	return n, nil
}
