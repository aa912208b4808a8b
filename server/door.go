package server

import (
	"net"
	"sync"
	"time"
)

// acceptPause is the pause after a connection could not be accepted.
const acceptPause = 50 * time.Millisecond

// door hands the connections of a listener to one server after the other, so that the port stays
// open between them. Connections that arrive meanwhile wait.
type door struct {
	listener net.Listener
	conns    chan net.Conn
	closed   chan struct{}
	once     sync.Once
	ended    chan struct{}
}

func newDoor(listener net.Listener) *door {
	d := &door{listener: listener, conns: make(chan net.Conn), closed: make(chan struct{}), ended: make(chan struct{})}
	go func() {
		defer close(d.ended)
		for {
			conn, err := listener.Accept()
			if err != nil {
				select {
				case <-d.closed:
					return
				case <-time.After(acceptPause): // There may be too many open files.
					continue
				}
			}
			select {
			case d.conns <- conn:
			case <-d.closed:
				_ = conn.Close() // Nobody has it.
			}
		}
	}()
	return d
}

// open returns a listener for the next server.
func (d *door) open() net.Listener { return &hall{door: d, closed: make(chan struct{})} }

// close closes the port. A nil door has none.
func (d *door) close() {
	if d == nil {
		return
	}
	d.once.Do(func() {
		close(d.closed)
		_ = d.listener.Close() // Nobody uses it.
	})
	<-d.ended
}

// hall is the listener of one server at a door.
type hall struct {
	*door
	closed chan struct{}
	once   sync.Once
}

// Accept is part of net.Listener.
func (h *hall) Accept() (net.Conn, error) {
	select {
	case <-h.closed: // Both may be possible.
		return nil, net.ErrClosed
	default:
	}
	select {
	case conn := <-h.conns:
		return conn, nil
	case <-h.closed:
	case <-h.door.closed:
	}
	return nil, net.ErrClosed
}

// Close is part of net.Listener. The port stays open.
func (h *hall) Close() error {
	h.once.Do(func() { close(h.closed) })
	return nil
}

// Addr is part of net.Listener.
func (h *hall) Addr() net.Addr { return h.listener.Addr() }
