// Package descriptors is an Adapter to the kernel: what children inherit, and
// what other processes pass on.
package descriptors

import (
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// CloseOnExec marks every descriptor of this process, the standard ones
// excepted, so that programs started from now on do not inherit it. Go marks its
// own, but C libraries do not: a child that holds a socket of UCX keeps a dead
// worker looking alive to its peers. Call it just before each start of a
// program; files in exec.Cmd.ExtraFiles are passed on all the same.
func CloseOnExec() error {
	err := unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC)
	if err == nil {
		return nil
	}
	if !errors.Is(err, unix.ENOSYS) && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.EPERM) {
		return fmt.Errorf("descriptors: close_range: %w", err)
	}
	// Before Linux 5.11, and in sandboxes that know no such call.
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return fmt.Errorf("descriptors: list the open ones: %w", err)
	}
	for _, e := range entries {
		// The directory's own descriptor is among them, and closed by now.
		if n, err := strconv.Atoi(e.Name()); err == nil && n > 2 {
			unix.CloseOnExec(n)
		}
	}
	return nil
}
