package descriptors

import (
	"errors"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// Pair returns a connection: our end of it, and the end for a process that will be started with
// theirs as one of its files. The caller closes both.
func Pair() (ours *net.UnixConn, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	own, theirs := os.NewFile(uintptr(fds[0]), "ours"), os.NewFile(uintptr(fds[1]), "theirs")
	conn, err := net.FileConn(own)
	if err := errors.Join(err, own.Close()); err != nil { // FileConn has a duplicate
		return nil, nil, errors.Join(err, theirs.Close())
	}
	return conn.(*net.UnixConn), theirs, nil
}
