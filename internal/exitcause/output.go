package exitcause

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// lateBytes limits how many bytes are read after the deadline. A pipe usually holds less, but
// another process that inherited the write end may continue to write.
const lateBytes = 1 << 20

// Output is the read end of a pipe to which a process writes. The caller sets its read deadline
// after the process has ended. After the deadline, Read still returns the data in the pipe, but
// does not wait for more. So the last output is not lost, even if it is read late.
type Output struct {
	*os.File
	late int
}

// Read implements io.Reader.
func (o *Output) Read(p []byte) (n int, err error) {
	if n, err = o.File.Read(p); !errors.Is(err, os.ErrDeadlineExceeded) || o.late >= lateBytes {
		return n, err
	}
	pipe, failed := o.SyscallConn()
	if failed != nil {
		return 0, err
	}
	if failed := pipe.Control(func(fd uintptr) { n, _ = unix.Read(int(fd), p) }); failed != nil || n <= 0 {
		return 0, err // the pipe is empty, or all its writers have closed it
	}
	o.late += n
	return n, nil
}
