package consensus

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"testing"
	"time"
)

// greeted dials until the answer does not come too late, as it may on a busy machine.
func greeted(t *testing.T, dial func() (net.Conn, error)) (conn net.Conn, err error) {
	t.Helper()
	until(t, "a hello ends in time", func() bool {
		conn, err = dial()
		return !errors.Is(err, context.DeadlineExceeded)
	})
	return conn, err
}

// TestStrangersAreRefused: a connection needs the secret, the same cluster, and the id of the peer
// that is called. One with a question needs the secret only.
func TestStrangersAreRefused(t *testing.T) {
	open := func(secret, cluster string) *layer {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		l := newLayer(Config{
			Listener: listener, Secret: []byte(secret), Log: slog.New(slog.DiscardHandler),
			dial: func(ctx context.Context, address string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, "tcp", address)
			},
		}, func() identity { return identity{listener.Addr().String(), cluster} }, func(conn net.Conn) { _, _ = conn.Write([]byte("answer")) })
		t.Cleanup(func() { _ = l.Close() })
		return l
	}
	ours := open("secret", "cluster")
	at := ours.Listener.Addr().String()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	conn, err := greeted(t, func() (net.Conn, error) { return open("secret", "").dial(ctx, at, connAsk) })
	if err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(conn); err != nil || string(text) != "answer" {
		t.Errorf("%q, %v", text, err)
	}
	_ = conn.Close()
	if conn, err = greeted(t, func() (net.Conn, error) { return open("secret", "cluster").dial(ctx, at, connRaft) }); err != nil {
		t.Fatal(err)
	}
	_ = conn.Close()
	if _, err := greeted(t, func() (net.Conn, error) { return open("other", "cluster").dial(ctx, at, connAsk) }); !errors.Is(err, errStranger) {
		t.Errorf("another token: %v", err)
	}
	if _, err := greeted(t, func() (net.Conn, error) { return open("secret", "other").dial(ctx, at, connRaft) }); !errors.Is(err, errStranger) {
		t.Errorf("another cluster: %v", err)
	}
	if _, err := greeted(t, func() (net.Conn, error) {
		return open("secret", "").dial(ctx, open("secret", "").Listener.Addr().String(), connRaft)
	}); !errors.Is(err, errStranger) {
		t.Errorf("no cluster: %v", err)
	}
	if _, err := greeted(t, func() (net.Conn, error) { return open("secret", "cluster").dial(ctx, at+idMark+"1", connRaft) }); !errors.Is(err, errStranger) {
		t.Errorf("another peer at the address: %v", err)
	}
	// One that cannot check the answer, and says what it likes.
	raw, err := net.Dial("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = raw.Close() }()
	if err := raw.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := raw.Write(make([]byte, 9+32)); err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(raw); len(text) > 0 {
		t.Errorf("a stranger got %q, %v", text, err)
	}
}

// TestSilentConnectionsHoldNobodyOut: connections that say nothing give way to one that says hello.
func TestSilentConnectionsHoldNobodyOut(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := newLayer(Config{
		Listener: listener, Secret: []byte("secret"), Log: slog.New(slog.DiscardHandler),
		dial: func(ctx context.Context, address string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", address)
		},
	}, func() identity { return identity{listener.Addr().String(), "cluster"} }, func(conn net.Conn) { _, _ = conn.Write([]byte("answer")) })
	defer func() { _ = l.Close() }()
	for range 2 * mostStrangers {
		silent, err := net.Dial("tcp", listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = silent.Close() }()
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for range 3 {
		conn, err := greeted(t, func() (net.Conn, error) { return l.dial(ctx, listener.Addr().String(), connAsk) })
		if err != nil {
			t.Fatal(err)
		}
		if text, err := io.ReadAll(conn); err != nil || string(text) != "answer" {
			t.Errorf("%q, %v", text, err)
		}
		_ = conn.Close()
	}
}

// from is a connection of a host.
type from struct {
	net.Conn
	host   string
	closed bool
}

func (f *from) RemoteAddr() net.Addr { return address(f.host + ":1") }

func (f *from) Close() error {
	f.closed = true
	return nil
}

// TestTheHostWithTheMostStrangersLosesOne: many connections of one host close none of another.
func TestTheHostWithTheMostStrangersLosesOne(t *testing.T) {
	var all strangers
	other := &from{host: "10.0.0.2"}
	all.add(other)
	var loud []*from
	for range 3 * mostStrangers {
		conn := &from{host: "10.0.0.1"}
		all.add(conn)
		loud = append(loud, conn)
	}
	if other.closed || len(all.all) != hostStrangers+1 {
		t.Errorf("of two hosts %d connections are left, closed: %v", len(all.all), other.closed)
	}
	if !loud[0].closed || loud[len(loud)-1].closed {
		t.Error("the oldest connections do not go first")
	}
	for host := range 2 * mostStrangers { // One of each: the oldest of the host with the most goes.
		all.add(&from{host: fmt.Sprint("10.0.1.", host)})
	}
	if len(all.all) != mostStrangers {
		t.Errorf("%d connections are left", len(all.all))
	}
	all.remove(loud[len(loud)-1])
	if slices.Contains(all.all, net.Conn(loud[len(loud)-1])) {
		t.Error("one that has said its hello is still counted")
	}
}
