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
	// lastPID is where the kernel takes what comes before the next pid.
	lastPID = "/proc/sys/kernel/ns_last_pid"
	// pidTries bounds the attempts to get a pid: others start processes, too.
	pidTries = 500
	// fixedAddresses is the kernel's ADDR_NO_RANDOMIZE.
	fixedAddresses = 0x0040000
)

// StartAgain starts a process that could be taken for an earlier one: its addresses are
// not random and, where the system lets this process choose, it has that one's pid,
// which must have ended; 0 is any. make returns a new command each time. It says
// whether the pid is as wanted.
func StartAgain(pid int, make func() (*exec.Cmd, error)) (cmd *exec.Cmd, same bool, err error) {
	// The child has the personality of the thread that starts it.
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
		_ = cmd.Process.Kill() // another was quicker
		_ = cmd.Wait()
	}
}
