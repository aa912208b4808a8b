package consensus

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"testing"
	"time"
)

// TestStrangersAreRefused: a connection needs the secret and the same list of peers, on both
// sides.
func TestStrangersAreRefused(t *testing.T) {
	open := func(secret string, addresses ...string) *layer {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		l := newLayer(Config{
			Listener: listener, Addresses: addresses, Secret: []byte(secret), Log: slog.New(slog.DiscardHandler),
			dial: func(ctx context.Context, address string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, "tcp", address)
			},
		}, func(conn net.Conn) { _, _ = conn.Write([]byte("answer")) })
		t.Cleanup(func() { _ = l.Close() })
		return l
	}
	ours := open("secret", "a:1", "b:1", "c:1")
	at := ours.Listener.Addr().String()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	conn, err := open("secret", "c:1", "b:1", "a:1").dial(ctx, at, connAsk)
	if err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(conn); err != nil || string(text) != "answer" {
		t.Errorf("%q, %v", text, err)
	}
	_ = conn.Close()
	for what, other := range map[string]*layer{"another token": open("other", "a:1", "b:1", "c:1"), "another list": open("secret", "a:1", "b:1", "d:1")} { // order-free: all are tried
		if _, err := other.dial(ctx, at, connAsk); !errors.Is(err, errStranger) {
			t.Errorf("%s: %v", what, err)
		}
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
