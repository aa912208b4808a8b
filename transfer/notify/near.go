package notify

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/internal/descriptors"
	"github.com/millrace/millrace/transfer/ring"
)

// A maker that is reached by a unix socket first sends one byte: shared, together with the
// descriptor of two rings, or alone. With rings, messages go into the rings as long as they fit.
// The socket carries the rest, and wakes a peer that does not poll. Notifications may overtake each
// other on these two routes: each is about one object, and either true for ever or the end of the
// subscription. Requests must not: once one went by the socket all later ones do, and the ring is
// emptied before requests from the socket are handled.
const (
	shared byte = 'R'
	alone  byte = 'N'
)

// near is a connection within the host, with its rings.
type near struct {
	// In is guarded by nearby.mu, Out by the connection's writer.
	*ring.End
	conn net.Conn
	// take passes a record to the functions of Config. It returns an error for a malformed record.
	take func(record []byte) error
}

// nearby has all connections with rings, and the number of polling goroutines.
type nearby struct {
	mu sync.Mutex
	// All fields below are guarded by mu. lookers counts the goroutines that poll without being
	// woken.
	all     []*near
	lookers int
}

// Looking announces that the caller polls (calls Look) soon and repeatedly, so that peers need not
// wake this process; or that it stops polling. After announcing the stop, the caller must call Look
// once more: a message may have come just before.
func (h *Herald) Looking(yes bool) {
	h.nearby.mu.Lock()
	defer h.nearby.mu.Unlock()
	was := h.nearby.lookers > 0
	if yes {
		h.nearby.lookers++
	} else {
		h.nearby.lookers--
	}
	if was != (h.nearby.lookers > 0) {
		for _, n := range h.nearby.all {
			h.nearby.tell(n)
		}
	}
}

// tell publishes in a ring whether this side polls. REQUIRES: mu is held.
func (y *nearby) tell(n *near) {
	if y.lookers > 0 {
		n.In.Awake()
	} else {
		n.In.Asleep()
	}
}

// Look passes messages from peers of this host to Heard and Asked, and reports whether there were
// any. The caller must then process them. Look does not wait: it returns false if another goroutine
// holds the lock.
//
// NB: the last Look of a goroutine that stops polling may fail, too. No message is lost then: a
// message that wakes nobody was in its ring before the stop was announced, and the holder has taken
// the lock after that. All holders but Looking empty every ring. A caller of Looking polls
// afterwards, or was polling when this goroutine stopped, and then calls its own last Look.
func (h *Herald) Look() (found bool) {
	if !h.nearby.mu.TryLock() {
		return false
	}
	defer h.nearby.mu.Unlock()
	return h.nearby.drain()
}

// called empties all rings, and announces anew in one of them whether this side polls. A
// connection's goroutine calls it when the peer woke it, and before it handles messages from the
// socket.
func (h *Herald) called(n *near) (found bool) {
	h.nearby.mu.Lock()
	defer h.nearby.mu.Unlock()
	h.nearby.tell(n)
	return h.nearby.drain()
}

// drain handles the records of all rings and reports whether there were any. REQUIRES: mu is held.
func (y *nearby) drain() (found bool) {
	for _, n := range y.all {
		if n.In.Waiting() {
			found = n.drain() || found
		}
	}
	return found
}

// drain handles the records of a ring and reports whether there were any. REQUIRES: nearby.mu is
// held.
func (n *near) drain() (found bool) {
	for {
		record, err := n.In.Take()
		if err == nil && record != nil {
			found, err = true, n.take(record)
		}
		if err != nil {
			_ = n.conn.Close() // the connection's goroutine notices and ends it
			return found
		}
		if record == nil {
			return found
		}
	}
}

// enter adds a connection to those that are polled.
func (h *Herald) enter(n *near) {
	h.nearby.mu.Lock()
	h.nearby.all = append(h.nearby.all, n)
	h.nearby.tell(n)
	found := h.nearby.drain()
	h.nearby.mu.Unlock()
	if found {
		h.config.Handle()
	}
}

// leave removes a connection, after handling the remaining records of its ring. REQUIRES: its
// writer is closed.
func (h *Herald) leave(n *near) {
	h.nearby.mu.Lock()
	found := h.nearby.drain()
	h.nearby.all = slices.DeleteFunc(h.nearby.all, func(x *near) bool { return x == n })
	err := n.Close()
	h.nearby.mu.Unlock()
	if err != nil {
		panic(fmt.Sprintf("herald: unmap a ring: %v", err)) // impossible: it is mapped
	}
	if found {
		h.config.Handle()
	}
}

// offer creates rings for an accepted connection and passes them to the peer. If they cannot be
// created, the socket is used alone.
func offer(conn *net.UnixConn) (*ring.End, error) {
	if err := conn.SetWriteDeadline(time.Now().Add(dialTimeout)); err != nil {
		return nil, err
	}
	file, err := ring.Make()
	if err != nil {
		_, err = conn.Write([]byte{alone})
		return nil, errors.Join(err, conn.SetWriteDeadline(time.Time{}))
	}
	defer file.Close()
	end, err := ring.Open(file, true)
	if err == nil {
		_, _, err = conn.WriteMsgUnix([]byte{shared}, unix.UnixRights(int(file.Fd())), nil)
		err = errors.Join(err, conn.SetWriteDeadline(time.Time{}))
		if err != nil {
			err = errors.Join(err, end.Close())
		}
	}
	if err != nil {
		return nil, err
	}
	return end, nil
}

// accept receives the peer's offer. It returns nil if the socket is used alone.
func accept(conn *net.UnixConn) (*ring.End, error) {
	if err := conn.SetReadDeadline(time.Now().Add(dialTimeout)); err != nil {
		return nil, err
	}
	var kind [1]byte
	n, files, err := descriptors.Receive(conn, kind[:], 1, "millrace-ring")
	if err == nil {
		err = conn.SetReadDeadline(time.Time{})
	}
	defer func() {
		for _, f := range files {
			_ = f.Close() // the mapping does not need the descriptor
		}
	}()
	switch {
	case err != nil:
		return nil, err
	case n == 1 && kind[0] == alone && len(files) == 0:
		return nil, nil
	case n != 1 || kind[0] != shared || len(files) != 1:
		return nil, fmt.Errorf("%w: it began with %q and %d descriptors", errWord, kind[:n], len(files))
	}
	return ring.Open(files[0], false)
}
