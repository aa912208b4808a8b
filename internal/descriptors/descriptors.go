// Package descriptors is an Adapter to the kernel: it controls which file descriptors child
// processes inherit, and passes descriptors between processes.
package descriptors

import (
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// CloseOnExec marks all descriptors of this process except the standard ones, so that programs that
// are started from now on do not inherit them. Go marks its own descriptors, but C libraries do
// not: a child that inherits a UCX socket makes a dead worker look alive to its peers.
// Call CloseOnExec just before each start of a program. Files in exec.Cmd.ExtraFiles are passed on
// in any case.
func CloseOnExec() error {
	err := unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC)
	if err == nil {
		return nil
	}
	if !errors.Is(err, unix.ENOSYS) && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.EPERM) {
		return fmt.Errorf("descriptors: close_range: %w", err)
	}
	// Kernels before Linux 5.11, and sandboxes that do not allow the call.
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return fmt.Errorf("descriptors: list the open ones: %w", err)
	}
	for _, e := range entries {
		// The list includes the directory's own descriptor, which is closed by now.
		if n, err := strconv.Atoi(e.Name()); err == nil && n > 2 {
			unix.CloseOnExec(n)
		}
	}
	return nil
}
