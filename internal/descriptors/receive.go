package descriptors

import (
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// Receive reads from a socket once. It returns the descriptors that came with the first byte,
// as files with the given name; programs that are started do not inherit them.
// The caller closes them, also after an error. If more than most descriptors were sent, Receive
// returns at least most+1 of them, so that the caller can detect it, and the kernel closes the
// others. (The system rounds the room for descriptors up, so there may be one more.)
func Receive(c *net.UnixConn, into []byte, most int, name string) (n int, files []*os.File, err error) {
	const eachBytes = 4
	// There is room for at least one more than allowed, so that an excess is visible.
	control := make([]byte, unix.CmsgSpace((most+1)*eachBytes))
	n, controlBytes, _, _, err := c.ReadMsgUnix(into, control)
	if err != nil {
		return 0, nil, err // n is -1 then.
	}
	messages, err := unix.ParseSocketControlMessage(control[:controlBytes])
	if err != nil {
		return n, nil, os.NewSyscallError("recvmsg", err)
	}
	for i := range messages {
		fds, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			continue // it contains something else
		}
		for _, fd := range fds {
			unix.CloseOnExec(fd)
			files = append(files, os.NewFile(uintptr(fd), name))
		}
	}
	return n, files, nil
}
