package notify

import (
	"errors"
	"io"
	"net"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/internal/spin"
)

// pollingConn is a connection whose reading goroutine polls for some time before it blocks: on
// machines with many processors, waking a thread takes as long as a small task.
type pollingConn struct {
	net.Conn
	// raw is nil if the connection has none. Then the reader blocks at once.
	raw syscall.RawConn
	// limit is the adaptive spin limit. Polling happens only while notifications are expected
	// (expected).
	limit    spin.Limit
	expected *atomic.Int64
}

func newPollingConn(conn net.Conn, longest time.Duration, expected *atomic.Int64) *pollingConn {
	l := &pollingConn{Conn: conn, limit: spin.New(longest), expected: expected}
	if c, ok := conn.(syscall.Conn); ok && longest > 0 {
		l.raw, _ = c.SyscallConn() // without raw access it blocks at once
	}
	return l
}

// Read is part of io.Reader.
func (c *pollingConn) Read(p []byte) (n int, err error) {
	begin := time.Now()
	if c.raw != nil && len(p) > 0 {
		// Goroutines that became runnable through the last messages may wait for this thread.
		// Without the yield another thread, which may have to be woken, would have to steal them.
		runtime.Gosched()
		for c.expected.Load() > 0 && time.Since(begin) < c.limit.Now() {
			if n, err = c.tryRead(p); n > 0 || err != nil {
				c.limit.Waited(time.Since(begin))
				return n, err
			}
		}
	}
	n, err = c.Conn.Read(p)
	c.limit.Waited(time.Since(begin))
	return n, err
}

// tryRead reads without blocking. 0 bytes without an error means that nothing is available.
func (c *pollingConn) tryRead(p []byte) (n int, err error) {
	controlled := c.raw.Control(func(fd uintptr) {
		n, _, err = unix.Recvfrom(int(fd), p, unix.MSG_DONTWAIT)
		if err == nil && n == 0 {
			err = io.EOF
		}
	})
	switch n = max(n, 0); {
	case controlled != nil:
		return 0, controlled
	case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR):
		return 0, nil
	}
	return n, err
}
