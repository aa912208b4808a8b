package supervisor

import (
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// endSession kills what is left of the session of a worker that has died: the
// kernel ends its executors with it, and the programs that tasks started outlive
// both.
func endSession(leader int) {
	// They may be starting others meanwhile.
	for range 10 {
		left := members(leader)
		if len(left) == 0 {
			return
		}
		for _, pid := range left {
			_ = unix.Kill(pid, unix.SIGKILL) // it may have ended just now
		}
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
		stat, err := os.ReadFile("/proc/" + e.Name() + "/stat")
		if err != nil {
			continue
		}
		// The name, in parentheses, may hold anything. Behind it: state, parent,
		// group, session.
		line := string(stat)
		fields := strings.Fields(line[strings.LastIndexByte(line, ')')+1:])
		if len(fields) > 3 && fields[3] == strconv.Itoa(leader) && fields[0] != "Z" && fields[0] != "X" {
			found = append(found, pid)
		}
	}
	return found
}
