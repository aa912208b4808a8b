package notify

import (
	"errors"
	"net"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/transfer/ring"
)

// writer sends without blocking its caller: a goroutine writes the bytes that the socket does not
// accept at once. It accepts messages before it has a connection.
type writer struct {
	mu   sync.Mutex
	conn net.Conn
	raw  syscall.RawConn
	// ring, if not nil, takes the messages that fit, before the socket does. wake is the message
	// that wakes the ring's reader. ordered: once a message went by the socket, all later ones do,
	// too.
	ring    *ring.Writer
	wake    []byte
	ordered bool
	// pending has the bytes that are not yet being written. unread counts these and those that the
	// goroutine is writing.
	pending []byte
	unread  int
	// marked: the writer is in the Notifier's dirty list. busy: the goroutine is running.
	marked, busy, closed bool
}

// open sets the connection and its ring, or nil. It returns false if the writer was closed before.
func (w *writer) open(conn net.Conn, out *ring.Writer, wake []byte, ordered bool) bool {
	w.mu.Lock()
	if w.closed {
		w.mu.Unlock()
		return false
	}
	w.conn, w.ring, w.wake, w.ordered = conn, out, wake, ordered
	if before := w.pending; len(before) > 0 {
		w.pending, w.unread = nil, 0
		w.put(before)
	}
	if c, ok := conn.(syscall.Conn); ok {
		w.raw, _ = c.SyscallConn() // without raw access, the goroutine writes everything
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
		_ = w.conn.Close() // wakes blocked readers and writers of the connection
	}
}

// append adds a message and reports whether the writer must be added to the dirty list.
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

// put adds a message to the ring or to pending, and reports whether the socket has something to
// send. REQUIRES: mu is held.
func (w *writer) put(b []byte) bool {
	if w.ring != nil {
		ok, wake := w.ring.Put(b)
		switch {
		case wake:
			b = w.wake
		case ok:
			return false
		case w.ordered:
			w.ring = nil
		}
	}
	w.pending = append(w.pending, b...)
	if w.unread += len(b); w.unread > maxUnread && w.conn != nil {
		_ = w.conn.Close() // the connection's reading goroutine ends it
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

// try writes as much as the socket accepts. REQUIRES: mu is held.
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
		return // the connection is closed
	}
	w.unread -= written
	w.pending = w.pending[:copy(w.pending, w.pending[written:])]
}

// drain writes the pending bytes. It returns when there are none, or when the connection ends.
func (w *writer) drain() {
	var b []byte
	for {
		w.mu.Lock()
		w.unread = max(w.unread-len(b), 0)
		if b, w.pending = w.pending, nil; len(b) == 0 || w.closed {
			_ = w.conn.SetWriteDeadline(time.Time{}) // fails if the connection is closed
			w.busy = false
			w.mu.Unlock()
			return
		}
		conn := w.conn
		w.mu.Unlock()
		_ = conn.SetWriteDeadline(time.Now().Add(writeTimeout)) // fails if the connection is closed
		if _, err := conn.Write(b); err != nil {
			_ = conn.Close() // the connection's reading goroutine ends it
			w.mu.Lock()
			w.busy = false
			w.mu.Unlock()
			return
		}
	}
}
