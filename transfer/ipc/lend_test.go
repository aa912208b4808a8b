//go:build cgo && linux

package ipc_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/borrow"
	"github.com/millrace/millrace/transfer/ipc"
	"github.com/millrace/millrace/transfer/objindex"
	"github.com/millrace/millrace/transfer/transfertest"
)

// lent is a peer whose slab is in another process and whose objects and index are in this one, so
// that the test can inspect and change them.
type lent struct {
	*child
	objects *transfertest.Objects
	index   *objindex.Index
	server  *borrow.Server
	peer    transfer.Peer
}

func newLent(t *testing.T) *lent {
	t.Helper()
	h, c := newHeld(t, 256<<20)
	l := &lent{child: c, objects: transfertest.NewObjectsIn(transfertest.NewRoom(h)), index: newIndex(t)}
	l.objects.PublishTo(l.index)
	l.peer = transfer.Peer{Worker: 7, Name: "source", Address: freeAddress()}
	var err error
	if l.server, err = borrow.Listen(l.peer.Address, lending(h, h.export, l.objects)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.server.Close() })
	return l
}

// content returns the bytes of a loan's regions, read through the device.
func content(t *testing.T, l *transfer.Loan) (out []byte) {
	t.Helper()
	for _, r := range l.Regions {
		space := r.Space.(interface {
			memory.Reader
			Pointer(off, n uint64) uint64
		})
		if space.Pointer(r.Frame.Offset, r.Frame.Bytes) == 0 {
			t.Error("no address")
		}
		p := make([]byte, r.Frame.Bytes)
		if err := space.ReadInto(r.Frame.Offset, p); err != nil {
			t.Fatal(err)
		}
		out = append(out, p...)
	}
	return out
}

// Objects in a peer's object index are lent at once if the peer's memory is mapped, and not before.
// Objects that are not in the index are not lent.
func TestGPULoans(t *testing.T) {
	l := newLent(t)
	const count = 300
	want := make([][]byte, count)
	for i := range want {
		want[i] = patternOf(byte(i), uint64(1+97*i))
		l.objects.Put(ref(i), "head", want[i][:len(want[i])/2], want[i][len(want[i])/2:])
	}
	arrived := 0
	r := newReader(t, 64<<20, func(c *ipc.Config) { c.Received = func(n int) { arrived += n } })
	var loan transfer.Loan
	if r.path.CanLend(l.peer, ref(1)) || r.path.Lend(l.peer, ref(1), &loan) {
		t.Error("it lends what is not mapped")
	}
	if _, err := r.path.Connect(t.Context(), l.peer); err != nil {
		t.Fatal(err)
	}
	for what, of := range map[string]transfer.Ref{
		"what is not there": ref(count), "another generation": {Task: ref(1).Task, Generation: 2}, "no generation": {Task: ref(1).Task},
	} {
		if r.path.CanLend(l.peer, of) || r.path.Lend(l.peer, of, &loan) {
			t.Errorf("it lends %s", what)
		}
	}
	if l.index.Readers(time.Now()) != nil {
		t.Error("somebody is said to read, and nothing is lent")
	}
	loans := make([]transfer.Loan, count)
	for i := range loans {
		if !r.path.CanLend(l.peer, ref(i)) || !r.path.Lend(l.peer, ref(i), &loans[i]) {
			t.Fatalf("object %d is not lent", i)
		}
		if h := loans[i].Head; h.Ref != ref(i) || string(h.Header) != "head" || h.Bytes() != uint64(len(want[i])) {
			t.Errorf("object %d is described as %v", i, h)
		}
	}
	if l.index.Readers(time.Now()) == nil {
		t.Error("nobody is said to read")
	}
	// An unpublished object keeps its bytes as long as it is being read.
	l.index.Unpublish(ref(5))
	if r.path.CanLend(l.peer, ref(5)) {
		t.Error("it lends an unpublished object")
	}
	for i := range loans {
		if !bytes.Equal(content(t, &loans[i]), want[i]) {
			t.Errorf("object %d has other bytes", i)
		}
		r.path.Read(l.peer, uint64(len(want[i])))
		if !loans[i].End() {
			t.Errorf("loan %d did not hold", i)
		}
	}
	if l.index.Readers(time.Now()) != nil {
		t.Error("somebody is said to read after the last loan")
	}
	if told := l.index.Stats().ReadBytes; arrived == 0 || told != uint64(arrived) {
		t.Errorf("%d bytes were read, the lender was told of %d", arrived, told)
	}
}

