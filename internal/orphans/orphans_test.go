package orphans_test

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/orphans"
)

// patience is the longest time that a loaded machine may take.
const patience = 5 * time.Minute

func keep(t *testing.T) {
	t.Helper()
	release, err := orphans.Keep()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(release)
}

// there reports whether a process exists, even if it has ended and was not reaped.
func there(pid int) bool {
	_, err := os.Stat(fmt.Sprint("/proc/", pid))
	return err == nil
}

// sleeper starts a program in a session of its own that is a child of this process.
func sleeper(t *testing.T, start func(*exec.Cmd) error) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("/bin/sleep", "1000")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := start(cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()         // it was killed
	})
	return cmd
}

// orphan returns the pid of a program whose parent has ended, with a variable in its environment.
func orphan(t *testing.T, variable, command string) int {
	t.Helper()
	cmd := exec.Command("/bin/sh", "-c", "setsid sh -c 'echo $$ >&3; exec "+command+" 3>&-' & exit")
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	cmd.Env, cmd.ExtraFiles = append(os.Environ(), variable), []*os.File{w}
	err = cmd.Run()
	_ = w.Close() // the programs have it
	if err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(r).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		t.Fatal(err)
	}
	// A program has no environment for a moment while it replaces the shell.
	name, _, _ := strings.Cut(command, " ")
	for limit := time.Now().Add(patience); there(pid); time.Sleep(time.Millisecond) {
		arguments, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)) // it may have ended
		if strings.HasPrefix(string(arguments), name+"\x00") && orphans.Marked(pid, variable) {
			break
		}
		if time.Now().After(limit) {
			t.Fatalf("%d does not become %s", pid, command)
		}
	}
	return pid
}

func TestOrphansThatAreMeantEnd(t *testing.T) {
	before := sleeper(t, (*exec.Cmd).Start)
	keep(t)
	mine := sleeper(t, func(c *exec.Cmd) error { return orphans.Start(c, c.Start) })
	defer orphans.Waited(mine)
	one, other := orphan(t, "MARK=1", "sleep 1000"), orphan(t, "MARK=12", "sleep 1000")
	marked := func(variable string) func(int) bool {
		return func(pid int) bool { return orphans.Marked(pid, variable) }
	}
	if left := orphans.End(marked("MARK=1\x00"), patience); len(left) > 0 || there(one) {
		t.Errorf("%v are left of %d", left, one)
	}
	if !there(other) {
		t.Error("an orphan was ended that was not meant")
	}
	if left := orphans.End(marked("MARK="), patience); len(left) > 0 || there(other) {
		t.Errorf("%v are left of %d", left, other)
	}
	if left := orphans.End(func(int) bool { return true }, patience); len(left) > 0 {
		t.Errorf("%v are left of nothing", left)
	}
	for _, c := range []*exec.Cmd{before, mine} {
		if c.Process.Signal(syscall.Signal(0)) != nil {
			t.Errorf("%d was no orphan, and was ended", c.Process.Pid)
		}
	}
}

func TestOrphansThatHaveEndedAreReaped(t *testing.T) {
	keep(t)
	keep(t) // two holders at the same time
	pid := orphan(t, "A=b", "true")
	for limit := time.Now().Add(patience); there(pid); time.Sleep(time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatalf("%d stays", pid)
		}
	}
}
