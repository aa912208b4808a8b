package exitcause

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// lateBytes bounds what is read after the deadline: no pipe holds more, but somebody who inherited it may go on writing.
const lateBytes = 1 << 20

// Output is the reading end of a pipe that a process writes to. Past its read deadline, which whoever saw the process end
// sets, it gives what the pipe holds but waits no more: last words count, however late their reader is.
type Output struct {
	*os.File
	late int
}

// Read is part of io.Reader.
func (o *Output) Read(p []byte) (n int, err error) {
	if n, err = o.File.Read(p); !errors.Is(err, os.ErrDeadlineExceeded) || o.late >= lateBytes {
		return n, err
	}
	pipe, failed := o.SyscallConn()
	if failed != nil {
		return 0, err
	}
	if failed := pipe.Control(func(fd uintptr) { n, _ = unix.Read(int(fd), p) }); failed != nil || n <= 0 {
		return 0, err // it is empty, or closed
	}
	o.late += n
	return n, nil
}
