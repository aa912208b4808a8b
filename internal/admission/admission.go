// Package admission is an Adapter: it bounds the memory, time and number of connections that have
// not shown a token yet. gRPC reads a whole request before any interceptor runs, and waits two
// minutes for a silent client. So this package checks the token when the headers of a call have
// arrived (gRPC's InTapHandle), and limits connections without a token.
//
// A new connection is a "stranger" until a call with a token is accepted on it. A stranger whose
// calls need no token (health checks) is a "guest": it may send only a bounded number of bytes.
package admission

import (
	"container/list"
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/tap"
)

const (
	// handshakeTime is the time that a client has for the HTTP/2 handshake.
	handshakeTime = 5 * time.Second
	// headerBytes bounds the headers of one call.
	headerBytes = 64 << 10
	// maxStreams bounds the concurrent calls of one connection; further calls wait at the client.
	maxStreams = 2000

	// userTimeout is the longest time that sent bytes may stay unacknowledged (TCP_USER_TIMEOUT).
	// gRPC's keepalive uses the same value.
	userTimeout = 10 * time.Second

	// defaultStrangers and defaultCallTimeout are the defaults of Limits.
	defaultStrangers   = 128
	defaultCallTimeout = 10 * time.Second
	// guestBytes is the number of bytes that a guest may send at first. guestRate is the number of
	// further bytes that it may send per second.
	guestBytes = 64 << 10
	guestRate  = 1 << 10
)

// Limits apply to connections that have not shown a token. Zero fields mean the defaults named
// here.
type Limits struct {
	// Strangers bounds their number; one more closes the oldest. 0: 128.
	Strangers int
	// FirstCallTimeout is the time that a connection has until its first call. 0: 10 s.
	FirstCallTimeout time.Duration
}

// Check decides whether a call is allowed, by its method and the metadata in its context. It
// returns the context of the call's handler. open: the method needs no token. The error is a gRPC
// status.
type Check func(ctx context.Context, method string) (handled context.Context, open bool, err error)

// ServerOptions makes a server call check before it reads the request of a call.
func ServerOptions(check Check) []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ConnectionTimeout(handshakeTime),
		grpc.MaxHeaderListSize(headerBytes),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.InTapHandle(func(ctx context.Context, call *tap.Info) (context.Context, error) {
			handled, open, err := check(ctx, call.FullMethodName)
			if err != nil {
				return ctx, err
			}
			if from, ok := peer.FromContext(ctx); ok {
				if at, ok := from.Addr.(address); ok {
					at.stranger.known(!open)
				}
			}
			return handled, nil
		}),
	}
}

// Listener counts its accepted connections until they show a token, and limits them.
type Listener struct {
	net.Listener
	limits Limits

	mu        sync.Mutex
	strangers list.List // of *stranger, the oldest first; guarded by mu
}

// Listen wraps the listener of a server that has ServerOptions.
func Listen(l net.Listener, limits Limits) *Listener {
	if limits.Strangers == 0 {
		limits.Strangers = defaultStrangers
	}
	if limits.FirstCallTimeout == 0 {
		limits.FirstCallTimeout = defaultCallTimeout
	}
	return &Listener{Listener: l, limits: limits}
}

// Accept is part of net.Listener.
func (l *Listener) Accept() (net.Conn, error) {
	accepted, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	boundUnacknowledged(accepted)
	s := &stranger{listener: l, conn: accepted}
	l.mu.Lock()
	s.place = l.strangers.PushBack(s)
	var oldest *stranger
	if l.strangers.Len() > l.limits.Strangers {
		oldest = l.strangers.Remove(l.strangers.Front()).(*stranger)
		oldest.place = nil
	}
	s.timer = time.AfterFunc(l.limits.FirstCallTimeout, s.expire)
	l.mu.Unlock()
	if oldest != nil {
		_ = oldest.conn.Close() // its server notices
	}
	return &conn{Conn: accepted, stranger: s}, nil
}

// stranger is a connection that has not shown a token yet.
type stranger struct {
	listener *Listener
	conn     net.Conn
	// state is silent, guest or admitted; it decides how much may be read.
	state atomic.Int32
	// read is the number of bytes that were read since the connection became a guest.
	read  atomic.Int64
	since time.Time // set before state becomes guest

	place *list.Element // guarded by listener.mu; nil: no longer counted
	timer *time.Timer   // guarded by listener.mu
}

const (
	silent   = iota // it has made no call yet
	guest           // it has made only calls that need no token
	admitted        // it has shown a token: no limits any more
)

// known is called when a call was accepted; token says whether the call had a token.
func (s *stranger) known(token bool) {
	if s.state.Load() == admitted {
		return
	}
	l := s.listener
	l.mu.Lock()
	defer l.mu.Unlock()
	s.timer.Stop()
	switch {
	case token:
		s.state.Store(admitted)
		s.forget()
	case s.state.Load() == silent:
		s.since = time.Now()
		s.state.Store(guest)
	}
}

// forget removes the connection from the list. REQUIRES: listener.mu is held.
func (s *stranger) forget() {
	if s.place != nil {
		s.listener.strangers.Remove(s.place)
		s.place = nil
	}
}

func (s *stranger) expire() {
	if s.state.Load() == silent {
		_ = s.conn.Close() // its server notices
	}
}

func (s *stranger) closed() {
	s.listener.mu.Lock()
	defer s.listener.mu.Unlock()
	s.timer.Stop()
	s.forget()
}

var errTooMuch = errors.New("a connection without a token sent more than calls without one need")

// conn is the connection that gRPC reads from.
type conn struct {
	net.Conn
	stranger *stranger
}

// Read is part of net.Conn.
func (c *conn) Read(b []byte) (int, error) {
	s := c.stranger
	if s.state.Load() != guest {
		return c.Conn.Read(b)
	}
	if s.read.Load() > guestBytes+guestRate*int64(time.Since(s.since).Seconds()) {
		return 0, errTooMuch
	}
	n, err := c.Conn.Read(b)
	s.read.Add(int64(n))
	return n, err
}

// Close is part of net.Conn.
func (c *conn) Close() error {
	c.stranger.closed()
	return c.Conn.Close()
}

// RemoteAddr is part of net.Conn. The handler of a call finds its connection by this address.
func (c *conn) RemoteAddr() net.Addr { return address{c.Conn.RemoteAddr(), c.stranger} }

type address struct {
	net.Addr
	stranger *stranger
}

// Credentials wraps transport credentials so that their handshake sees the accepted connection
// itself, not our wrapper: bulk transfers need the socket. A connection that the handshake takes
// over from gRPC (ErrConnDispatched) has shown a token there, and counts as admitted.
func Credentials(next credentials.TransportCredentials) credentials.TransportCredentials {
	return &unwrapping{next}
}

type unwrapping struct {
	credentials.TransportCredentials
}

// Clone is part of credentials.TransportCredentials.
func (u *unwrapping) Clone() credentials.TransportCredentials {
	return &unwrapping{u.TransportCredentials.Clone()}
}

// ServerHandshake is part of credentials.TransportCredentials.
func (u *unwrapping) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	ours, ok := raw.(*conn)
	if !ok {
		return u.TransportCredentials.ServerHandshake(raw)
	}
	shaken, info, err := u.TransportCredentials.ServerHandshake(ours.Conn)
	if errors.Is(err, credentials.ErrConnDispatched) {
		ours.stranger.known(true)
	}
	if err != nil {
		return nil, nil, err
	}
	return &conn{Conn: shaken, stranger: ours.stranger}, info, nil
}