// A lender waits for its readers until the TTL is over. Then the data that they read is invalid.
func TestGPULoanIsRevoked(t *testing.T) {
	l := newLent(t)
	l.objects.Put(ref(1), "x", pattern(5000))
	l.objects.Put(ref(2), "x", pattern(5000))
	r := newReader(t, 64<<20, nil)
	if _, err := r.path.Connect(t.Context(), l.peer); err != nil {
		t.Fatal(err)
	}
	var one, two transfer.Loan
	if !r.path.Lend(l.peer, ref(1), &one) || !r.path.Lend(l.peer, ref(2), &two) {
		t.Fatal("nothing is lent")
	}
	l.index.Unpublish(ref(1))
	now := time.Now()
	over := l.index.Readers(now)
	if over == nil || over(now) {
		t.Fatal("nobody is waited for")
	}
	if !over(now.Add(objindex.DefaultTTL)) {
		t.Fatal("they are waited for too long")
	}
	var three transfer.Loan
	if !r.path.Lend(l.peer, ref(2), &three) {
		t.Fatal("nothing is lent after a revocation")
	}
	if one.End() || two.End() {
		t.Error("a loan is said to have held that was revoked")
	}
	if !three.End() {
		t.Error("a loan did not hold that began later")
	}
}

// Loans use some of a connection's slots and leave the others to fetches.
func TestGPULoansLeaveSlotsToFetches(t *testing.T) {
	l := newLent(t)
	l.objects.Put(ref(1), "x", pattern(5000))
	r := newReader(t, 64<<20, nil)
	if _, err := r.path.Connect(t.Context(), l.peer); err != nil {
		t.Fatal(err)
	}
	var loans []transfer.Loan
	for began := time.Now(); ; {
		var loan transfer.Loan
		if !r.path.Lend(l.peer, ref(1), &loan) {
			break
		}
		loans = append(loans, loan)
		if time.Since(began) > transfertest.Patience {
			t.Fatalf("%d loans, and still more", len(loans))
		}
	}
	sink := transfertest.NewSinkIn(r.room)
	if err := r.path.Fetch(t.Context(), l.peer, []transfer.Ref{ref(1)}, sink); err != nil {
		t.Fatal(err)
	}
	for i := range loans {
		if !loans[i].End() {
			t.Fatalf("loan %d of %d did not hold", i, len(loans))
		}
	}
	var again transfer.Loan
	if !r.path.Lend(l.peer, ref(1), &again) || !again.End() {
		t.Error("nothing is lent after the others have ended")
	}
}

// The memory of a killed peer keeps its contents until the last loan has ended; then it is
// unmapped.
func TestGPULenderKilled(t *testing.T) {
	c, peer := lender(t, 64<<20, set{Count: 2, Bytes: 1 << 20})
	unmapped := make(chan bool, 1)
	r := newReader(t, 64<<20, func(c *ipc.Config) { c.PeerUnmapped = func(_ transfer.Peer, dead bool) { unmapped <- dead } })
	if _, err := r.path.Connect(t.Context(), peer); err != nil {
		t.Fatal(err)
	}
	var one, two transfer.Loan
	if !r.path.Lend(peer, ref(0), &one) || !r.path.Lend(peer, ref(1), &two) {
		t.Fatal("nothing is lent")
	}
	c.kill()
	for began := time.Now(); r.path.CanLend(peer, ref(0)); {
		if time.Since(began) > transfertest.Patience {
			t.Fatal("a dead peer lends")
		}
	}
	if !bytes.Equal(content(t, &one), pattern(1<<20)) || !one.End() {
		t.Error("what was lent by a dead peer did not hold, or has other bytes")
	}
	r.path.Forget(peer.Address)
	select {
	case <-unmapped:
		t.Fatal("it was unmapped while something of it was lent")
	default:
	}
	if !bytes.Equal(content(t, &two), pattern(1<<20)) || !two.End() {
		t.Error("what was lent by a forgotten peer did not hold, or has other bytes")
	}
	select {
	case dead := <-unmapped:
		if !dead {
			t.Error("it was unmapped as if it lived")
		}
	case <-time.After(transfertest.Patience):
		t.Fatal("its memory was not unmapped")
	}
}

// A closed path grants no more loans. Existing loans can be read until they end.
func TestGPUPathClosedWithLoans(t *testing.T) {
	c, peer := lender(t, 64<<20, set{Count: 1, Bytes: 1 << 20})
	unmapped := make(chan bool, 1)
	r := newReader(t, 64<<20, func(c *ipc.Config) { c.PeerUnmapped = func(_ transfer.Peer, dead bool) { unmapped <- dead } })
	if _, err := r.path.Connect(t.Context(), peer); err != nil {
		t.Fatal(err)
	}
	var loan, late transfer.Loan
	if !r.path.Lend(peer, ref(0), &loan) {
		t.Fatal("nothing is lent")
	}
	closing(t, r.path)
	if r.path.CanLend(peer, ref(0)) || r.path.Lend(peer, ref(0), &late) {
		t.Error("a closed path lends")
	}
	if !bytes.Equal(content(t, &loan), pattern(1<<20)) {
		t.Error("it has other bytes")
	}
	select {
	case <-unmapped:
		t.Fatal("it was unmapped while something of it was lent")
	default:
	}
	loan.End() // it held or not, depending on whether the lender has noticed
	<-unmapped
	c.kill()
}
