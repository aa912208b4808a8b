// Package exitcause is an Adapter to the kernel: it finds out why a process ended, as far as the
// system reveals it, and describes it as numbers and as text. It is used by the packages that start
// processes.
package exitcause

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Cause describes how a process ended.
type Cause struct {
	// ExitCode is -1 if a signal ended the process.
	ExitCode int
	// Signal is the name of the signal, empty if the process exited.
	Signal string
	// OutOfMemory: the kernel's OOM killer killed the process, or the process reported itself that
	// it could not get memory (its supervisor then sets the field).
	OutOfMemory bool
	// unsure: no counter of the OOM killer could be read. shared: the counter that was read counts
	// the whole machine.
	unsure, shared bool
}

// Unknown is the result of OOMKills if no counter can be read.
const Unknown = ^uint64(0)

// OOMKills returns the number of processes that the OOM killer has killed in the cgroup of this
// process (with cgroup version 2, including the cgroups below it). If neither cgroup version
// provides a counter, it returns the number for the whole machine.
func OOMKills() uint64 {
	n, _ := oomKills("/sys/fs/cgroup", "/proc")
	return n
}

func oomKills(cgroups, proc string) (n uint64, shared bool) {
	self, err := os.ReadFile(filepath.Join(proc, "self/cgroup"))
	if err != nil {
		self = nil // no cgroups here
	}
	for line := range strings.Lines(string(self)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		base, name := cgroups, "memory.events"
		if slices.Contains(strings.Split(parts[1], ","), "memory") {
			base, name = filepath.Join(cgroups, "memory"), "memory.oom_control"
		} else if parts[1] != "" {
			continue
		}
		// In a container the path may be that of the host. In that case, the root of the mount is
		// our cgroup.
		for _, dir := range []string{parts[2], ""} {
			if n, ok := counter(filepath.Join(base, dir, name)); ok {
				return n, false
			}
		}
	}
	if n, ok := counter(filepath.Join(proc, "vmstat")); ok {
		return n, true
	}
	return Unknown, false
}

// counter reads the number of kills from a file of names and numbers.
func counter(file string) (n uint64, ok bool) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(text)) {
		if v, found := strings.CutPrefix(strings.TrimSpace(line), "oom_kill "); found {
			n, err := strconv.ParseUint(v, 10, 64)
			return n, err == nil
		}
	}
	return 0, false
}

// Of describes a process that was waited for. oomBefore is the value of OOMKills when the process
// was started.
func Of(state *os.ProcessState, oomBefore uint64) Cause {
	c := Cause{ExitCode: state.ExitCode()}
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		c.ExitCode = -1
		if c.Signal = unix.SignalName(status.Signal()); c.Signal == "" {
			c.Signal = fmt.Sprintf("signal %d", status.Signal())
		}
		if status.Signal() == syscall.SIGKILL {
			after, shared := oomKills("/sys/fs/cgroup", "/proc")
			c.count(oomBefore, after, shared)
		}
	}
	return c
}

// count decides from the counter of the OOM killer before and after.
func (c *Cause) count(before, after uint64, shared bool) {
	c.unsure = before == Unknown || after == Unknown
	c.OutOfMemory = !c.unsure && after > before
	c.shared = shared
}

// String describes the cause in words.
func (c Cause) String() string {
	switch {
	case c.OutOfMemory && c.Signal != "" && c.shared:
		return "killed by " + c.Signal + ", by the kernel's OOM killer as it seems: meanwhile it has killed on this machine"
	case c.OutOfMemory && c.Signal != "":
		return "killed by the kernel's OOM killer (" + c.Signal + ")"
	case c.Signal == "SIGKILL" && c.unsure:
		return "killed by SIGKILL (perhaps by the OOM killer: no counter of it can be read here)"
	case c.Signal == "SIGKILL":
		return "killed by SIGKILL (not by the OOM killer, as far as its counter tells)"
	case c.Signal != "":
		return "killed by " + c.Signal
	}
	return fmt.Sprintf("exited with code %d", c.ExitCode)
}
