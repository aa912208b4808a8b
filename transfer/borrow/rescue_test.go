package borrow_test

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/borrow"
	"github.com/millrace/millrace/transfer/transfertest"
)

// TestRescueFromADeadLender: the objects in a killed peer's index can be found and copied until
// Forget. From a live peer, Rescue takes nothing.
func TestRescueFromADeadLender(t *testing.T) {
	child, peer := startLender(t)
	unmapped := make(chan bool, 1)
	path := open(t, borrow.Config{KeepDead: time.Hour, Unmapped: func(_ transfer.Peer, dead bool) { unmapped <- dead }})
	never := transfer.Ref{Task: 2, Generation: 1}
	rescue := func(incarnation [16]byte) (*transfertest.Sink, error) {
		sink := transfertest.NewSink()
		return sink, path.Rescue(t.Context(), peer, incarnation, []transfer.Ref{one, never}, sink)
	}
	if err := path.Connect(t.Context(), peer); err != nil {
		t.Fatal(err)
	}
	if _, err := rescue(lenderLife); !errors.Is(err, transfer.ErrUnreachable) {
		t.Errorf("from a peer that lives: %v", err)
	}
	kill(t, child)
	if _, err := rescue([16]byte{9}); !errors.Is(err, transfer.ErrUnreachable) {
		t.Errorf("from another life: %v", err)
	}
	for range 2 {
		sink, err := rescue(lenderLife)
		if err != nil {
			t.Fatal(err)
		}
		if _, frames, done, err := sink.Result(0); !done || err != nil || !bytes.Equal(frames[0], bytes.Repeat([]byte("mill"), 1<<20)) {
			t.Errorf("done %v, %v, or the bytes differ", done, err)
		}
		if _, _, done, err := sink.Result(1); !done || !errors.Is(err, transfer.ErrNotHere) {
			t.Errorf("what was never there: done %v, %v", done, err)
		}
	}
	path.Forget(peer.Address)
	select {
	case dead := <-unmapped:
		if !dead {
			t.Error("it was unmapped as if it lived")
		}
	case <-time.After(transfertest.Patience):
		t.Fatal("its memory was not unmapped")
	}
	if _, err := rescue(lenderLife); !errors.Is(err, transfer.ErrUnreachable) {
		t.Errorf("after it was forgotten: %v", err)
	}
}

// TestDeadLenderIsUnmappedInTime: without Forget, the memory is unmapped after Config.KeepDead.
func TestDeadLenderIsUnmappedInTime(t *testing.T) {
	child, peer := startLender(t)
	unmapped := make(chan bool, 1)
	path := open(t, borrow.Config{KeepDead: time.Millisecond, Unmapped: func(_ transfer.Peer, dead bool) { unmapped <- dead }})
	if err := path.Connect(t.Context(), peer); err != nil {
		t.Fatal(err)
	}
	kill(t, child)
	select {
	case <-unmapped:
	case <-time.After(transfertest.Patience):
		t.Fatal("its memory was not unmapped")
	}
}
