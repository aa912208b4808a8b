package descriptors

import (
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// Receive reads from a socket once, and takes the descriptors that came with the first of the bytes, as files of a name;
// programs that are started do not inherit them. They are the caller's to close, also where there is an error. Of more
// than most, which the caller can tell by their number, the kernel closes some.
func Receive(c *net.UnixConn, into []byte, most int, name string) (n int, files []*os.File, err error) {
	const eachBytes = 4
	// One more has room, so that too many are seen.
	control := make([]byte, unix.CmsgSpace((most+1)*eachBytes))
	n, controlBytes, _, _, err := c.ReadMsgUnix(into, control)
	if err != nil {
		return n, nil, err
	}
	messages, err := unix.ParseSocketControlMessage(control[:controlBytes])
	if err != nil {
		return n, nil, os.NewSyscallError("recvmsg", err)
	}
	for i := range messages {
		fds, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			continue // it carries something else
		}
		for _, fd := range fds {
			unix.CloseOnExec(fd)
			files = append(files, os.NewFile(uintptr(fd), name))
		}
	}
	return n, files, nil
}
