package grpcpath

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/mishap"
)

// defaultReaderTimeout is the default of Server.ReaderTimeout. It must exceed several times
// rawPingEvery, so that a slow reader is not taken for a lost one.
const defaultReaderTimeout = 20 * time.Second

// Credentials returns credentials for the gRPC server (grpc.Creds). They take over connections that
// begin as a bare stream if accepts returns true for the token; a nil accepts accepts every token.
// A server with them must also be closed by Server.Close.
func (s *Server) Credentials(accepts func(token string) bool) credentials.TransportCredentials {
	return &sniffer{TransportCredentials: insecure.NewCredentials(), server: s, accepts: accepts}
}

// sniffer distinguishes bare streams from gRPC by the first bytes of a connection.
type sniffer struct {
	credentials.TransportCredentials
	server  *Server
	accepts func(token string) bool
}

// Clone is part of credentials.TransportCredentials.
func (s *sniffer) Clone() credentials.TransportCredentials {
	return &sniffer{TransportCredentials: s.TransportCredentials.Clone(), server: s.server, accepts: s.accepts}
}

// ServerHandshake is part of credentials.TransportCredentials. gRPC has set a deadline before the
// call, and calls it in a goroutine for each connection.
func (s *sniffer) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	// In HTTP/2 as well the client sends first, and more bytes than this.
	begin := make([]byte, len(rawMagic))
	if _, err := io.ReadFull(conn, begin); err != nil {
		return nil, nil, io.EOF // a health probe of the port
	}
	serve := func() { s.server.serveRaw(conn) }
	switch {
	case string(begin) == rawMagic:
	case string(begin) == notifyMagic && s.server.Notify != nil:
		serve = func() { s.server.guarded("the subscriptions of a peer", func() { s.server.Notify(conn) }) }
	default:
		ours, info, err := s.TransportCredentials.ServerHandshake(&replayed{Conn: conn, begin: begin})
		return ours, connInfo{info, conn}, err
	}
	token, err := readToken(conn)
	if err != nil || s.accepts != nil && !s.accepts(token) {
		return nil, nil, io.EOF // the client tries again by gRPC and gets the reason there
	}
	if err := conn.SetDeadline(time.Time{}); err != nil {
		return nil, nil, err
	}
	if _, err := conn.Write(begin); err != nil {
		return nil, nil, err
	}
	if !s.server.raw.begin(conn, serve) {
		return nil, nil, io.EOF
	}
	return nil, nil, credentials.ErrConnDispatched
}

// replayed is a connection whose first bytes were already read; Read returns them again.
type replayed struct {
	net.Conn
	begin []byte
}

// Read is part of net.Conn.
func (r *replayed) Read(b []byte) (int, error) {
	if len(r.begin) == 0 {
		return r.Conn.Read(b)
	}
	n := copy(b, r.begin)
	r.begin = r.begin[n:]
	return n, nil
}

// rawConns holds the connections that gRPC does not serve.
type rawConns struct {
	mu sync.Mutex
	// conns are the open connections. The value is true while a request is being answered.
	conns  map[net.Conn]bool
	closed bool
	wait   sync.WaitGroup
}

func (r *rawConns) begin(conn net.Conn, serve func()) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return false
	}
	if r.conns == nil {
		r.conns = make(map[net.Conn]bool)
	}
	r.conns[conn] = false
	r.wait.Go(func() {
		serve()
		_ = conn.Close() // the answer was flushed, or is lost anyway
		r.mu.Lock()
		delete(r.conns, conn)
		r.mu.Unlock()
	})
	return true
}

// busy records that an answer begins or has ended. It returns false if the connection must end.
func (r *rawConns) busy(conn net.Conn, busy bool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.conns[conn] = busy
	return !r.closed
}

// Drain closes the idle bare streams, and the others after the answer in progress. It returns when
// all have ended.
func (s *Server) Drain() { s.raw.stop(false) }

// Close closes all bare streams. gRPC streams end with the gRPC server.
func (s *Server) Close() { s.raw.stop(true) }

func (r *rawConns) stop(all bool) {
	r.mu.Lock()
	r.closed = true
	for conn, busy := range r.conns {
		if all || !busy {
			_ = conn.Close() // its goroutine notices
		}
	}
	r.mu.Unlock()
	r.wait.Wait()
}

// serveRaw answers requests until either side closes the connection.
func (s *Server) serveRaw(conn net.Conn) {
	ctx, cancel := context.WithCancel(context.Background())
	reader := newSilence(s.ReaderTimeout, defaultReaderTimeout, func() { _ = conn.Close() })
	asked := make(chan *millracev1.ReadObjectsRequest)
	var listening sync.WaitGroup
	listening.Go(func() {
		defer close(asked)
		// If the reader disconnects, the answer in progress ends at once.
		defer func() { _ = conn.Close() }()
		defer mishap.Caught(s.Log, "what the reader of a bare stream asks", nil)
		in := bufio.NewReader(conn)
		for {
			kind, err := in.ReadByte()
			if err != nil {
				return
			}
			switch kind {
			case rawPing:
				reader.alive()
			case rawAsk:
				request, err := readAsk(in)
				if err != nil {
					return
				}
				select {
				case asked <- request:
				case <-ctx.Done():
					return
				}
			default:
				return
			}
		}
	})
	w := newRawWriter(conn, reader)
	for request := range asked {
		if !s.raw.busy(conn, true) {
			break
		}
		err := errors.New("it did not end well")
		s.guarded(nameOf(len(request.GetObjects())), func() { err = s.answer(w, request) })
		if !s.raw.busy(conn, false) || err != nil {
			break
		}
	}
	cancel()
	_ = conn.Close() // ends the goroutine above
	listening.Wait()
}

// answer sends the objects of one request. When it returns, the bytes have left the slab.
func (s *Server) answer(w *rawWriter, request *millracev1.ReadObjectsRequest) error {
	leased, part, release, err := s.lease(request)
	if err != nil {
		return err
	}
	defer release()
	a := &answer{server: s, leased: leased, part: part, chunkBytes: rawChunkBytes, together: true, send: w.write}
	if err := a.all(); err != nil {
		return err
	}
	return w.end()
}
