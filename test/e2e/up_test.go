package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	millrace "github.com/millrace/millrace/clients/go"
)

// TestUpLeavesNothingBehind: when `up` ends, in whatever way, scheduler, supervisor, workers and
// executors end, too.
func TestUpLeavesNothingBehind(t *testing.T) {
	for _, signal := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGKILL} {
		t.Run(signal.String(), func(t *testing.T) {
			c := startCluster(t, "--workers", "2", "--executors", "1", "--memory-limit", "64MiB")
			client, err := millrace.Dial(soon(t), millrace.WithSchedulerFile(c.file))
			if err != nil {
				t.Fatal(err)
			}
			f, err := client.Submit(soon(t), millrace.Python("os:getpid"), millrace.Args())
			if err != nil {
				t.Fatal(err)
			}
			executor, err := millrace.Get[int](soon(t), f)
			if err != nil {
				t.Fatal(err)
			}
			below := descendants(c.cmd.Process.Pid)
			if len(below) < 3 {
				t.Fatalf("processes below up: %v", below)
			}
			names := map[int]string{}
			for _, pid := range append(below, executor) {
				names[pid] = commandLine(pid)
			}
			if err := client.Close(); err != nil {
				t.Fatal(err)
			}
			before := len(c.log.String())
			if err := c.stop(signal); err != nil {
				t.Fatal(err)
			}
			within(t, fmt.Sprintf("all of %v gone", names), func() bool {
				for pid, name := range names {
					// NB: another process that got the same number has another command line.
					if line := commandLine(pid); line != "" && line == name {
						return false
					}
				}
				return true
			})
			if _, err := os.Stat(c.file); signal != syscall.SIGKILL && !os.IsNotExist(err) {
				t.Errorf("the scheduler file is still there: %v", err)
			}
			// Processes that were asked to end have no reason for warnings. A busy machine may
			// have one.
			for line := range strings.Lines(c.log.String()[before:]) {
				if signal != syscall.SIGKILL && (strings.Contains(line, `"WARN"`) || strings.Contains(line, `"ERROR"`)) && !strings.Contains(line, "has stood still") {
					t.Errorf("it wrote: %s", line)
				}
			}
		})
	}
}

func TestUpIsReadySoon(t *testing.T) {
	// No step waits for a time-out. If one did, every start would last for longer than this; on a
	// busy machine some do.
	const most = 20 * time.Second
	after := shared.readyAfter
	within(t, "a cluster is ready soon", func() bool {
		if after > most {
			t.Logf("ready after %s", after)
			c := startCluster(t, "--workers", "2", "--memory-limit", "64MiB")
			if after = c.readyAfter; c.stop(syscall.SIGTERM) != nil {
				t.Fatal("it does not end")
			}
		}
		return after <= most
	})
	t.Logf("ready after %s", after)
}

func TestShutdownByAClientEndsUp(t *testing.T) {
	c := startCluster(t, "--workers", "1", "--memory-limit", "64MiB")
	client, err := millrace.Dial(soon(t), millrace.WithSchedulerFile(c.file), millrace.WithoutLease())
	if err != nil {
		t.Fatal(err)
	}
	if err := client.Shutdown(soon(t), "test"); err != nil {
		t.Fatal(err)
	}
	if err := client.Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-c.ended:
	case <-time.After(eventTimeout):
		t.Fatal("up goes on after Shutdown")
	}
}

