package executor

import (
	"errors"
	"os/signal"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// An empty control page would kill the worker by SIGBUS at its first use.
func TestControlPageWithoutRoomIsRefused(t *testing.T) {
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &before); err != nil {
		t.Fatal(err)
	}
	// The kernel counts a memfd as a file, and sends SIGXFSZ when it refuses a larger one.
	signal.Ignore(unix.SIGXFSZ)
	defer signal.Reset(unix.SIGXFSZ)
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: 0, Max: before.Max}); err != nil {
		t.Fatal(err)
	}
	p, err := newPage()
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &before); err != nil {
		t.Fatal(err)
	}
	if err == nil {
		p.close()
	}
	if !errors.Is(err, unix.EFBIG) || !strings.Contains(err.Error(), "ulimit -f") {
		t.Errorf("got %v", err)
	}
}
