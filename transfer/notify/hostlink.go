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

// A publisher that is reached by a unix socket first sends one byte: withRings, together with the
// descriptor of two rings, or socketOnly. With rings, messages go into the rings as long as they
// fit. The socket carries the rest, and wakes a peer that does not poll. Notifications may overtake
// each other on these two ways: each is about one object, and either true for ever or the end of
// the subscription. Requests must not: once one went by the socket all later ones do, and the ring
// is emptied before requests from the socket are handled.
const (
	withRings  byte = 'R'
	socketOnly byte = 'N'
)

// hostLink is a connection within the host, with its rings.
type hostLink struct {
	// In is guarded by hostLinks.mu, Out by the connection's writer.
	*ring.End
	conn net.Conn
	// handle passes a record to the functions of Config. It returns an error for a malformed
	// record.
	handle func(record []byte) error
}

// hostLinks has all connections with rings, and the number of polling goroutines.
type hostLinks struct {
	mu sync.Mutex
	// All fields below are guarded by mu. pollers counts the goroutines that poll without being
	// woken.
	list    []*hostLink
	pollers int
}

// SetPolling announces that the caller polls (calls Poll) soon and repeatedly, so that peers need
// not wake this process; or that it stops polling. After announcing the stop, the caller must call
// Poll once more: a message may have come just before.
func (n *Notifier) SetPolling(yes bool) {
	n.links.mu.Lock()
	defer n.links.mu.Unlock()
	was := n.links.pollers > 0
	if yes {
		n.links.pollers++
	} else {
		n.links.pollers--
	}
	if was != (n.links.pollers > 0) {
		for _, link := range n.links.list {
			n.links.announce(link)
		}
	}
}

// announce publishes in a ring whether this side polls. REQUIRES: mu is held.
func (y *hostLinks) announce(link *hostLink) {
	if y.pollers > 0 {
		link.In.Awake()
	} else {
		link.In.Asleep()
	}
}

// Poll passes messages from peers of this host to Completed and Requested, and reports whether
// there were any. The caller must then process them. Poll does not wait: it returns false if
// another goroutine holds the lock.
//
// NB: the last Poll of a goroutine that stops polling may fail, too. No message is lost then: a
// message that wakes nobody was in its ring before the stop was announced, and the holder has taken
// the lock after that. All holders but SetPolling empty every ring. A caller of SetPolling polls
// afterwards, or was polling when this goroutine stopped, and then calls its own last Poll.
func (n *Notifier) Poll() (found bool) {
	if !n.links.mu.TryLock() {
		return false
	}
	defer n.links.mu.Unlock()
	return n.links.drain()
}

// woken empties all rings, and announces anew in one of them whether this side polls. A
// connection's goroutine calls it when the peer woke it, and before it handles messages from the
// socket.
func (n *Notifier) woken(link *hostLink) (found bool) {
	n.links.mu.Lock()
	defer n.links.mu.Unlock()
	n.links.announce(link)
	return n.links.drain()
}

// drain handles the records of all rings and reports whether there were any. REQUIRES: mu is held.
func (y *hostLinks) drain() (found bool) {
	for _, link := range y.list {
		if link.In.Waiting() {
			found = link.drain() || found
		}
	}
	return found
}

// drain handles the records of a ring and reports whether there were any. REQUIRES: hostLinks.mu is
// held.
func (link *hostLink) drain() (found bool) {
	for {
		record, err := link.In.Take()
		if err == nil && record != nil {
			found, err = true, link.handle(record)
		}
		if err != nil {
			_ = link.conn.Close() // the connection's goroutine notices and ends it
			return found
		}
		if record == nil {
			return found
		}
	}
}

// addLink adds a connection to those that are polled.
func (n *Notifier) addLink(link *hostLink) {
	n.links.mu.Lock()
	n.links.list = append(n.links.list, link)
	n.links.announce(link)
	found := n.links.drain()
	n.links.mu.Unlock()
	if found {
		n.config.Handle()
	}
}

// removeLink removes a connection, after handling the remaining records of its ring. REQUIRES: its
// writer is closed.
func (n *Notifier) removeLink(link *hostLink) {
	n.links.mu.Lock()
	found := n.links.drain()
	n.links.list = slices.DeleteFunc(n.links.list, func(other *hostLink) bool { return other == link })
	err := link.Close()
	n.links.mu.Unlock()
	if err != nil {
		panic(fmt.Sprintf("notify: unmap a ring: %v", err)) // impossible: it is mapped
	}
	if found {
		n.config.Handle()
	}
}

// offerRings creates rings for an accepted connection and passes them to the peer. If they cannot
// be created, the socket is used alone.
func offerRings(conn *net.UnixConn) (*ring.End, error) {
	if err := conn.SetWriteDeadline(time.Now().Add(offerTimeout)); err != nil {
		return nil, err
	}
	file, err := ring.Make()
	if err != nil {
		_, err = conn.Write([]byte{socketOnly})
		return nil, errors.Join(err, conn.SetWriteDeadline(time.Time{}))
	}
	defer file.Close()
	end, err := ring.Open(file, true)
	if err == nil {
		_, _, err = conn.WriteMsgUnix([]byte{withRings}, unix.UnixRights(int(file.Fd())), nil)
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

// acceptRings receives the peer's offer. It returns nil if the socket is used alone.
func acceptRings(conn *net.UnixConn, timeout time.Duration) (*ring.End, error) {
	if err := conn.SetReadDeadline(time.Now().Add(timeout)); err != nil {
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
	case n == 1 && kind[0] == socketOnly && len(files) == 0:
		return nil, nil
	case n != 1 || kind[0] != withRings || len(files) != 1:
		return nil, fmt.Errorf("%w: it began with %q and %d descriptors", errMalformed, kind[:n], len(files))
	}
	return ring.Open(files[0], false)
}
