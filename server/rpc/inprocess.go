package rpc

import (
	"context"
	"net"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/millrace/millrace/internal/admission"
)

// inProcess is a listener whose connections never leave the process. Calls by it are checked like
// all others.
type inProcess struct {
	accepted chan net.Conn
	closed   chan struct{}
	once     sync.Once
}

func newInProcess() *inProcess {
	return &inProcess{accepted: make(chan net.Conn), closed: make(chan struct{})}
}

// Accept is part of net.Listener.
func (l *inProcess) Accept() (net.Conn, error) {
	select {
	case conn := <-l.accepted:
		return conn, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close is part of net.Listener.
func (l *inProcess) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

// Addr is part of net.Listener.
func (l *inProcess) Addr() net.Addr { return inProcessAddress{} }

type inProcessAddress struct{}

func (inProcessAddress) Network() string { return "in-process" }
func (inProcessAddress) String() string  { return "in-process" }

// inProcessConn marks a connection that needs no encryption.
type inProcessConn struct{ net.Conn }

// RemoteAddr is part of net.Conn.
func (inProcessConn) RemoteAddr() net.Addr { return inProcessAddress{} }

func (l *inProcess) dial(ctx context.Context, _ string) (net.Conn, error) {
	ours, theirs := net.Pipe()
	select {
	case l.accepted <- inProcessConn{theirs}:
		return ours, nil
	case <-l.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// inProcessCredentials encrypt all connections but those in the process.
type inProcessCredentials struct {
	credentials.TransportCredentials
}

// ServerHandshake is part of credentials.TransportCredentials.
func (c inProcessCredentials) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	if _, ours := raw.(inProcessConn); ours {
		return insecure.NewCredentials().ServerHandshake(raw)
	}
	return c.TransportCredentials.ServerHandshake(raw)
}

// Clone is part of credentials.TransportCredentials.
func (c inProcessCredentials) Clone() credentials.TransportCredentials {
	return inProcessCredentials{c.TransportCredentials.Clone()}
}

// Connection returns a connection to the server that stays in this process. Its calls need the same
// tokens as all others. They wait until Serve or ServeInProcess is called.
func (s *Server) Connection() (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///in-process", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(s.inProcess.dial), grpc.WithDefaultCallOptions(
			grpc.MaxCallRecvMsgSize(MaxMessageBytes), grpc.MaxCallSendMsgSize(MaxMessageBytes)))
}

// ServeInProcess answers the calls of Connection until Stop is called.
func (s *Server) ServeInProcess() error { return unlessStopped(s.grpc.Serve(s.inProcess)) }

// Gate returns the check that each call passes before its request is read.
func (s *Server) Gate() admission.Check { return s.gate }
