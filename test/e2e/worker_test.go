package e2e

import (
	"bytes"
	"cmp"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	millrace "github.com/millrace/millrace/clients/go"
	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

// started is a command that runs in the background.
type started struct {
	cmd   *exec.Cmd
	log   *lockedBuffer
	ended chan struct{}
}

// background starts the binary; it is killed at the end of the test.
func background(t *testing.T, env []string, args ...string) *started {
	t.Helper()
	s := &started{cmd: exec.Command(binary, args...), log: new(lockedBuffer), ended: make(chan struct{})}
	s.cmd.Env = environment(env...)
	s.cmd.Stdout, s.cmd.Stderr = s.log, s.log
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(s.ended)
		_ = s.cmd.Wait() // the exit code is in ProcessState
	}()
	t.Cleanup(func() {
		_ = s.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
		_ = s.cmd.Process.Signal(syscall.SIGINT)
		select {
		case <-s.ended:
		case <-time.After(eventTimeout):
			_ = s.cmd.Process.Kill()
			t.Errorf("millrace %s does not end", strings.Join(args, " "))
		}
		if t.Failed() {
			t.Logf("millrace %s wrote:\n%s", strings.Join(args, " "), s.log)
		}
	})
	return s
}

// worker starts further workers for a cluster.
func (c *cluster) worker(t *testing.T, args ...string) *started {
	t.Helper()
	return background(t, []string{millrace.EnvSchedulerFile + "=" + c.file}, append([]string{"worker", "--workers", "1", "--slots", "1", "--memory-limit", "64MiB",
		"--python", python()}, args...)...)
}

// code waits for the end and returns the exit code.
func (s *started) code(t *testing.T) int {
	t.Helper()
	select {
	case <-s.ended:
		return s.cmd.ProcessState.ExitCode()
	case <-time.After(eventTimeout):
		t.Fatalf("it goes on:\n%s", s.log)
		return -1
	}
}

// lastLine returns the last line of the output.
func (s *started) lastLine() string {
	lines := strings.Split(strings.TrimSpace(s.log.String()), "\n")
	return lines[len(lines)-1]
}

// active waits until the active workers have exactly the given names, and returns them by name.
func active(t *testing.T, client *millrace.Client, names ...string) map[string]*millracev1.Worker {
	t.Helper()
	var found map[string]*millracev1.Worker
	within(t, fmt.Sprintf("the active workers are %q", names), func() bool {
		workers, err := client.FullWorkers(soon(t), millracev1.WorkerState_WORKER_STATE_ACTIVE)
		if err != nil {
			t.Fatal(err)
		}
		found = map[string]*millracev1.Worker{}
		for _, w := range workers {
			found[w.GetName()] = w
		}
		for _, name := range names {
			if found[name] == nil {
				return false
			}
		}
		return len(workers) == len(names)
	})
	return found
}

