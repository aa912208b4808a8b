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

// looking is a connection whose reading goroutine polls for some time before it blocks: on machines
// with many processors, waking a thread takes as long as a small task.
type looking struct {
	net.Conn
	// raw is nil if the connection has none. Then the reader blocks at once.
	raw syscall.RawConn
	// limit is the adaptive spin limit. Polling happens only while notifications are expected
	// (awaited).
	limit   spin.Limit
	awaited *atomic.Int64
}

func newLooking(conn net.Conn, longest time.Duration, awaited *atomic.Int64) *looking {
	l := &looking{Conn: conn, limit: spin.New(longest), awaited: awaited}
	if c, ok := conn.(syscall.Conn); ok && longest > 0 {
		l.raw, _ = c.SyscallConn() // without raw access it blocks at once
	}
	return l
}

// Read is part of io.Reader.
func (l *looking) Read(p []byte) (n int, err error) {
	begin := time.Now()
	if l.raw != nil && len(p) > 0 {
		// Goroutines that became runnable through the last messages may wait for this thread.
		// Without the yield another thread, which may have to be woken, would have to steal them.
		runtime.Gosched()
		for l.awaited.Load() > 0 && time.Since(begin) < l.limit.Now() {
			if n, err = l.look(p); n > 0 || err != nil {
				l.limit.Waited(time.Since(begin))
				return n, err
			}
		}
	}
	n, err = l.Conn.Read(p)
	l.limit.Waited(time.Since(begin))
	return n, err
}

// look reads without blocking. 0 bytes without an error means that nothing is available.
func (l *looking) look(p []byte) (n int, err error) {
	controlled := l.raw.Control(func(fd uintptr) {
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
