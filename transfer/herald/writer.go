package herald

import (
	"errors"
	"net"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/internal/ring"
)

// writer sends without waiting: what the socket does not take at once, a goroutine
// writes. It may be filled before it has a connection.
type writer struct {
	mu   sync.Mutex
	conn net.Conn
	raw  syscall.RawConn
	// ring, if there is one, takes what fits before the socket does, and call is what wakes its reader. ordered: once
	// something went by the socket all that follows does.
	ring    *ring.Writer
	call    []byte
	ordered bool
	// pending is what was not written. unread counts it, and what the goroutine is writing.
	pending []byte
	unread  int
	// marked: it is in the herald's list. busy: a goroutine writes.
	marked, busy, closed bool
}

// open gives it its connection, and the ring beside it or nil, and says whether it was not closed before.
func (w *writer) open(conn net.Conn, out *ring.Writer, call []byte, ordered bool) bool {
	w.mu.Lock()
	if w.closed {
		w.mu.Unlock()
		return false
	}
	w.conn, w.ring, w.call, w.ordered = conn, out, call, ordered
	if before := w.pending; len(before) > 0 {
		w.pending, w.unread = nil, 0
		w.put(before)
	}
	if c, ok := conn.(syscall.Conn); ok {
		w.raw, _ = c.SyscallConn() // without one, the goroutine writes everything
	}
	w.mu.Unlock()
	w.flush()
	return true
}

func (w *writer) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed, w.pending, w.unread, w.ring = true, nil, 0, nil
	if w.conn != nil {
		_ = w.conn.Close() // whoever reads or writes notices
	}
}

// append says whether it is to be marked for flushing.
func (w *writer) append(b []byte) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed || !w.put(b) {
		return false
	}
	first := !w.marked
	w.marked = true
	return first
}

// put says whether something is pending for the socket. REQUIRES: mu is held.
func (w *writer) put(b []byte) bool {
	if w.ring != nil {
		ok, wake := w.ring.Put(b)
		switch {
		case wake:
			b = w.call
		case ok:
			return false
		case w.ordered:
			w.ring = nil
		}
	}
	w.pending = append(w.pending, b...)
	if w.unread += len(b); w.unread > maxUnread && w.conn != nil {
		_ = w.conn.Close() // its reader goroutine ends it
	}
	return true
}

func (w *writer) backlog() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.unread
}

func (w *writer) flush() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.marked = false
	if w.closed || w.busy || w.conn == nil || len(w.pending) == 0 {
		return
	}
	if w.raw != nil {
		w.try()
	}
	if len(w.pending) > 0 {
		w.busy = true
		go w.drain()
	}
}

// try writes what the socket takes. REQUIRES: mu is held.
func (w *writer) try() {
	written := 0
	err := w.raw.Write(func(fd uintptr) bool {
		for {
			n, err := unix.Write(int(fd), w.pending)
			if errors.Is(err, unix.EINTR) {
				continue
			}
			written = max(n, 0)
			return true
		}
	})
	if err != nil {
		return // it is closed
	}
	w.unread -= written
	w.pending = w.pending[:copy(w.pending, w.pending[written:])]
}

// drain writes what is left. It ends with the connection, at the latest.
func (w *writer) drain() {
	var b []byte
	for {
		w.mu.Lock()
		w.unread = max(w.unread-len(b), 0)
		if b, w.pending = w.pending, nil; len(b) == 0 || w.closed {
			_ = w.conn.SetWriteDeadline(time.Time{}) // it fails if it is closed
			w.busy = false
			w.mu.Unlock()
			return
		}
		conn := w.conn
		w.mu.Unlock()
		_ = conn.SetWriteDeadline(time.Now().Add(writeTimeout)) // it fails if it is closed
		if _, err := conn.Write(b); err != nil {
			_ = conn.Close() // its reader goroutine ends it
			w.mu.Lock()
			w.busy = false
			w.mu.Unlock()
			return
		}
	}
}