// Workers that join a cluster get unique names without a flag, and the cluster does not depend on
// its first workers.
func TestWorkersJoinAndLeaveACluster(t *testing.T) {
	machine, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	c := startCluster(t, "--workers", "1", "--memory-limit", "64MiB")
	client := c.dial(t)
	joined := c.worker(t)
	first := active(t, client, "host-0", machine+"-host-0")["host-0"]
	if err := syscall.Kill(int(first.GetPid()), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	active(t, client, machine+"-host-0")
	if err := joined.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := joined.code(t); code != 0 {
		t.Errorf("exit code %d after SIGTERM", code)
	}
	active(t, client)
	c.worker(t, "--name", "again")
	f, err := client.Submit(soon(t), millrace.Native("array.full"), millrace.Args([]int{2}, 3))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Array(soon(t)); err != nil {
		t.Error(err)
	}
}

// A worker that can never start ends with the reason in its last line, and with the exit code that
// the help names.
func TestSettingsThatCannotWorkEndWithTheReason(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	free := fixedAddress(t)
	worker := []string{"worker", "--workers", "1", "--memory-limit", "16MiB", "--python", python()}
	for name, x := range map[string]struct {
		args []string
		env  []string
		code int
		says string
	}{
		"wrong token":       {worker, []string{"MILLRACE_ADDRESS=" + shared.Address, "MILLRACE_TOKEN=wrong"}, 5, "the token is not one of this cluster's"},
		"no scheduler":      {append(worker, "--death-timeout", "1s"), []string{"MILLRACE_ADDRESS=" + free}, 4, "the scheduler is away for"},
		"too much memory":   {[]string{"up", "--workers", "1", "--memory-limit", "10TiB"}, nil, 8, "--memory-limit 10TiB: one worker would have more than there is"},
		"port that is used": {append(worker, "--listen", taken.Addr().String()), []string{"MILLRACE_SCHEDULER_FILE=" + shared.file}, 8, "address already in use"},
		"shared port":       {append(worker, "--listen", free, "--workers", "2"), []string{"MILLRACE_SCHEDULER_FILE=" + shared.file}, 2, "2 workers cannot share one port"},
		"wrong executor":    {[]string{"up", "--workers", "1", "--memory-limit", "16MiB", "--exec", "python=cat"}, nil, 2, `executor "python"`},
		"no library":        {[]string{"up", "--workers", "1", "--memory-limit", "16MiB", "--blas-library", "/nonexistent/libopenblas.so.0"}, nil, 2, "/nonexistent/libopenblas.so.0: no such file"},
		"wrong amount":      {[]string{"up", "--workers", "1", "--memory-limit", "16MiB", "--resources", "disk=many"}, nil, 2, "--resources disk=many"},
	} {
		t.Run(name, func(t *testing.T) {
			s := background(t, x.env, x.args...)
			if code := s.code(t); code != x.code || !strings.HasPrefix(s.lastLine(), "error: ") || !strings.Contains(s.lastLine(), x.says) {
				t.Errorf("exit code %d, at last: %s", code, s.lastLine())
			}
		})
	}
}

// A worker that hangs is replaced: its task runs again, on another worker or on its next
// incarnation.
func TestWorkerThatIsStoppedIsReplaced(t *testing.T) {
	c := startCluster(t, "--workers", "1", "--memory-limit", "64MiB")
	client := c.dial(t)
	before := active(t, client, "host-0")["host-0"]
	if err := syscall.Kill(int(before.GetPid()), syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	// the supervisor has killed it
	t.Cleanup(func() { _ = syscall.Kill(int(before.GetPid()), syscall.SIGCONT) })
	var deaths []*millracev1.WorkerDeath
	// The report of the death may arrive after the next process has started.
	within(t, "another process is the worker, and the death of the first one is known", func() bool {
		after := active(t, client, "host-0")["host-0"]
		deaths = after.GetDeaths()
		return after.GetPid() != before.GetPid() && len(deaths) > 0
	})
	if cause := deaths[0].GetCause(); deaths[0].GetPid() != before.GetPid() || !strings.Contains(cause, "no sign of life") || !strings.Contains(cause, "stopped by a signal") {
		t.Errorf("deaths: %v", deaths)
	}
}

// A task cannot find the operator's token in the processes around it, and the task's own token does
// not allow it to stop the cluster.
func TestTasksDoNotSeeTheToken(t *testing.T) {
	const token = "the-operators-own-token"
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(token+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, way := range map[string]struct{ args, env []string }{
		"argument":    {[]string{"--token", token}, nil},
		"environment": {nil, []string{"MILLRACE_TOKEN=" + token}},
		"file":        {[]string{"--token-file=" + file}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			scheduler := filepath.Join(t.TempDir(), "scheduler.json")
			s := background(t, way.env, append([]string{"scheduler", "--scheduler-file", scheduler}, way.args...)...)
			within(t, "the scheduler is ready", func() bool { return strings.Contains(s.log.String(), "\nready") })
			c := &cluster{file: scheduler}
			var err error
			if c.SchedulerFile, err = millrace.ReadSchedulerFile(scheduler); err != nil {
				t.Fatal(err)
			}
			w := background(t, append(way.env, "MILLRACE_ADDRESS="+c.Address), append([]string{"worker", "--workers", "1", "--name", "w", "--memory-limit", "64MiB", "--python", python()},
				way.args...)...)
			client := c.dial(t)
			active(t, client, "w-0")
			look := func(code string) string {
				f, err := client.Submit(soon(t), millrace.Python("builtins:eval"), millrace.Args(code))
				if err != nil {
					t.Fatal(err)
				}
				text, err := millrace.Get[string](soon(t), f)
				if err != nil {
					t.Fatal(err)
				}
				return text
			}
			for _, pid := range []string{"os.getppid()", fmt.Sprint(w.cmd.Process.Pid), fmt.Sprint(s.cmd.Process.Pid)} {
				for _, what := range []string{"environ", "cmdline"} {
					seen := look(fmt.Sprintf("(lambda os: open(f'/proc/{%s}/%s', errors='replace').read())(__import__('os'))", pid, what))
					if seen == "" || strings.Contains(seen, token) {
						t.Errorf("%s of %s: %q", what, pid, seen)
					}
				}
			}
			own := look("__import__('os').environ['MILLRACE_TOKEN']")
			if own == token || own == "" {
				t.Errorf("the task's own token is %q", own)
			}
			var said bytes.Buffer
			for _, line := range strings.Split(s.log.String(), "\n") {
				if !strings.HasPrefix(line, "token ") { // this line is for people
					said.WriteString(line + "\n")
				}
			}
			if log := cmp.Or(w.log.String(), "nothing") + said.String(); strings.Contains(log, token) {
				t.Errorf("a log has the token:\n%s", log)
			}
			asTask, err := millrace.Dial(soon(t), millrace.WithAddress(c.Address), millrace.WithToken(own), millrace.WithoutLease())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = asTask.Close() }() // it holds nothing
			if err := asTask.Shutdown(soon(t), "stolen"); err == nil || !strings.Contains(err.Error(), "may not call") {
				t.Errorf("Shutdown by a task: %v", err)
			}
		})
	}
}

// A live worker keeps its name: the command that wants the name logs the reason and finally ends
// with it.
func TestWorkerKeepsItsName(t *testing.T) {
	c := startCluster(t, "--workers", "1", "--memory-limit", "64MiB")
	client := c.dial(t)
	before := active(t, client, "host-0")["host-0"]
	second := c.worker(t, "--name", "host")
	within(t, "the log says why it waits", func() bool { return strings.Contains(second.log.String(), "the name is taken by a worker that lives") })
	if code := second.code(t); code != 5 || !strings.HasPrefix(second.lastLine(), "error: host-0 is not started again: the scheduler refuses this worker: ") ||
		!strings.Contains(second.lastLine(), "--name") {
		t.Errorf("exit code %d, at last: %s", code, second.lastLine())
	}
	if after := active(t, client, "host-0")["host-0"]; after.GetIncarnation() != before.GetIncarnation() {
		t.Errorf("before %v, after %v", before, after)
	}
}
