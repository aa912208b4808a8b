// Package orphans is an Adapter to the kernel: what descendants of this process leave behind when they end, wherever
// they moved themselves (fork, setsid, exec), becomes a child of this process instead of the system's first one,
// so that it can be ended and reaped.
//
// A process of ours is told from an orphan by Start, or by its process group: processes that are started
// by other means must be in the group of this process.
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

// ours names variables of the environment that only processes of this program and their descendants have. The first process
// of a container gets orphans of others as well, and leaves those alone.
const ours = "MILLRACE_"

const (
	// emptyTries, with emptyPause between them, are how often a process without an environment is looked at.
	emptyTries = 20
	emptyPause = 500 * time.Microsecond
)

var (
	// keeping guards holders, which counts Keep without its release, and end, which the last of them calls.
	keeping sync.Mutex
	holders int
	end     func()

	// starting is held for writing while children are looked at: none is between its start and its entry in started.
	starting sync.RWMutex
	mu       sync.Mutex
	// started are the children that others wait for, by Start. Guarded by mu.
	started = make(map[int]bool)
	// before are the children that were there when the first holder came, with when they began: a program that
	// becomes another one keeps them. Guarded by mu.
	before map[int]string
)

// Keep makes this process the parent of what its descendants leave behind, and reaps what of that has ended, until release is
// called, by the last one if there are several.
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

// Start calls start, which starts a command. Nobody but its caller waits for that until Waited is called.
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

// Marked says whether a process was started, at whatever distance, with a variable in its environment that begins so ("NAME=" and
// what follows; a zero byte ends it), unless one in between has changed that.
func Marked(pid int, variable string) bool {
	// In the middle of an exec a process seems to have no environment.
	for range emptyTries {
		environment, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "environ"))
		if err != nil {
			return false // it has ended, or is not ours to look at
		}
		if len(environment) > 0 {
			return bytes.Contains(append([]byte{0}, environment...), append([]byte{0}, variable...))
		}
		<-time.After(emptyPause)
	}
	return false
}

// Any is for End: all orphans, but for those that the first process of a container gets from others.
func Any(pid int) bool { return os.Getpid() != 1 || Marked(pid, ours) }

// End kills orphans that are meant, with what becomes an orphan by that, and returns when they are gone. It returns those
// that are not after some patience: the kernel may have work with them. REQUIRES: Keep.
func End(meant func(pid int) bool, patience time.Duration) (left []int) {
	// One that is ending has no environment any more.
	killed := make(map[int]bool)
	again := func(pid int) bool { return killed[pid] || meant(pid) }
	pause := 50 * time.Microsecond
	for began := time.Now(); ; pause = min(2*pause, 10*time.Millisecond) {
		alive, reaped := look(again)
		if len(alive) == 0 && !reaped || time.Since(began) > patience {
			return alive
		}
		for _, pid := range alive {
			killed[pid] = true
			_ = unix.Kill(pid, unix.SIGKILL) // it cannot be reaped by another: its number is its own
		}
		<-time.After(pause)
	}
}

// look reaps the orphans that have ended, and returns those of the others that are meant.
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

// child is one of this process's.
type child struct {
	pid                 int
	state, group, began string
}

// children are those of this process, of all its threads.
func children() (found []child) {
	pids, _ := filepath.Glob("/proc/self/task/*/children") // the pattern is good
	var numbers []string
	for _, file := range pids {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // the thread has ended, and its children are another one's
		}
		numbers = append(numbers, strings.Fields(string(text))...)
	}
	if len(pids) == 0 { // a kernel without CONFIG_PROC_CHILDREN
		numbers, _ = filepath.Glob("/proc/[0-9]*") // the pattern is good
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
		// The name, in parentheses, may hold anything. Behind it: state, parent, group, ..., and when it began as the 20th.
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		if len(fields) > 19 && fields[1] == self {
			found = append(found, child{pid, fields[0], fields[2], fields[19]})
		}
	}
	return found
}
