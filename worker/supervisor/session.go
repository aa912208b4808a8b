package supervisor

import (
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// sessionTimeout limits the wait for killed processes. A process that is releasing memory of a
	// device takes some time to end.
	sessionTimeout = 2 * time.Second
	// firstLook and longestLook bound the time between two looks at them, which doubles: most end
	// at once, and a look reads all of /proc.
	firstLook   = 100 * time.Microsecond
	longestLook = 10 * time.Millisecond
)

// endSession kills all processes that are left in the Unix session (setsid) of a worker that has
// died, and waits up to sessionTimeout until none of them lives. The kernel kills the executors
// together with the worker, but programs that tasks started may outlive both. An executor has the
// worker's memory mapped, so this memory is free for the next worker only after the executor has
// ended. endSession returns the processes that live after that time.
func endSession(leader int) (left []int) {
	pause := firstLook
	for began := time.Now(); ; pause = min(2*pause, longestLook) {
		// The processes may start others in the meantime, so the list is read again.
		if left = members(leader); len(left) == 0 || time.Since(began) > sessionTimeout {
			return left
		}
		for _, pid := range left {
			_ = unix.Kill(pid, unix.SIGKILL) // it may have ended just now
		}
		<-time.After(pause)
	}
}

// members returns the live processes of a Unix session; none if /proc cannot be read.
func members(leader int) []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var found []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		// The fields are state, parent, group, session.
		fields := statOf(pid)
		if len(fields) > 3 && fields[3] == strconv.Itoa(leader) && fields[0] != "Z" && fields[0] != "X" {
			found = append(found, pid)
		}
	}
	return found
}

// statOf returns the fields of /proc/PID/stat after the process name, beginning with the state;
// nil if the process is gone.
func statOf(pid int) []string {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return nil
	}
	// The process name, in parentheses, may contain any character.
	line := string(stat)
	return strings.Fields(line[strings.LastIndexByte(line, ')')+1:])
}

// stoppedByDebugger is what stateOf returns for a process that a debugger has stopped.
const stoppedByDebugger = "t, stopped by a debugger"

// stateOf describes the state of a process for people.
func stateOf(pid int) string {
	fields := statOf(pid)
	if len(fields) == 0 {
		return "unknown"
	}
	switch state := fields[0]; state {
	case "t":
		return stoppedByDebugger
	case "T":
		return "T, stopped by a signal"
	case "D":
		return "D, in an uninterruptible wait of the kernel"
	default:
		return state
	}
}
