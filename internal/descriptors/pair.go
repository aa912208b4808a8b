package descriptors

import (
	"errors"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// Pair returns the two ends of a stream connection. The caller keeps ours, gives theirs as an
// inherited file to a process that it starts, and closes both.
func Pair() (ours *net.UnixConn, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	own, theirs := os.NewFile(uintptr(fds[0]), "ours"), os.NewFile(uintptr(fds[1]), "theirs")
	conn, err := net.FileConn(own)
	if err := errors.Join(err, own.Close()); err != nil { // conn has a duplicate of own
		return nil, nil, errors.Join(err, theirs.Close())
	}
	return conn.(*net.UnixConn), theirs, nil
}
