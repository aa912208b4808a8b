package leader_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/millrace/millrace/internal/leader"
	"github.com/millrace/millrace/internal/leader/leadertest"
)

// leading starts a server that answers calls of the health service, and returns its address.
func leading(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	healthpb.RegisterHealthServer(server, health.NewServer())
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return listener.Addr().String()
}

// dead returns an address at which nobody listens, and that no other test is given.
func dead(t *testing.T) string {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Close(fd); err != nil {
			t.Error(err)
		}
	})
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("127.0.0.1:%d", name.(*unix.SockaddrInet4).Port)
}

// hung returns an address at which connections are accepted, and nothing is answered.
func hung(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := listener.Close(); err != nil {
			t.Error(err)
		}
	})
	return listener.Addr().String()
}

func dial(t *testing.T, leaderless time.Duration, addresses ...string) leader.Conn {
	t.Helper()
	conn, err := leader.Dial(strings.Join(addresses, ","), leaderless, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	})
	return conn
}

func soon(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// check makes a unary call.
func check(ctx context.Context, conn leader.Conn, options ...grpc.CallOption) error {
	_, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{}, options...)
	return err
}

// watch opens a stream of responses, and takes the first one.
func watch(t *testing.T, conn leader.Conn) error {
	t.Helper()
	ctx, cancel := context.WithCancel(soon(t))
	defer cancel()
	stream, err := healthpb.NewHealthClient(conn).Watch(ctx, &healthpb.HealthCheckRequest{})
	if err == nil {
		_, err = stream.Recv()
	}
	return err
}

func TestCallsFindTheLeader(t *testing.T) {
	for name, addresses := range map[string]func(leading string) []string{
		"TheFirstIsDead":        func(leading string) []string { return []string{dead(t), leading} },
		"TheFirstFollows":       func(leading string) []string { return []string{leadertest.NewFollower(t, "").Address, leading} },
		"TwoAreDead":            func(leading string) []string { return []string{dead(t), dead(t), leading} },
		"FollowersKnowNoLeader": func(leading string) []string { return []string{follower(t, ""), follower(t, ""), leading} },
		"TheFirstHangs":         func(leading string) []string { return []string{hung(t), leading} },
		"OneNamesADeadOne": func(leading string) []string {
			gone := dead(t)
			return []string{gone, follower(t, gone), follower(t, gone), leading}
		},
		"TwoNameEachOther": func(leading string) []string {
			first := leadertest.NewFollower(t, "")
			second := leadertest.NewFollower(t, first.Address)
			first.Name(second.Address)
			return []string{first.Address, second.Address, leading}
		},
	} {
		t.Run(name, func(t *testing.T) {
			for kind, call := range map[string]func(leader.Conn) error{
				"unary":   func(conn leader.Conn) error { return check(soon(t), conn) },
				"waiting": func(conn leader.Conn) error { return check(soon(t), conn, grpc.WaitForReady(true)) },
				"stream":  func(conn leader.Conn) error { return watch(t, conn) },
			} {
				if err := call(dial(t, 5*time.Minute, addresses(leading(t))...)); err != nil {
					t.Errorf("%s: %v", kind, err)
				}
			}
		})
	}
}

func follower(t *testing.T, named string) string {
	t.Helper()
	return leadertest.NewFollower(t, named).Address
}

// TestTheNamedLeaderIsCalled: calls do not go round, and later ones go there at once.
func TestTheNamedLeaderIsCalled(t *testing.T) {
	address := leading(t)
	first, second := leadertest.NewFollower(t, address), leadertest.NewFollower(t, address)
	conn := dial(t, 5*time.Minute, first.Address, second.Address, address)
	for range 3 {
		if err := errors.Join(check(soon(t), conn), watch(t, conn)); err != nil {
			t.Fatal(err)
		}
	}
	if first.Calls() != 1 || second.Calls() != 0 {
		t.Errorf("%d and %d calls to followers, want 1 and 0", first.Calls(), second.Calls())
	}
}

// TestAnAddressOutsideOfTheListIsNotCalled: calls carry the token.
func TestAnAddressOutsideOfTheListIsNotCalled(t *testing.T) {
	stranger := leadertest.NewFollower(t, "")
	first, second := leadertest.NewFollower(t, stranger.Address), leadertest.NewFollower(t, stranger.Address)
	conn := dial(t, 0, first.Address, second.Address)
	if err := check(soon(t), conn); !isRefusal(err, stranger.Address) {
		t.Error(err)
	}
	if err := watch(t, conn); !isRefusal(err, stranger.Address) {
		t.Error(err)
	}
	alone := dial(t, 0, first.Address)
	if err := check(soon(t), alone); !isRefusal(err, stranger.Address) {
		t.Error(err)
	}
	if stranger.Calls() != 0 || first.Calls() != 3 || second.Calls() != 2 {
		t.Errorf("%d calls to an address that nobody gave; %d and %d to others, want 3 and 2", stranger.Calls(), first.Calls(), second.Calls())
	}
}

func isRefusal(err error, address string) bool {
	named, refused := leader.Refused(err)
	return refused && named == address
}

// TestCallsAreRepeatedWhileNobodyLeads: an election takes a while.
func TestCallsAreRepeatedWhileNobodyLeads(t *testing.T) {
	first, second := leadertest.NewFollower(t, ""), leadertest.NewFollower(t, "")
	conn := dial(t, time.Hour, first.Address, second.Address)
	ctx, cancel := context.WithCancel(soon(t))
	ended := make(chan error, 1)
	go func() { ended <- check(ctx, conn) }()
	for second.Calls() < 4 && ctx.Err() == nil {
		time.Sleep(time.Millisecond) // between two looks at the state
	}
	cancel()
	if err := <-ended; status.Code(err) != codes.Canceled && !isRefusal(err, "") {
		t.Error(err)
	}
	if first.Calls() < 4 || second.Calls() < 4 {
		t.Errorf("%d and %d calls, want 4 and more of each", first.Calls(), second.Calls())
	}
}

// TestAStreamOfRequestsLeadsToTheLeader: it ends with the refusal, and the next one goes on at the
// leader.
func TestAStreamOfRequestsLeadsToTheLeader(t *testing.T) {
	address := leading(t)
	first := leadertest.NewFollower(t, address)
	conn := dial(t, 5*time.Minute, first.Address, address)
	for _, want := range []codes.Code{codes.Unavailable, codes.Unimplemented} {
		ctx, cancel := context.WithCancel(soon(t))
		defer cancel()
		stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, "/x/Y")
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.SendMsg(&healthpb.HealthCheckRequest{}); err != nil && !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
		if err := stream.RecvMsg(new(healthpb.HealthCheckResponse)); status.Code(err) != want {
			t.Errorf("%v, want %v", err, want)
		}
	}
}

// TestNobodyCanBeReached: a call fails as it does with one address, and one that waits does so
// until its context ends.
func TestNobodyCanBeReached(t *testing.T) {
	conn := dial(t, 5*time.Minute, dead(t), dead(t))
	if err := check(soon(t), conn); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "refused") {
		t.Error(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := check(ctx, conn, grpc.WaitForReady(true)); status.Code(err) != codes.DeadlineExceeded {
		t.Error(err)
	}
}
