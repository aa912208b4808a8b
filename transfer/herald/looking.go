package herald

import (
	"errors"
	"io"
	"net"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// looking is a connection whose reader looks for words for a while before it sleeps:
// to be woken takes as long as a small task on machines with many processors.
type looking struct {
	net.Conn
	// raw is nil if the connection has none; then its reader sleeps at once.
	raw syscall.RawConn
	// spin is how long after the last word is looked for the next, as long as any is awaited.
	spin    time.Duration
	awaited *atomic.Int64
	last    time.Time
}

func newLooking(conn net.Conn, spin time.Duration, awaited *atomic.Int64) *looking {
	l := &looking{Conn: conn, spin: spin, awaited: awaited}
	if c, ok := conn.(syscall.Conn); ok && spin > 0 {
		l.raw, _ = c.SyscallConn() // without one it sleeps
	}
	return l
}

// Read is part of io.Reader.
func (l *looking) Read(p []byte) (n int, err error) {
	if l.raw != nil && len(p) > 0 {
		for l.awaited.Load() > 0 && time.Since(l.last) < l.spin {
			if n, err = l.look(p); n > 0 || err != nil {
				l.last = time.Now()
				return n, err
			}
		}
	}
	n, err = l.Conn.Read(p)
	l.last = time.Now()
	return n, err
}

// look reads what is there; nothing is neither an error nor the end.
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
