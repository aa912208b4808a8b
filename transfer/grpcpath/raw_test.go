package grpcpath_test

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/grpcpath"
	"github.com/millrace/millrace/transfer/transfertest"
)

var one = transfer.Ref{Task: 1, Generation: 1}

// refuseGRPC makes a server that refuses gRPC streams, so that only bare streams can read.
func refuseGRPC() grpc.ServerOption {
	return grpc.StreamInterceptor(func(any, grpc.ServerStream, *grpc.StreamServerInfo, grpc.StreamHandler) error {
		return status.Error(codes.Unauthenticated, "not the token")
	})
}

func withToken(tb testing.TB, token string) *grpcpath.Path {
	tb.Helper()
	path := grpcpath.New(grpcpath.Config{StallTimeout: transfertest.Patience, Streams: 2, Token: token})
	tb.Cleanup(func() {
		if err := path.Close(); err != nil {
			tb.Error(err)
		}
	})
	return path
}

func TestBareStreamsWantTheToken(t *testing.T) {
	objects := transfertest.NewObjects()
	objects.Put(one, "h", make([]byte, 40<<20), make([]byte, 10))
	data := &grpcpath.Server{Source: objects}
	peer, _ := serveWith(t, data, refuseGRPC(), grpc.Creds(data.Credentials(func(token string) bool { return token == "right" })))
	path := withToken(t, "right")
	for range 3 {
		if err := path.Fetch(t.Context(), peer, []transfer.Ref{one}, transfertest.NewSink()); err != nil {
			t.Error(err)
		}
	}
	// The source counts bytes when it has sent them; the reader may have them before.
	for limit := time.Now().Add(transfertest.Patience); ; time.Sleep(time.Millisecond) {
		_, out := data.Traffic()
		if out == 3*(40<<20+10) {
			break
		}
		if out > 3*(40<<20+10) || time.Now().After(limit) {
			t.Errorf("%d bytes went out", out)
			break
		}
	}
	for _, token := range []string{"", "wrong"} {
		if err := withToken(t, token).Fetch(t.Context(), peer, []transfer.Ref{one}, transfertest.NewSink()); !errors.Is(err, transfer.ErrDenied) {
			t.Errorf("token %q: %v", token, err)
		}
	}
}

func TestForgottenAndRestartedPeer(t *testing.T) {
	objects := transfertest.NewObjects()
	objects.Put(one, "h", make([]byte, 1<<20))
	data := &grpcpath.Server{Source: objects}
	peer, _ := serveWith(t, data, grpc.Creds(data.Credentials(nil)))
	path := newPath(t, transfertest.Patience)
	fetch := func() {
		t.Helper()
		if err := path.Fetch(t.Context(), peer, []transfer.Ref{one}, transfertest.NewSink()); err != nil {
			t.Error(err)
		}
	}
	fetch()
	path.Forget(peer.Address)
	fetch()
	// From here on all bare streams are closed, also the idle ones that the path has kept.
	data.Close()
	fetch()
	fetch()
}

// bare opens a connection and sends bytes of the protocol that the test chose.
func bare(t *testing.T, peer transfer.Peer, say []byte) net.Conn {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", peer.Address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(transfertest.Patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write(append([]byte("MILLRAW1\x00\x00"), say...)); err != nil {
		t.Fatal(err)
	}
	magic := make([]byte, 8)
	if _, err := io.ReadFull(conn, magic); err != nil || string(magic) != "MILLRAW1" {
		t.Fatalf("%q, %v", magic, err)
	}
	return conn
}

func ask(t *testing.T, request *millracev1.ReadObjectsRequest) []byte {
	t.Helper()
	b, err := proto.Marshal(request)
	if err != nil {
		t.Fatal(err)
	}
	return append(binary.LittleEndian.AppendUint32([]byte{1}, uint32(len(b))), b...)
}

func TestNonsenseEndsABareStream(t *testing.T) {
	objects := transfertest.NewObjects()
	peer, _ := serve(t, objects, nil)
	for name, say := range map[string][]byte{
		"unknown kind":   {7},
		"huge request":   {1, 0xff, 0xff, 0xff, 0xff},
		"no request":     {0, 0, 1, 1, 0, 0, 0, 0xff},
		"no objects":     ask(t, &millracev1.ReadObjectsRequest{}),
		"many objects":   ask(t, &millracev1.ReadObjectsRequest{Objects: make([]*millracev1.ObjectRef, 10001)}),
		"part beyond":    ask(t, &millracev1.ReadObjectsRequest{Objects: make([]*millracev1.ObjectRef, 1), Parts: 2, Part: 2}),
		"too many parts": ask(t, &millracev1.ReadObjectsRequest{Objects: make([]*millracev1.ObjectRef, 1), Parts: 17}),
	} {
		// A reset is an end as well.
		if b, _ := io.ReadAll(bare(t, peer, say)); len(b) != 0 {
			t.Errorf("%s: answered with %d bytes", name, len(b))
		}
	}
}

