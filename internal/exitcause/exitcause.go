// Package exitcause is an Adapter to the kernel: why a process ended, as far as
// the system tells, in numbers and in words. Whoever starts processes asks it.
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

// Cause is how a process ended.
type Cause struct {
	// ExitCode is -1 if a signal ended it.
	ExitCode int
	// Signal is its name, empty if it exited.
	Signal string
	// OutOfMemory: the kernel's OOM killer did it, or it said itself that it got no more memory.
	OutOfMemory bool
	// unsure: no counter of the OOM killer could be read. shared: the one that was read counts the whole machine.
	unsure, shared bool
}

// Unknown is what OOMKills returns where the system does not tell.
const Unknown = ^uint64(0)

// OOMKills counts what the OOM killer has killed in the cgroup of this process, and with version 2 in those below it; where
// neither version tells, on the machine.
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
		// In a container the path may be that of the host: then the root of the mount is ours.
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

// Of describes a process that was waited for. oomBefore is what OOMKills said
// when it was started.
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

// count concludes from what the counter of the OOM killer said before and after.
func (c *Cause) count(before, after uint64, shared bool) {
	c.unsure = before == Unknown || after == Unknown
	c.OutOfMemory = !c.unsure && after > before
	c.shared = shared
}

// String says it in words.
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
