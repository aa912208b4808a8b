package admission

import (
	"net"

	"golang.org/x/sys/unix"
)

// boundUnacknowledged ends a connection whose client acknowledges nothing. gRPC does it by itself for connections that it
// knows; ours are wrapped.
func boundUnacknowledged(c net.Conn) {
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return // It is closed.
	}
	_ = raw.Control(func(fd uintptr) { // Without it the keepalive finds out, later.
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(userTimeout.Milliseconds()))
	})
}
