package herald

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/internal/descriptors"
	"github.com/millrace/millrace/internal/ring"
)

// A maker that is reached by a unix socket begins with a byte: shared, and the descriptor of two rings comes with it, or
// alone. What is asked and told goes into the rings then, as long as it fits; the socket carries what does not, and calls for whoever
// sleeps. Words may overtake each other on these two ways: each is about one object, and true for ever or an end of waiting. Asks do
// not: once one went by the socket all others do, and before those that came by the socket the ring is emptied.
const (
	shared byte = 'R'
	alone  byte = 'N'
)

// near is what both sides of a connection share.
type near struct {
	// In is guarded by nearby.mu, Out by the connection's writer.
	*ring.End
	conn net.Conn
	// take hands a record to the functions of Config, and says whether it made sense.
	take func(record []byte) error
}

// nearby are all connections with rings, and who looks into them.
type nearby struct {
	mu sync.Mutex
	// Below is guarded by mu. lookers is how many look without being called.
	all     []*near
	lookers int
}

// Looking says that the caller will look soon and again, so that nobody needs to be called; or that it will not any
// more. Then it has to look once more.
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

// tell says in a ring what this side does. REQUIRES: mu is held.
func (y *nearby) tell(n *near) {
	if y.lookers > 0 {
		n.In.Awake()
	} else {
		n.In.Asleep()
	}
}

// Look hands what peers of this host have said meanwhile to Heard and Asked, and says whether there was anything, which
// then is for the caller to handle. It does not wait: whoever looks at the same moment finds it.
func (h *Herald) Look() (found bool) {
	if !h.nearby.mu.TryLock() {
		return false
	}
	defer h.nearby.mu.Unlock()
	for _, n := range h.nearby.all {
		if n.In.Waiting() {
			found = n.drain() || found
		}
	}
	return found
}

// called is what a connection's goroutine does when its peer has found nobody looking, when it has just begun, and before
// it hands out what came by the socket.
func (h *Herald) called(n *near) (found bool) {
	h.nearby.mu.Lock()
	defer h.nearby.mu.Unlock()
	h.nearby.tell(n)
	return n.drain()
}

// drain hands out what is in a ring, and says whether there was anything. REQUIRES: nearby.mu is held.
func (n *near) drain() (found bool) {
	for {
		record, err := n.In.Take()
		if err == nil && record != nil {
			found, err = true, n.take(record)
		}
		if err != nil {
			_ = n.conn.Close() // its goroutine ends it
			return found
		}
		if record == nil {
			return found
		}
	}
}

// enter adds a connection to those that are looked at.
func (h *Herald) enter(n *near) {
	h.nearby.mu.Lock()
	h.nearby.all = append(h.nearby.all, n)
	h.nearby.mu.Unlock()
	if h.called(n) {
		h.config.Handle()
	}
}

// leave ends that; whatever its ring still had is handed out first. REQUIRES: its writer is closed.
func (h *Herald) leave(n *near) {
	h.nearby.mu.Lock()
	found := n.drain()
	h.nearby.all = slices.DeleteFunc(h.nearby.all, func(x *near) bool { return x == n })
	err := n.Close()
	h.nearby.mu.Unlock()
	if err != nil {
		panic(fmt.Sprintf("herald: unmap a ring: %v", err)) // it was not mapped
	}
	if found {
		h.config.Handle()
	}
}

// offer makes rings for a connection that was accepted, and passes them on. Without them it is used alone.
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

// accept takes what was offered.
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
			_ = f.Close() // the mapping does without
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