// A stopped reader must not keep its leases, even if gRPC clears the connection's deadlines during
// the answer: gRPC does that once the handshake is over.
func TestReaderThatFallsSilent(t *testing.T) {
	objects := transfertest.NewObjects()
	objects.Put(one, "h", make([]byte, 64<<20))
	released := make(chan struct{})
	data := &grpcpath.Server{Source: notifying{objects, released}, ReaderTimeout: 100 * time.Millisecond}
	peer, _ := serveWith(t, data, grpc.Creds(clearing{data.Credentials(nil)}))
	bare(t, peer, ask(t, &millracev1.ReadObjectsRequest{Objects: []*millracev1.ObjectRef{{TaskId: 1, Generation: 1}}}))
	select {
	case <-released:
	case <-time.After(transfertest.Patience):
		t.Error("the leases are held")
	}
}

// TestASlowSourceIsNoSilentReader: only the time that the server waits for the reader counts.
func TestASlowSourceIsNoSilentReader(t *testing.T) {
	objects := transfertest.NewObjects()
	objects.Put(one, "h", make([]byte, 1<<10))
	// A busy machine may need longer than a short timeout for the answer itself.
	for timeout := 100 * time.Millisecond; ; timeout *= 4 {
		data := &grpcpath.Server{Source: slow{objects, 3 * timeout}, ReaderTimeout: timeout}
		peer, _ := serveWith(t, data, grpc.Creds(data.Credentials(nil)))
		conn := bare(t, peer, ask(t, &millracev1.ReadObjectsRequest{Objects: []*millracev1.ObjectRef{{TaskId: 1, Generation: 1}}}))
		n, err := conn.Read(make([]byte, 1<<10))
		if n > 0 {
			return
		}
		if 3*timeout > time.Minute {
			t.Fatalf("no answer: %v", err)
		}
	}
}

// slow is a source that takes long to find objects.
type slow struct {
	transfer.Source
	takes time.Duration
}

func (s slow) Lease(reader transfer.Reader, refs []transfer.Ref, ttl time.Duration) []transfer.Leased {
	<-time.After(s.takes)
	return s.Source.Lease(reader, refs, ttl)
}

// clearing returns connections whose deadlines have no effect.
type clearing struct {
	credentials.TransportCredentials
}

func (c clearing) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return c.TransportCredentials.ServerHandshake(noDeadlines{conn})
}

type noDeadlines struct{ net.Conn }

func (noDeadlines) SetDeadline(time.Time) error      { return nil }
func (noDeadlines) SetWriteDeadline(time.Time) error { return nil }

// notifying reports the first release.
type notifying struct {
	transfer.Source
	released chan struct{}
}

func (n notifying) Release(leases []transfer.LeaseID) []bool {
	close(n.released)
	return n.Source.Release(leases)
}

// Drain lets a fetch in progress receive the rest of its answer.
func TestDrainEndsWithTheAnswer(t *testing.T) {
	objects := transfertest.NewObjects()
	objects.Put(one, "h", make([]byte, 40<<20))
	data := &grpcpath.Server{Source: objects}
	peer, _ := serveWith(t, data, refuseGRPC(), grpc.Creds(data.Credentials(nil)))
	path := grpcpath.New(grpcpath.Config{StallTimeout: transfertest.Patience, Streams: 1})
	defer func() {
		if err := path.Close(); err != nil {
			t.Error(err)
		}
	}()
	drained := make(chan struct{})
	sink := transfertest.NewSink()
	sink.PlaceHook = func(context.Context, int, transfer.Head) error {
		go func() {
			defer close(drained)
			data.Drain()
		}()
		return nil
	}
	if err := path.Fetch(t.Context(), peer, []transfer.Ref{one}, sink); err != nil {
		t.Error(err)
	}
	<-drained
	if err := path.Fetch(t.Context(), peer, []transfer.Ref{one}, transfertest.NewSink()); !errors.Is(err, transfer.ErrDenied) {
		t.Errorf("after that: %v", err)
	}
}
