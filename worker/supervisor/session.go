package supervisor

import (
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// sessionPatience bounds the wait for what was killed: a process that is in the middle of
// giving memory of a device back takes a while.
const sessionPatience = 2 * time.Second

// endSession kills what is left of the session of a worker that has died, and returns
// when nothing of it lives: the kernel ends its executors with it, and the programs that
// tasks started outlive both. An executor has the memory of its worker mapped, so that
// this is not free, and the next worker could not have it, before it has ended. It
// returns what has not, after some patience.
func endSession(leader int) (left []int) {
	pause := 100 * time.Microsecond
	for began := time.Now(); ; pause = min(2*pause, 10*time.Millisecond) {
		// They may be starting others meanwhile.
		if left = members(leader); len(left) == 0 || time.Since(began) > sessionPatience {
			return left
		}
		for _, pid := range left {
			_ = unix.Kill(pid, unix.SIGKILL) // it may have ended just now
		}
		<-time.After(pause)
	}
}

// members are the live processes of a session.
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
		// State, parent, group, session.
		fields := statOf(pid)
		if len(fields) > 3 && fields[3] == strconv.Itoa(leader) && fields[0] != "Z" && fields[0] != "X" {
			found = append(found, pid)
		}
	}
	return found
}

// statOf is what the kernel says of a process behind its name, beginning with its state; nil if it is gone.
func statOf(pid int) []string {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return nil
	}
	// The name, in parentheses, may hold anything.
	line := string(stat)
	return strings.Fields(line[strings.LastIndexByte(line, ')')+1:])
}

// tracing is the state of a process that a debugger has stopped.
const tracing = "t, stopped by a debugger"

// stateOf is the state of a process, for people.
func stateOf(pid int) string {
	fields := statOf(pid)
	if len(fields) == 0 {
		return "unknown"
	}
	switch state := fields[0]; state {
	case "t":
		return tracing
	case "T":
		return "T, stopped by a signal"
	case "D":
		return "D, waiting for a device"
	default:
		return state
	}
}
