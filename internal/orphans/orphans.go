// Package orphans is an Adapter to the kernel: it makes this process the subreaper of its
// descendants. When a descendant ends, the processes that it leaves behind become children of this
// process instead of the system's first process, wherever they moved themselves (fork, setsid,
// exec). So this process can end and reap them.
//
// A child of our own is distinguished from an orphan by Start, or by its process group: processes
// that are started by other means must be in the group of this process.
package orphans

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// ours is the prefix of environment variables that only processes of this program and their
// descendants have. The first process of a container also gets orphans of other programs.
// It recognises them by this prefix, and leaves them alone.
const ours = "MILLRACE_"

const (
	// emptyTries is the number of attempts to read the environment of a process that seems to have
	// none, with emptyPause between them.
	emptyTries = 20
	emptyPause = 500 * time.Microsecond
)

var (
	// keeping guards holders and end. holders is the number of calls of Keep that were not
	// released; the last release calls end.
	keeping sync.Mutex
	holders int
	end     func()

	// starting is held for writing while children are examined. So no child is between its start
	// and its entry in started at that time.
	starting sync.RWMutex
	mu       sync.Mutex
	// started are the children that were started with Start, and that other goroutines wait for.
	// Guarded by mu.
	started = make(map[int]bool)
	// before are the children that existed at the first Keep, with their start times: a program
	// that replaced itself by exec keeps its children. Guarded by mu.
	before map[int]string
)

// Keep makes this process the parent of the processes that its descendants leave behind, and reaps
// those that have ended. It does so until release is called; with several calls of Keep, until the
// last release.
func Keep() (release func(), err error) {
	keeping.Lock()
	defer keeping.Unlock()
	if holders == 0 {
		if end, err = begin(); err != nil {
			return nil, err
		}
	}
	holders++
	return sync.OnceFunc(func() {
		keeping.Lock()
		defer keeping.Unlock()
		if holders--; holders == 0 {
			end()
		}
	}), nil
}

func begin() (end func(), err error) {
	mu.Lock()
	before = make(map[int]string)
	for _, c := range children() {
		if !started[c.pid] {
			before[c.pid] = c.began
		}
	}
	mu.Unlock()
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, fmt.Errorf("orphans: become the parent of what descendants leave behind: %w", err)
	}
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, unix.SIGCHLD)
	stop, gone := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(gone)
		for {
			select {
			case <-ended:
				look(func(int) bool { return false })
			case <-stop:
				return
			}
		}
	}()
	return func() {
		signal.Stop(ended)
		close(stop)
		<-gone
		_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0) // it could be set
	}, nil
}

// Start calls start, which starts the command c. Only the caller of Start waits for this process,
// until it calls Waited; this package does not reap it.
func Start(c *exec.Cmd, start func() error) error {
	starting.RLock()
	defer starting.RUnlock()
	err := start()
	if err == nil {
		mu.Lock()
		started[c.Process.Pid] = true
		mu.Unlock()
	}
	return err
}

// Waited says that a command has been waited for.
func Waited(c *exec.Cmd) {
	mu.Lock()
	defer mu.Unlock()
	delete(started, c.Process.Pid)
}

// Marked reports whether the environment with which a process was started contains a variable that
// begins with the given text ("NAME=" and the beginning of the value; a zero byte marks the end of
// the value). Descendants inherit such a variable, unless a process in between has changed it.
func Marked(pid int, variable string) bool {
	// In the middle of an exec, a process seems to have no environment.
	for range emptyTries {
		environment, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "environ"))
		if err != nil {
			return false // it has ended, or we may not read it
		}
		if len(environment) > 0 {
			return bytes.Contains(append([]byte{0}, environment...), append([]byte{0}, variable...))
		}
		<-time.After(emptyPause)
	}
	return false
}

// Any is an argument for End: it selects all orphans, except for those that the first process of a
// container gets from other programs.
func Any(pid int) bool { return os.Getpid() != 1 || Marked(pid, ours) }

// End kills the orphans that meant selects, and the processes that become orphans by that,
// and returns when they are gone. It returns those that are not gone after timeout, for example
// because the kernel is still working for them. REQUIRES: Keep was called.
func End(meant func(pid int) bool, timeout time.Duration) (left []int) {
	// A process that is ending has no environment any more, so it is remembered by its pid.
	killed := make(map[int]bool)
	again := func(pid int) bool { return killed[pid] || meant(pid) }
	pause := 50 * time.Microsecond
	for began := time.Now(); ; pause = min(2*pause, 10*time.Millisecond) {
		alive, reaped := look(again)
		if len(alive) == 0 && !reaped || time.Since(began) > timeout {
			return alive
		}
		for _, pid := range alive {
			killed[pid] = true
			_ = unix.Kill(pid, unix.SIGKILL) // only we can reap it, so its pid cannot have been reused
		}
		<-time.After(pause)
	}
}

// look reaps the orphans that have ended, and returns those of the others that meant selects.
func look(meant func(pid int) bool) (alive []int, reaped bool) {
	starting.Lock()
	defer starting.Unlock()
	mu.Lock()
	defer mu.Unlock()
	own := strconv.Itoa(unix.Getpgrp())
	for _, c := range children() {
		if started[c.pid] || c.group == own {
			continue
		}
		if began, known := before[c.pid]; known && began == c.began {
			continue
		}
		switch {
		case c.state == "Z" || c.state == "X":
			for unix.Waitid(unix.P_PID, c.pid, nil, unix.WEXITED|unix.WNOHANG, nil) == unix.EINTR {
				continue
			}
			reaped = true
		case meant(c.pid):
			alive = append(alive, c.pid)
		}
	}
	return alive, reaped
}

// child is a child process of this process. began is its start time.
type child struct {
	pid                 int
	state, group, began string
}

// children returns the child processes of all threads of this process.
func children() (found []child) {
	pids, _ := filepath.Glob("/proc/self/task/*/children") // the pattern is valid
	var numbers []string
	for _, file := range pids {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // the thread has ended, and its children belong to another one
		}
		numbers = append(numbers, strings.Fields(string(text))...)
	}
	if len(pids) == 0 { // a kernel without CONFIG_PROC_CHILDREN
		numbers, _ = filepath.Glob("/proc/[0-9]*") // the pattern is valid
	}
	self := strconv.Itoa(os.Getpid())
	for _, number := range numbers {
		pid, err := strconv.Atoi(filepath.Base(number))
		if err != nil {
			continue
		}
		stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
		if err != nil {
			continue
		}
		// The process name, in parentheses, may contain any character. The fields after it are
		// state, parent, group, ..., and the start time as the 20th.
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		if len(fields) > 19 && fields[1] == self {
			found = append(found, child{pid, fields[0], fields[2], fields[19]})
		}
	}
	return found
}
