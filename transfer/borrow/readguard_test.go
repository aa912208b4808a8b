package borrow_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/borrow"
	"github.com/millrace/millrace/transfer/transfertest"
)

// readEnv makes this test program a reader of object one; its value is the address of the lender.
const readEnv = "MILLRACE_TEST_READ_AT"

// readUntilKilled takes an epoch guard, finds the object under it, reports that, and never ends.
func readUntilKilled(address string) {
	path := borrow.New(borrow.Config{Worker: func() ids.WorkerID { return 2 }, StallTimeout: transfertest.Patience})
	g, err := path.Pin(context.Background(), transfer.Peer{Worker: 1, Name: "parent", Address: address}, 1)
	if err != nil {
		panic(err)
	}
	var lent borrow.Lent
	fmt.Println("found", g.Find(one, &lent))
	select {}
}

func serveShown(t *testing.T) (*transfertest.Objects, transfer.Peer, func()) {
	t.Helper()
	objects := shownIn(t)
	objects.Put(one, "head", []byte("some bytes"), nil)
	peer, end := listen(t, borrow.ServerConfig{Space: objects.Room().Space(), Source: objects, Index: objects.Index()})
	return objects, peer, end
}

func pin(t *testing.T, path *borrow.Path, peer transfer.Peer) (*borrow.ReadGuard, borrow.Lent) {
	t.Helper()
	g, err := path.Pin(t.Context(), peer, 1)
	if err != nil || g == nil {
		t.Fatal(g, err)
	}
	var lent borrow.Lent
	if !g.Find(one, &lent) {
		t.Fatal("it is not in the index")
	}
	return g, lent
}

func TestIndexedObjectsAreFoundWithoutALease(t *testing.T) {
	objects, peer, end := serveShown(t)
	path := open(t, borrow.Config{})
	g, lent := pin(t, path, peer)
	if string(lent.Head.Header) != "head" || len(lent.Frames) != 2 || lent.Head.Bytes() != 10 {
		t.Errorf("%+v", lent)
	}
	if got := g.Memory.Bytes(lent.Frames[0].Offset, 10); string(got) != "some bytes" {
		t.Errorf("%q", got)
	}
	if g.Find(transfer.Ref{Task: one.Task}, &lent) || g.Find(transfer.Ref{Task: one.Task, Generation: 2}, &lent) {
		t.Error("another generation is found")
	}
	if n := objects.Leases(); n != 0 {
		t.Errorf("%d leases", n)
	}
	if !g.Held() || !g.End() {
		t.Error("it did not hold")
	}
	// If a live peer closes the connection, nothing that was read under the guard counts as valid.
	g, _ = pin(t, path, peer)
	end()
	if g.Held() || g.End() {
		t.Error("it held though the peer has hung up")
	}
}

func TestWithoutAnIndexLeasesAreAskedFor(t *testing.T) {
	objects, peer, _ := serveShown(t)
	for name, path := range map[string]*borrow.Path{"reader": open(t, borrow.Config{NoIndex: true}), "too many": open(t, borrow.Config{})} {
		if name == "too many" {
			for range 16 {
				g, _ := pin(t, path, peer)
				defer g.End()
			}
		}
		if g, err := path.Pin(t.Context(), peer, 1); g != nil || err != nil {
			t.Errorf("%s: %v, %v", name, g, err)
		}
		sink := transfertest.NewSink()
		if err := path.Fetch(t.Context(), peer, []transfer.Ref{one}, sink); err != nil {
			t.Error(name, err)
		}
		if _, frames, done, err := sink.Result(0); !done || err != nil || !bytes.Equal(frames[0], []byte("some bytes")) {
			t.Errorf("%s: %q, done %v, %v", name, frames, done, err)
		}
	}
	transfertest.NoLeases(t, objects)
}

// A fetch whose epoch guard was revoked fails, and delivers no object.
func TestARevokedFetchFails(t *testing.T) {
	objects, peer, _ := serveShown(t)
	path := open(t, borrow.Config{})
	sink := transfertest.NewSink()
	sink.PlaceHook = func(context.Context, int, transfer.Head) error {
		b := objects.Index()
		b.Unpublish(one)
		now := time.Now()
		if over := b.Readers(now); over == nil || over(now) || !over(now.Add(time.Minute)) {
			t.Error("it was not revoked")
		}
		return nil
	}
	if err := path.Fetch(t.Context(), peer, []transfer.Ref{one}, sink); !errors.Is(err, transfer.ErrPeerLost) {
		t.Errorf("%v", err)
	}
	if _, _, done, _ := sink.Result(0); done {
		t.Error("it was delivered")
	}
	// The next fetch falls back to a lease, and gets a reader slot again.
	sink = transfertest.NewSink()
	if err := path.Fetch(t.Context(), peer, []transfer.Ref{one}, sink); err != nil {
		t.Error(err)
	}
}

func TestAKilledReaderDelaysNothing(t *testing.T) {
	objects, peer, _ := serveShown(t)
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), readEnv+"="+peer.Address)
	child.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	said := make([]byte, len("found true"))
	if _, err := io.ReadFull(out, said); err != nil || string(said) != "found true" {
		t.Errorf("%q, %v", said, err)
	}
	now := time.Now()
	over := objects.Index().Readers(now)
	if over == nil || over(now) {
		t.Error("it is not waited for")
	}
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = child.Wait() // ends with an error, because it was killed
	for limit := now.Add(transfertest.Patience); over != nil && !over(now); {
		if time.Now().After(limit) {
			t.Fatal("it is waited for")
		}
		<-time.After(time.Millisecond) // the server notices the end of the connection later
	}
	if s := objects.Index().Stats(); s.Revoked != 0 {
		t.Errorf("%+v", s)
	}
}
