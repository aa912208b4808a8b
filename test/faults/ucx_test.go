package faults

import (
	"cmp"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// library returns the absolute path of a UCX library that the Makefile installed.
func library(t *testing.T, folder string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("..", "..", ".tools", folder, "lib", "libucp.so.0"))
	if err != nil {
		t.Fatal(err)
	}
	if folder == "ucx" {
		path = cmp.Or(os.Getenv("MILLRACE_UCX_LIBRARY"), path)
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%v; run: make .tools/%s/.stamp", err, folder)
	}
	return path
}

// TestUnusableUCX: the cluster works over gRPC, and each worker that needed UCX reports it once, in
// one line.
func TestUnusableUCX(t *testing.T) {
	t.Parallel()
	whole, err := os.ReadFile(library(t, "ucx"))
	if err != nil {
		t.Fatal(err)
	}
	truncated := filepath.Join(t.TempDir(), "libucp.so.0")
	if err := os.WriteFile(truncated, whole[:len(whole)/3], 0o600); err != nil {
		t.Fatal(err)
	}
	missing := filepath.Join(t.TempDir(), "libucp.so.0")
	for name, x := range map[string]struct {
		flags []string
		why   string
	}{
		"missing":                         {[]string{"--ucx-library", missing, "--ucx-tls", "tcp"}, missing},
		"truncated":                       {[]string{"--ucx-library", truncated, "--ucx-tls", "tcp"}, truncated},
		"without the requested transport": {[]string{"--ucx-library", library(t, "ucx"), "--ucx-tls", "teleport"}, "ucp_init: No such device"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := start(t, 3)
			c.pair(protocol{flags: x.flags}, spec{})
			kept := c.stamps(100, transferBytes()/16, onlySource)
			c.checkStamp(c.stamp(1, 32, kept[:8], onlyReader))
			c.checkStamp(c.stamp(2, 32, kept, onlyReader))
			if lines := c.awaitLogLine(`"worker":"reader-0"`, "gRPC"); len(lines) != 1 || !strings.Contains(lines[0], x.why) {
				t.Errorf("want one line about gRPC, with %q; got:\n%s", x.why, strings.Join(lines, ""))
			}
		})
	}
}

// TestForcedUCXIsUnusable: a process that is forced to use UCX, and cannot, reports it in one line
// and ends. No process is started again and again.
func TestForcedUCXIsUnusable(t *testing.T) {
	t.Parallel()
	binary := cmp.Or(os.Getenv("MILLRACE_BIN"), filepath.Join("..", "..", "bin", "millrace"))
	missing := filepath.Join(t.TempDir(), "libucp.so.0")
	for name, x := range map[string]struct {
		flags []string
		why   string
	}{
		"missing":                         {[]string{"--ucx-library", missing}, missing},
		"without the requested transport": {[]string{"--ucx-library", library(t, "ucx"), "--ucx-tls", "teleport"}, "ucp_init: No such device"},
	} {
		for _, command := range []string{"up", "worker", "one worker"} {
			t.Run(command+", "+name, func(t *testing.T) {
				t.Parallel()
				ctx, cancel := context.WithTimeout(t.Context(), eventTimeout)
				defer cancel()
				cmd := exec.CommandContext(ctx, binary, append([]string{strings.TrimPrefix(command, "one "), "--protocol", "ucx", "--workers", "2", "--memory-limit", "64MiB"}, x.flags...)...)
				cmd.Env = append(os.Environ(), "MILLRACE_SCHEDULER_FILE=", "MILLRACE_DEVICE=host", "MILLRACE_ADDRESS=127.0.0.1:1")
				code := 8
				if command == "one worker" {
					// This is the process that a supervisor starts after its own test of UCX.
					cmd.Env, code = append(cmd.Env, "MILLRACE_WORKER_CHILD=host-0"), 12
					cmd.ExtraFiles = supervisorFiles(t, "")
				}
				out, err := cmd.CombinedOutput()
				lines := strings.Split(strings.TrimSpace(string(out)), "\n")
				last := lines[len(lines)-1]
				if cmd.ProcessState.ExitCode() != code || !strings.Contains(last, x.why) || !strings.Contains(last, "--protocol ucx") || !strings.Contains(last, "`millrace doctor`") {
					t.Errorf("%v:\n%s", err, out)
				}
				if command != "one worker" && len(lines) != 1 {
					t.Errorf("want one line of output, got:\n%s", out)
				}
			})
		}
	}
}

// TestAnotherVersionOfUCX: workers with different UCX versions use gRPC between them, although they
// were forced to use UCX.
func TestAnotherVersionOfUCX(t *testing.T) {
	for name, p := range map[string]protocol{"tcp": byTCP, "cma": byCMA} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := start(t, 3)
			c.source(p, spec{env: []string{"MILLRACE_UCX_LIBRARY=" + library(t, "ucx-other")}})
			c.reader(p, spec{env: []string{"MILLRACE_UCX_LIBRARY=" + library(t, "ucx")}})
			kept := c.stamps(100, transferBytes()/16, onlySource)
			read := c.stamp(1, 32, kept, onlyReader)
			c.checkStamp(read)
			c.awaitLogLine("ucx 1.18.1")
			c.awaitLogLine("ucx 1.19.0")
			if w := c.awaitWorker("source-0"); len(w.GetDeaths()) > 0 {
				t.Errorf("the source died: %v", w.GetDeaths())
			}
			release(append(kept, read)...)
			c.awaitEmpty()
		})
	}
}
