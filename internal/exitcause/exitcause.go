// Package exitcause is an Adapter to the kernel: why a process ended, as far as
// the system tells, in numbers and in words. Whoever starts processes asks it.
package exitcause

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Cause is how a process ended.
type Cause struct {
	// ExitCode is -1 if a signal ended it.
	ExitCode int
	// Signal is its name, empty if it exited.
	Signal string
	// OutOfMemory: the kernel's OOM killer did it.
	OutOfMemory bool
}

// OOMKills counts what the OOM killer has killed in the cgroup of this process
// and those below it. It returns 0 where the system does not tell.
func OOMKills() uint64 {
	path := "/sys/fs/cgroup"
	if b, err := os.ReadFile("/proc/self/cgroup"); err == nil {
		for line := range strings.Lines(string(b)) {
			if rest, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
				path = filepath.Join(path, rest)
			}
		}
	}
	b, err := os.ReadFile(filepath.Join(path, "memory.events"))
	if err != nil {
		return 0
	}
	lines := bufio.NewScanner(bytes.NewReader(b))
	for lines.Scan() {
		if n, ok := strings.CutPrefix(lines.Text(), "oom_kill "); ok {
			v, err := strconv.ParseUint(n, 10, 64)
			if err != nil {
				return 0
			}
			return v
		}
	}
	return 0
}

// Of describes a process that was waited for. oomBefore is what OOMKills said
// when it was started.
func Of(state *os.ProcessState, oomBefore uint64) Cause {
	c := Cause{ExitCode: state.ExitCode()}
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		c.ExitCode = -1
		if c.Signal = unix.SignalName(status.Signal()); c.Signal == "" {
			c.Signal = fmt.Sprintf("signal %d", status.Signal())
		}
		c.OutOfMemory = status.Signal() == syscall.SIGKILL && OOMKills() > oomBefore
	}
	return c
}

// String says it in words.
func (c Cause) String() string {
	switch {
	case c.OutOfMemory:
		return "killed by the kernel's OOM killer (SIGKILL)"
	case c.Signal == "SIGKILL":
		return "killed by SIGKILL (not by the OOM killer, as far as its counter tells)"
	case c.Signal != "":
		return "killed by " + c.Signal
	}
	return fmt.Sprintf("exited with code %d", c.ExitCode)
}
