//go:build cgo && linux

package ipc_test

import (
	"bytes"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/millrace/millrace/memory/cuda"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/ipc"
	"github.com/millrace/millrace/transfer/transfertest"
)

// The memory of a GPU with a reported error is not read, neither while its worker lives nor
// afterwards.
func TestGPUMemoryThatIsSuspectIsLeftAlone(t *testing.T) {
	slab := sized(64<<20, 64<<20)
	c, peer := lender(t, slab, set{Count: 2, Bytes: 1 << 20})
	var suspect atomic.Bool
	r := newReader(t, slab, func(c *ipc.Config) {
		c.KeepDead = time.Hour
		c.Suspect = func(cuda.UUID) error {
			if suspect.Load() {
				return errors.New("Xid 94")
			}
			return nil
		}
	})
	fetch := func() error {
		return r.path.Fetch(t.Context(), peer, []transfer.Ref{ref(0)}, transfertest.NewSinkIn(r.room))
	}
	suspect.Store(true)
	if err := fetch(); !errors.Is(err, transfer.ErrUnreachable) {
		t.Errorf("mapped anew: %v", err)
	}
	suspect.Store(false)
	if err := fetch(); err != nil {
		t.Fatal(err)
	}
	var loan transfer.Loan
	if !r.path.Lend(peer, ref(0), &loan) || !loan.End() {
		t.Fatal("it lends nothing")
	}
	suspect.Store(true)
	if err := fetch(); !errors.Is(err, transfer.ErrUnreachable) || !strings.Contains(err.Error(), "Xid 94") {
		t.Errorf("fetched: %v", err)
	}
	if err := r.path.FetchPipelined(t.Context(), peer, []transfer.Ref{ref(0)}, transfertest.NewSinkIn(r.room)); !errors.Is(err, transfer.ErrUnreachable) {
		t.Errorf("a pipelined read: %v", err)
	}
	if r.path.Lend(peer, ref(0), &loan) {
		t.Error("lent")
	}
	c.kill()
	rescue := func() error {
		return r.path.Rescue(t.Context(), peer, c.export.Identity.Incarnation, []transfer.Ref{ref(1)}, transfertest.NewSinkIn(r.room))
	}
	if err := rescue(); !errors.Is(err, transfer.ErrUnreachable) {
		t.Errorf("rescued: %v", err)
	}
	suspect.Store(false)
	if err := rescue(); err != nil {
		t.Errorf("rescue from a GPU that is well: %v", err)
	}
}

// Objects in the index of a killed source are copied out of its slab, which stays allocated until
// the source is forgotten. Then the next worker has room on the device.
func TestGPURescueFromAKilledSource(t *testing.T) {
	const small = 300
	slab, large := sized(256<<20, 4<<30), sized(8<<20, 512<<20)
	c, peer := lender(t, slab, set{Count: 4, Bytes: large}, set{First: 4, Count: small, Bytes: 4 << 10})
	unmapped := make(chan bool, 1)
	r := newReader(t, slab, func(c *ipc.Config) {
		c.KeepDead = time.Hour
		c.PeerUnmapped = func(_ transfer.Peer, dead bool) { unmapped <- dead }
	})
	life := c.export.Identity.Incarnation
	rescue := func(incarnation [16]byte, refs ...transfer.Ref) (*transfertest.Sink, error) {
		sink := transfertest.NewSinkIn(r.room)
		return sink, r.path.Rescue(t.Context(), peer, incarnation, refs, sink)
	}
	if _, err := rescue(life, ref(0)); !errors.Is(err, transfer.ErrUnreachable) {
		t.Errorf("from a source that was never read: %v", err)
	}
	if err := r.path.Fetch(t.Context(), peer, []transfer.Ref{ref(0)}, transfertest.NewSinkIn(r.room)); err != nil {
		t.Fatal(err)
	}
	if _, err := rescue(life, ref(1)); !errors.Is(err, transfer.ErrUnreachable) {
		t.Errorf("from a source that lives: %v", err)
	}
	c.kill()
	if _, err := rescue([16]byte{9}, ref(1)); !errors.Is(err, transfer.ErrUnreachable) {
		t.Errorf("from another life: %v", err)
	}
	var refs []transfer.Ref
	for i := range 4 + small + 1 { // the last one never existed
		refs = append(refs, ref(i))
	}
	began := time.Now()
	sink, err := rescue(life, refs...)
	if err != nil {
		t.Fatal(err)
	}
	total := float64(4*large + small*4<<10)
	tell(t, "rescue of 4 large and 300 small objects from a killed source", total/time.Since(began).Seconds()/1e9, "GB/s")
	patterns := map[bool][]byte{false: pattern(large), true: pattern(4 << 10)}
	for i := range refs {
		want := patterns[i >= 4]
		_, frames, done, err := sink.Result(i)
		switch {
		case !done:
			t.Errorf("object %d: nothing was said", i)
		case i == len(refs)-1:
			if !errors.Is(err, transfer.ErrNotHere) {
				t.Errorf("what was never there: %v", err)
			}
		case err != nil || !bytes.Equal(frames[0], want):
			t.Errorf("object %d: %v, or its bytes differ", i, err)
		}
	}
	select {
	case <-unmapped:
		t.Error("its memory was unmapped though it is to stay mapped")
	default:
	}
	r.path.Forget(peer.Address)
	select {
	case dead := <-unmapped:
		if !dead {
			t.Error("it was unmapped as if it lived")
		}
	case <-time.After(transfertest.Patience):
		t.Fatal("its memory was not unmapped")
	}
	if _, err := rescue(life, ref(1)); !errors.Is(err, transfer.ErrUnreachable) {
		t.Errorf("after it was forgotten: %v", err)
	}
	size := cuda.Size{Fraction: 0.7}
	if fake != nil {
		size = cuda.Size{Bytes: 5 << 30}
	}
	startChild(t, order{Device: otherDevice(), Size: size, Identity: newIdentity(), Await: true})
}
