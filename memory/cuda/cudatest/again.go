package cudatest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"
)

const (
	// lastPID is the kernel's record of the last pid. The next process gets the pid after it.
	lastPID = "/proc/sys/kernel/ns_last_pid"
	// pidTries bounds the attempts to get a pid, because other programs start processes, too.
	pidTries = 500
	// fixedAddresses is the kernel's ADDR_NO_RANDOMIZE.
	fixedAddresses = 0x0040000
)

// StartAgain starts a process that could be confused with an earlier one. Its addresses are not
// random. If the system allows this process to choose a pid, the new process has the given pid,
// whose process must have ended; 0 means any pid. make returns a new command for each attempt. same
// says whether the pid is as requested.
func StartAgain(pid int, make func() (*exec.Cmd, error)) (cmd *exec.Cmd, same bool, err error) {
	// The child inherits the personality of the thread that starts it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before, _, errno := unix.Syscall(unix.SYS_PERSONALITY, 0xffffffff, 0, 0)
	if errno != 0 {
		return nil, false, fmt.Errorf("cudatest: personality: %w", errno)
	}
	if _, _, errno := unix.Syscall(unix.SYS_PERSONALITY, before|fixedAddresses, 0, 0); errno != 0 {
		return nil, false, fmt.Errorf("cudatest: personality: %w", errno)
	}
	defer func() {
		if _, _, errno := unix.Syscall(unix.SYS_PERSONALITY, before, 0, 0); errno != 0 {
			err = errors.Join(err, errno)
		}
	}()
	for try := 0; ; try++ {
		if cmd, err = make(); err != nil {
			return nil, false, err
		}
		may := pid != 0 && os.WriteFile(lastPID, []byte(strconv.Itoa(pid-1)), 0) == nil
		if err := cmd.Start(); err != nil {
			return nil, false, fmt.Errorf("cudatest: %w", err)
		}
		if same := cmd.Process.Pid == pid; same || !may || try == pidTries {
			return cmd, same, nil
		}
		_ = cmd.Process.Kill() // another process got the pid
		_ = cmd.Wait()
	}
}