// A running cluster keeps its scheduler file: a second cluster with that file is refused and
// changes nothing. The file of a killed cluster is replaced.
func TestASchedulerFileHasOneCluster(t *testing.T) {
	c := startCluster(t, "--workers", "1", "--memory-limit", "64MiB")
	for _, args := range [][]string{{"up", "--workers", "1", "--memory-limit", "64MiB"}, {"scheduler"}} {
		cmd := exec.CommandContext(soon(t), binary, append(args, "--scheduler-file", c.file)...)
		cmd.Env = environment()
		out, err := cmd.CombinedOutput()
		if code := cmd.ProcessState.ExitCode(); code != 2 || strings.Contains(string(out), "ready") {
			t.Errorf("%v: exit code %d, %v:\n%s", args, code, err, out)
		}
		for _, want := range []string{c.Address, fmt.Sprintf("pid %d", c.cmd.Process.Pid), c.file} {
			if !strings.Contains(string(out), want) {
				t.Errorf("%v: %q is not in\n%s", args, want, out)
			}
		}
		if now, err := millrace.ReadSchedulerFile(c.file); err != nil || now != c.SchedulerFile {
			t.Errorf("%v: the file is now %+v, %v", args, now, err)
		}
	}
	if err := c.stop(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	next, err := startUp(filepath.Dir(c.file), "--workers", "1", "--memory-limit", "64MiB")
	watched(t, next, err)
	if next.ID == c.ID || next.PID != next.cmd.Process.Pid {
		t.Errorf("the file is of %+v", next.SchedulerFile)
	}
}

// If --python names an interpreter that cannot run tasks, `up` and `worker` end with the reason.
// Without --python they print a warning.
func TestAPythonThatCannotRunTasks(t *testing.T) {
	bare := filepath.Join(t.TempDir(), "python")
	if err := os.WriteFile(bare, []byte("#!/bin/sh\necho \"ModuleNotFoundError: No module named 'millrace'\" >&2\nexit 1\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"up", "--workers", "1", "--memory-limit", "64MiB"},
		{"worker", "--workers", "1", "--memory-limit", "64MiB", "--address", shared.Address, "--token", shared.Token},
	} {
		for python, want := range map[string]string{"/no/such/python": "there is no such program", bare: "No module named 'millrace'"} {
			cmd := exec.CommandContext(soon(t), binary, append(args, "--python", python)...)
			cmd.Env = environment()
			out, err := cmd.CombinedOutput()
			lines := strings.Split(strings.TrimSpace(string(out)), "\n")
			if last := lines[len(lines)-1]; cmd.ProcessState.ExitCode() != 8 || !strings.HasPrefix(last, "error: --python "+python+": ") || !strings.Contains(last, want) {
				t.Errorf("%s: %v:\n%s", args[0], err, out)
			}
		}
	}
	// Tests set MILLRACE_PYTHON, which counts as explicit, so remove it here.
	env := append(environment(), "PATH="+filepath.Dir(bare)+":"+os.Getenv("PATH"))
	if err := os.Rename(bare, bare+"3"); err != nil {
		t.Fatal(err)
	}
	copied := filepath.Join(t.TempDir(), "millrace") // no .venv next to it
	if err := os.Link(binary, copied); err != nil {
		text, err := os.ReadFile(binary)
		if err == nil {
			err = os.WriteFile(copied, text, 0o700)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	c, err := startUpOf(copied, env, t.TempDir(), "--python", "", "--workers", "1", "--memory-limit", "64MiB")
	watched(t, c, err)
	if said := c.said.String(); !strings.Contains(said, "note     Python tasks will fail, as python3 cannot run them: ModuleNotFoundError") {
		t.Errorf("it said:\n%s", said)
	}
}

// TestIPCNeedsGPUs: copies from GPU to GPU are the only path of --protocol ipc, so workers in host
// memory would have none.
func TestIPCNeedsGPUs(t *testing.T) {
	for _, command := range []string{"up", "worker"} {
		cmd := exec.CommandContext(soon(t), binary, command, "--protocol", "ipc", "--device", "host", "--workers", "2", "--memory-limit", "64MiB")
		cmd.Env = append(os.Environ(), "MILLRACE_SCHEDULER_FILE=", "MILLRACE_ADDRESS=127.0.0.1:1")
		out, err := cmd.CombinedOutput()
		text := strings.TrimSpace(string(out))
		if cmd.ProcessState.ExitCode() != 8 || strings.Count(text, "\n") != 0 || !strings.Contains(text, "--protocol ipc") || !strings.Contains(text, "use --protocol auto") {
			t.Errorf("%s: %v:\n%s", command, err, out)
		}
	}
}
