package herald

import (
	"errors"
	"io"
	"net"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/internal/patience"
)

// looking is a connection whose reader looks for words for a while before it sleeps:
// to be woken takes as long as a small task on machines with many processors.
type looking struct {
	net.Conn
	// raw is nil if the connection has none; then its reader sleeps at once.
	raw syscall.RawConn
	// patience is for how long the next word is looked for, as long as any is awaited.
	patience patience.Patience
	awaited  *atomic.Int64
}

func newLooking(conn net.Conn, spin time.Duration, awaited *atomic.Int64) *looking {
	l := &looking{Conn: conn, patience: patience.New(spin), awaited: awaited}
	if c, ok := conn.(syscall.Conn); ok && spin > 0 {
		l.raw, _ = c.SyscallConn() // without one it sleeps
	}
	return l
}

// Read is part of io.Reader.
func (l *looking) Read(p []byte) (n int, err error) {
	begin := time.Now()
	if l.raw != nil && len(p) > 0 {
		// What the last words have set going may wait for this thread, and would have to be
		// fetched by another one, which may be asleep.
		runtime.Gosched()
		for l.awaited.Load() > 0 && time.Since(begin) < l.patience.Now() {
			if n, err = l.look(p); n > 0 || err != nil {
				l.patience.Waited(time.Since(begin))
				return n, err
			}
		}
	}
	n, err = l.Conn.Read(p)
	l.patience.Waited(time.Since(begin))
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
