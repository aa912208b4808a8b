//go:build cgo && linux

package ipc_test

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/cuda"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/ipc"
	"github.com/millrace/millrace/transfer/transfertest"
)

func sized(onFake, onGPU uint64) uint64 {
	if fake != nil {
		return onFake
	}
	return onGPU
}

// lender starts a child that lends objects of its own.
func lender(t *testing.T, slab uint64, sets ...set) (*child, transfer.Peer) {
	t.Helper()
	address := freeAddress()
	c := startChild(t, order{Device: otherDevice(), Size: cuda.Size{Bytes: slab}, Identity: newIdentity(), Address: address, Sets: sets})
	return c, transfer.Peer{Worker: 7, Name: "source", Address: address}
}

// A source is killed after it lent objects. Its memory keeps its contents, so the objects are
// valid. Afterwards it is unmapped, and its device has room again.
func TestGPUSourceKilledAfterLending(t *testing.T) {
	slab, large := sized(64<<20, 4<<30), sized(8<<20, 512<<20)
	c, peer := lender(t, slab, set{Count: 4, Bytes: large})
	var once sync.Once
	unmapped := make(chan bool, 1)
	r := newReader(t, max(slab, 5*large), func(c *ipc.Config) {
		c.Unmapped = func(_ memory.Identity, dead bool) { once.Do(func() { unmapped <- dead }) }
	})
	sink := transfertest.NewSinkIn(r.room)
	sink.PlaceHook = func(_ context.Context, index int, _ transfer.Head) error {
		if index == 1 {
			c.kill()
		}
		return nil
	}
	if err := r.path.Fetch(t.Context(), peer, []transfer.Ref{ref(0), ref(1), ref(2)}, sink); err != nil {
		t.Fatal(err)
	}
	want := pattern(large)
	for i := range 3 {
		if _, frames, done, err := sink.Result(i); !done || err != nil || !bytes.Equal(frames[0], want) {
			t.Errorf("object %d: done %v, %v, or its bytes differ", i, done, err)
		}
	}
	select {
	case dead := <-unmapped:
		if !dead {
			t.Error("it was unmapped as if it lived")
		}
	case <-time.After(transfertest.Patience):
		t.Fatal("its memory was not unmapped")
	}
	if err := r.path.Fetch(t.Context(), peer, []transfer.Ref{ref(0)}, sink); !errors.Is(err, transfer.ErrPeerLost) || !errors.Is(err, transfer.ErrUnreachable) {
		t.Errorf("again: %v", err)
	}
}

// The next incarnation of a killed worker gets a slab of most of the device, although its peer
// lives on. The peer reads from it under the same address and with the same pid, and must get the
// new incarnation's bytes, never those of the dead one.
func TestGPURestartedSourceGetsItsSlab(t *testing.T) {
	size := cuda.Size{Fraction: 0.7}
	address, sets := freeAddress(), []set{{Count: 1, Bytes: 4 << 20}}
	o := order{Device: otherDevice(), Size: size, Identity: newIdentity(), Address: address, Sets: sets}
	if fake != nil {
		o.Size = cuda.Size{Bytes: 5 << 30}
	}
	peer := transfer.Peer{Worker: 7, Name: "source", Address: address}
	r := newReader(t, 64<<20, nil)
	var c *child
	for life := range 3 {
		o.Sets[0].Life = byte(life)
		want := patternOf(byte(life), 4<<20)
		began := time.Now()
		c = startChildAgain(t, c, o)
		if life > 0 {
			tell(t, "restarted source has its slab, with its context, after", float64(time.Since(began))/1e6, "ms")
		}
		sink := transfertest.NewSinkIn(r.room)
		if err := r.path.Fetch(t.Context(), peer, []transfer.Ref{ref(0)}, sink); err != nil {
			t.Fatal(err)
		}
		if _, frames, done, err := sink.Result(0); !done || err != nil || !bytes.Equal(frames[0], want) {
			t.Errorf("life %d: done %v, %v, or its bytes differ", life, done, err)
		}
		c.kill()
		o.Identity, o.Await = newIdentity(), true
	}
}

// A stopped source: objects that it lent before, or published in its object index, can be read. It
// grants no other leases.
func TestGPUSourceStopped(t *testing.T) {
	large := sized(8<<20, 256<<20)
	c, peer := lender(t, sized(64<<20, 1<<30), set{Count: 2, Bytes: large})
	r := newReader(t, 5*large, nil)
	// Only the reader that asks in vain is impatient. It has connected before the source stops.
	impatient := newReader(t, large, func(c *ipc.Config) { c.StallTimeout = 3 * time.Second })
	eventually(t, "a connection", func() bool {
		_, err := impatient.path.Connect(t.Context(), peer)
		if err != nil && !errors.Is(err, transfer.ErrStalled) {
			t.Fatal(err)
		}
		return err == nil
	})
	sink := transfertest.NewSinkIn(r.room)
	sink.PlaceHook = func(context.Context, int, transfer.Head) error {
		return c.cmd.Process.Signal(syscall.SIGSTOP)
	}
	if err := r.path.Fetch(t.Context(), peer, []transfer.Ref{ref(0), ref(1)}, sink); err != nil {
		t.Fatal(err)
	}
	if _, frames, done, err := sink.Result(1); !done || err != nil || !bytes.Equal(frames[0], pattern(large)) {
		t.Errorf("done %v, %v, or its bytes differ", done, err)
	}
	again := transfertest.NewSinkIn(r.room)
	if err := r.path.Fetch(t.Context(), peer, []transfer.Ref{ref(0)}, again); err != nil {
		t.Errorf("what a stopped source shows: %v", err)
	}
	lacking := transfertest.NewSinkIn(impatient.room)
	if err := impatient.path.Fetch(t.Context(), peer, []transfer.Ref{{Task: ref(0).Task}}, lacking); !errors.Is(err, transfer.ErrStalled) {
		t.Errorf("of a stopped source: %v", err)
	}
	if err := c.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	sink = transfertest.NewSinkIn(r.room)
	if err := r.path.Fetch(t.Context(), peer, []transfer.Ref{ref(0)}, sink); err != nil {
		t.Errorf("after it went on: %v", err)
	}
}
