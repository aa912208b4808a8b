package borrow_test

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/slabshare"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/host"
	"github.com/millrace/millrace/transfer/borrow"
	"github.com/millrace/millrace/transfer/transfertest"
)

// A connection for completion notifications is passed to ServerConfig.Notify, if its token is
// valid. It ends with the server, and when Notify returns.
func TestConnectionsForNotifications(t *testing.T) {
	slab, err := host.NewSlab(1<<20, memory.Identity{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := slab.Close(); err != nil {
			t.Error(err)
		}
	}()
	ctx, cancel := context.WithTimeout(t.Context(), transfertest.Patience)
	defer cancel()
	echo := func(conn net.Conn) {
		b := make([]byte, 5)
		if _, err := io.ReadFull(conn, b); err == nil {
			_, _ = conn.Write(b)
			_, _ = conn.Read(b)
		}
	}
	accepts := func(token string) bool { return token == "secret" }
	peer, end := listen(t, borrow.ServerConfig{Space: slab, Notify: echo, Accept: accepts})
	conn, err := slabshare.DialNotify(ctx, peer.Address, "secret")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(transfertest.Patience)); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 5)
	if _, err := conn.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(conn, b); err != nil || string(b) != "hello" {
		t.Errorf("heard %q, %v", b, err)
	}
	if _, err := slabshare.DialNotify(ctx, peer.Address, "guessed"); !errors.Is(err, slabshare.ErrRefused) {
		t.Errorf("with another token: %v", err)
	}
	end()
	if _, err := conn.Read(b); !errors.Is(err, io.EOF) {
		t.Errorf("after the end: %v", err)
	}
	if _, err := slabshare.DialNotify(ctx, peer.Address, "secret"); !errors.Is(err, slabshare.ErrNotHere) {
		t.Errorf("at one that has ended: %v", err)
	}
	silent, _ := listen(t, borrow.ServerConfig{Space: slab})
	if _, err := slabshare.DialNotify(ctx, silent.Address, ""); !errors.Is(err, slabshare.ErrRefused) {
		t.Errorf("at one that tells nobody: %v", err)
	}
}
