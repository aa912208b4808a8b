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
