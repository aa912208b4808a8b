package admission

import (
	"net"

	"golang.org/x/sys/unix"
)

// boundUnacknowledged sets the time after which a connection ends if its client acknowledges no
// data. gRPC sets it itself for TCP connections, but it does not recognize our wrapped ones.
func boundUnacknowledged(c net.Conn) {
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return // It is closed.
	}
	// An error is harmless: without the limit, gRPC's keepalive detects such a client later.
	_ = raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(userTimeout.Milliseconds()))
	})
}
