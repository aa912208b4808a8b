package ucx

import (
	"errors"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// process names a process of this host by its PID and the PID namespace. 0: unknown.
type process struct {
	pid       uint32
	namespace uint64
}

var thisProcess = sync.OnceValue(func() process {
	var st unix.Stat_t
	if err := unix.Stat("/proc/self/ns/pid", &st); err != nil {
		return process{} // then peers cannot watch this process
	}
	return process{uint32(os.Getpid()), st.Ino}
})

// watch opens a pidfd, which reports the end of the process. It returns nil if that is not
// possible: the process has ended, or is in another PID namespace.
func (p process) watch() *watched {
	own := thisProcess()
	if p.pid == 0 || p.namespace == 0 || p.namespace != own.namespace {
		return nil
	}
	fd, err := unix.PidfdOpen(int(p.pid), 0)
	if err != nil {
		return nil
	}
	return &watched{fd}
}

// watched is a process with an open pidfd. A nil *watched never reports an end.
type watched struct{ fd int }

// ended waits for at most wait for the end of the process, and says whether it has ended.
func (w *watched) ended(wait time.Duration) bool {
	if w == nil {
		return false
	}
	fds := []unix.PollFd{{Fd: int32(w.fd), Events: unix.POLLIN}}
	for until := time.Now().Add(wait); ; {
		n, err := unix.Poll(fds, int(max(time.Until(until), 0).Milliseconds()))
		if !errors.Is(err, unix.EINTR) {
			return n > 0 && fds[0].Revents&unix.POLLIN != 0
		}
	}
}

func (w *watched) close() {
	if w != nil {
		_ = unix.Close(w.fd) // nothing was written
	}
}
