package admission_test

import (
	"context"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/millrace/millrace/internal/admission"
	"github.com/millrace/millrace/internal/leaktest"
)

// patience is the longest time that a loaded machine may take.
const patience = 5 * time.Minute

func TestMain(m *testing.M) { goleak.VerifyTestMain(leaktest.Patient{M: m}) }

// serve starts a server whose calls need no token. It accepts a token "right" and refuses "wrong".
func serve(t *testing.T, limits admission.Limits, options ...grpc.ServerOption) string {
	t.Helper()
	check := func(ctx context.Context, method string) (context.Context, bool, error) {
		shown := strings.Join(metadata.ValueFromIncomingContext(ctx, "authorization"), "")
		if shown == "wrong" {
			return ctx, false, status.Error(codes.Unauthenticated, "wrong")
		}
		return ctx, shown == "", nil
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(append(options, admission.ServerOptions(check)...)...)
	healthpb.RegisterHealthServer(server, health.NewServer())
	served := make(chan error, 1)
	go func() { served <- server.Serve(admission.Listen(listener, limits)) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return listener.Addr().String()
}

// client dials, and counts its dials.
func client(t *testing.T, address string) (healthpb.HealthClient, *atomic.Int32) {
	t.Helper()
	dials := new(atomic.Int32)
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			dials.Add(1)
			return new(net.Dialer).DialContext(ctx, "tcp", address)
		}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return healthpb.NewHealthClient(conn), dials
}

func with(t *testing.T, token string) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	if token == "" {
		return ctx
	}
	return metadata.AppendToOutgoingContext(ctx, "authorization", token)
}

// silence opens a connection that sends nothing.
func silence(t *testing.T, address string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// preface begins an HTTP/2 connection.
const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"

// drained waits until the server has closed a connection.
func drained(t *testing.T, conn net.Conn) {
	t.Helper()
	if err := conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, conn); err != nil && !strings.Contains(err.Error(), "reset") {
		t.Fatalf("the connection was not closed: %v", err)
	}
}

func TestStrangersAreFewAndTheOldestGoes(t *testing.T) {
	address := serve(t, admission.Limits{Strangers: 4, FirstCallTimeout: time.Hour})
	known, dials := client(t, address)
	if _, err := known.Check(with(t, "right"), &healthpb.HealthCheckRequest{}); err != nil {
		t.Fatal(err)
	}
	var silent []net.Conn
	for range 100 {
		// They have sent the HTTP/2 preface, so only the limit on their number closes them. The
		// server may close one before it can send it.
		silent = append(silent, silence(t, address))
		_, _ = io.WriteString(silent[len(silent)-1], preface)
	}
	for _, conn := range silent[:96] {
		drained(t, conn)
	}
	if _, err := known.Check(with(t, "right"), &healthpb.HealthCheckRequest{}); err != nil || dials.Load() != 1 {
		t.Errorf("after 100 silent connections: %v, %d dials", err, dials.Load())
	}
	late, _ := client(t, address)
	if _, err := late.Check(with(t, "right"), &healthpb.HealthCheckRequest{}); err != nil {
		t.Errorf("a new client: %v", err)
	}
}

func TestAStrangerHasToSpeak(t *testing.T) {
	address := serve(t, admission.Limits{FirstCallTimeout: 10 * time.Millisecond})
	drained(t, silence(t, address))
	// HTTP/2 without a call is silence, too. A connection that was closed before it said so tells
	// nothing.
	for limit := time.Now().Add(patience); ; {
		polite := silence(t, address)
		_, err := io.WriteString(polite, preface)
		drained(t, polite)
		if err == nil {
			break
		}
		if time.Now().After(limit) {
			t.Fatal(err)
		}
	}
}

func TestAGuestMaySayLittle(t *testing.T) {
	address := serve(t, admission.Limits{FirstCallTimeout: time.Hour})
	guest, _ := client(t, address)
	for range 100 {
		if _, err := guest.Check(with(t, ""), &healthpb.HealthCheckRequest{}); err != nil {
			t.Fatal(err)
		}
	}
	large := &healthpb.HealthCheckRequest{Service: strings.Repeat("x", 3<<20)}
	if _, err := guest.Check(with(t, ""), large); status.Code(err) != codes.Unavailable {
		t.Errorf("3 MiB without a token: %v", err)
	}
	known, dials := client(t, address)
	for range 3 {
		if _, err := known.Check(with(t, "right"), large); status.Code(err) != codes.NotFound || dials.Load() != 1 {
			t.Errorf("3 MiB with a token: %v, %d dials", err, dials.Load())
		}
	}
}

// The answer comes before the request is sent: the server reads none of it.
func TestATokenIsLookedAtBeforeTheRequest(t *testing.T) {
	address := serve(t, admission.Limits{FirstCallTimeout: time.Hour})
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	both := &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}
	stream, err := conn.NewStream(with(t, "wrong"), both, healthpb.Health_Check_FullMethodName)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.RecvMsg(&healthpb.HealthCheckResponse{}); status.Code(err) != codes.Unauthenticated {
		t.Errorf("%v", err)
	}
}
