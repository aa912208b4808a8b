package grpcpath

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/millrace/millrace/internal/edge"
	"github.com/millrace/millrace/internal/mishap"
)

const (
	// defaultWriterTimeout is how long a writer may send nothing. The memory for its object is
	// reserved in that time.
	defaultWriterTimeout = 30 * time.Second
	// defaultStreamTimeout is how long the reader of a gRPC stream may take nothing. Its objects
	// stay leased in that time. It is longer than ReaderTimeout, because such a reader cannot send
	// rawPing.
	defaultStreamTimeout = 60 * time.Second
	// forEver is the limit if the connection of a reader cannot be closed: at servers without
	// Credentials.
	forEver = 1000 * time.Hour
	// holdFor is how long a stream keeps buffers of a staged space while it waits for the other
	// side. Then it gives them back (memory.Outflow.Park, memory.Inflow.Park), since other streams
	// wait for buffers, and the other side of this stream may in turn wait for them. It is long
	// beside the time that a buffer takes over a network.
	holdFor = 100 * time.Millisecond
)

// silence is a timer that runs while we wait for a peer. It expires when the peer has done nothing
// for longer than timeout. A write deadline on the connection would not work: gRPC clears the
// deadlines of a connection some time after it has handed the connection over.
type silence struct {
	timeout time.Duration
	timer   *time.Timer

	mu sync.Mutex
	// waiting and expired are guarded by mu. expired: the timer has run out in the current wait.
	waiting, expired bool
}

// newSilence returns a stopped timer. It calls expire each time it runs out, and then starts again,
// because gRPC may undo what expire does. After end, no call of expire is under way.
func newSilence(timeout, otherwise time.Duration, expire func()) *silence {
	if timeout <= 0 {
		timeout = otherwise
	}
	s := &silence{timeout: timeout}
	s.timer = time.AfterFunc(timeout, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.waiting {
			s.expired = true
			expire()
			s.timer.Reset(s.timeout)
		}
	})
	s.timer.Stop()
	return s
}

// begin and end enclose a wait for the peer. end says whether the timer ran out.
func (s *silence) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting, s.expired = true, false
	s.timer.Reset(s.timeout)
}

func (s *silence) end() (expired bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting = false
	s.timer.Stop()
	return s.expired
}

// alive restarts the timer: the peer has done something.
func (s *silence) alive() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiting {
		s.timer.Reset(s.timeout)
	}
}

// watched runs body, the handler of a stream, on its own goroutine. If the peer is silent for too
// long, watched calls end (unless it is nil) and returns. Then gRPC ends the stream, and with it
// body's wait. A panic of body fails the call with INTERNAL.
func (s *Server) watched(timeout, otherwise time.Duration, what string, end func(), body func(other *silence) error) error {
	expired := make(chan struct{})
	other := newSilence(timeout, otherwise, sync.OnceFunc(func() { close(expired) }))
	done := make(chan error, 1)
	// The goroutine ends before the call, or soon after it.
	go func() {
		err := status.Errorf(codes.Internal, "%s ended without a reason", what)
		defer func() { done <- err }()
		defer mishap.Caught(s.Log, what, func(e error) { err = status.Error(codes.Internal, e.Error()) })
		err = body(other)
	}()
	select {
	case err := <-done:
		return err
	case <-expired:
		if end != nil {
			end()
		}
		return edge.Refusal(codes.Aborted, "STREAM_STALLED", fmt.Sprintf("%s: the other side did nothing for %v: begin again", what, other.timeout), nil)
	}
}

// connInfo is the AuthInfo of connections that gRPC serves. A handler finds its connection in it.
type connInfo struct {
	credentials.AuthInfo
	conn net.Conn
}

// hangUp returns a function that closes the connection of a call, or nil if the connection is not
// known.
//
// gRPC cannot take back data that it was given to send on a stream. It keeps referring to the bytes
// in place until the peer makes room for them, even after the handler has returned. So the
// connection must be closed before the leases on these bytes end.
func hangUp(ctx context.Context) func() {
	if p, ok := peer.FromContext(ctx); ok {
		if info, ok := p.AuthInfo.(connInfo); ok {
			return func() { _ = info.conn.Close() } // its server notices
		}
	}
	return nil
}

// watchedStream is a stream whose waits for the peer are limited by a silence.
type watchedStream struct {
	grpc.ServerStream
	peer *silence
}

// SendMsg is part of grpc.ServerStream.
func (w watchedStream) SendMsg(m any) error {
	w.peer.begin()
	defer w.peer.end()
	return w.ServerStream.SendMsg(m)
}

// RecvMsg is part of grpc.ServerStream.
func (w watchedStream) RecvMsg(m any) error {
	w.peer.begin()
	defer w.peer.end()
	return w.ServerStream.RecvMsg(m)
}

// guarded runs do for one bare connection. A panic of do is logged, and ends only do.
func (s *Server) guarded(what string, do func()) {
	defer mishap.Caught(s.Log, what, nil)
	do()
}

func nameOf(n int) string { return fmt.Sprintf("a read of %d objects", n) }
