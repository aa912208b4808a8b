package borrow_test

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/internal/leaktest"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/host"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/borrow"
	"github.com/millrace/millrace/transfer/objindex"
	"github.com/millrace/millrace/transfer/transfertest"
)

func TestMain(m *testing.M) {
	if address := os.Getenv(childEnv); address != "" {
		lendUntilKilled(address)
	}
	if address := os.Getenv(readEnv); address != "" {
		readUntilKilled(address)
	}
	if address := os.Getenv(strangerEnv); address != "" {
		lookAsStranger(address)
	}
	goleak.VerifyTestMain(leaktest.Patient{M: m})
}

// slabbed moves the objects of a source into a slab when they are leased.
type slabbed struct {
	transfer.Source
	slab *host.Slab

	mu   sync.Mutex
	next uint64
	at   map[string]memory.Frame
}

func newSlabbed(tb testing.TB, source transfer.Source) *slabbed {
	tb.Helper()
	slab, err := host.NewSlab(512<<20, memory.Identity{WorkerUUID: [16]byte{1}, Incarnation: [16]byte{2}, Nonce: 3})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := slab.Close(); err != nil {
			tb.Error(err)
		}
	})
	return &slabbed{Source: source, slab: slab, next: memory.HeaderBytes, at: make(map[string]memory.Frame)}
}

func (s *slabbed) Lease(reader transfer.Reader, refs []transfer.Ref, ttl time.Duration) []transfer.Leased {
	out := s.Source.Lease(reader, refs, ttl)
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range out {
		regions := make([]transfer.Region, len(out[i].Regions))
		for f, r := range out[i].Regions {
			name := fmt.Sprint(refs[i], f)
			frame, ok := s.at[name]
			if !ok && r.Frame.Bytes > 0 {
				frame = memory.Frame{Offset: s.next + 1, Bytes: r.Frame.Bytes} // unaligned
				s.next += r.Frame.Bytes + 1
				copy(s.slab.Bytes(frame.Offset, frame.Bytes), r.Bytes())
				s.at[name] = frame
			}
			regions[f] = transfer.Region{Space: s.slab, Frame: frame}
		}
		out[i].Regions = regions
	}
	return out
}

var served atomic.Uint32

// serve lends from a source. It returns the peer and a function that closes the server.
func serve(tb testing.TB, source transfer.Source, c borrow.ServerConfig) (transfer.Peer, func()) {
	tb.Helper()
	s := newSlabbed(tb, source)
	c.Space, c.Source = s.slab, s
	return listen(tb, c)
}

func listen(tb testing.TB, c borrow.ServerConfig) (transfer.Peer, func()) {
	tb.Helper()
	peer := transfer.Peer{Worker: 1, Name: "peer", Address: fmt.Sprintf("test-%d-%d", os.Getpid(), served.Add(1))}
	server, err := borrow.Listen(peer.Address, c)
	if err != nil {
		tb.Fatal(err)
	}
	end := sync.OnceFunc(func() {
		if err := server.Close(); err != nil {
			tb.Error(err)
		}
	})
	tb.Cleanup(end)
	return peer, end
}

// open makes a path whose timeouts and leases are long enough for a busy machine, unless the test
// sets them.
func open(tb testing.TB, c borrow.Config) *borrow.Path {
	tb.Helper()
	c.StallTimeout, c.LeaseTTL = cmp.Or(c.StallTimeout, transfertest.Patience), cmp.Or(c.LeaseTTL, transfertest.Patience)
	path := borrow.New(c)
	tb.Cleanup(func() {
		if err := path.Close(); err != nil {
			tb.Error(err)
		}
	})
	return path
}

func TestConformance(t *testing.T) {
	transfertest.Harness{
		Serve: func(t *testing.T, source transfer.Source) (transfer.Peer, func()) {
			t.Helper()
			return serve(t, source, borrow.ServerConfig{})
		},
		Path: func(t *testing.T, stall time.Duration) transfer.Path {
			t.Helper()
			return open(t, borrow.Config{Worker: func() ids.WorkerID { return 2 }, StallTimeout: stall})
		},
	}.Run(t)
}

// The same suite, for objects that are found in the shared object index.
func TestConformanceWithAnIndex(t *testing.T) {
	transfertest.Harness{
		Serve: func(t *testing.T, source transfer.Source) (transfer.Peer, func()) {
			t.Helper()
			objects := source.(*transfertest.Objects)
			return listen(t, borrow.ServerConfig{Space: objects.Room().Space(), Source: source, Index: objects.Index()})
		},
		Path: func(t *testing.T, stall time.Duration) transfer.Path {
			t.Helper()
			return open(t, borrow.Config{Worker: func() ids.WorkerID { return 2 }, StallTimeout: stall})
		},
		Objects: shownIn,
	}.Run(t)
}

// shownIn makes an empty source in a slab; its objects are published in a shared object index.
func shownIn(t *testing.T) *transfertest.Objects {
	t.Helper()
	slab, err := host.NewSlab(512<<20, memory.Identity{WorkerUUID: [16]byte{1}, Incarnation: [16]byte{2}, Nonce: 3})
	if err != nil {
		t.Fatal(err)
	}
	b, err := objindex.New(8<<10, 50*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(slab.Close(), b.Close()); err != nil {
			t.Error(err)
		}
	})
	objects := transfertest.NewObjectsIn(transfertest.NewRoom(slab))
	objects.PublishTo(b)
	return objects
}

var one = transfer.Ref{Task: 1, Generation: 1}

func TestLoanIsUsedInPlace(t *testing.T) {
	objects := transfertest.NewObjects()
	objects.Put(one, "head", []byte("some bytes"), nil, []byte("more"))
	peer, end := serve(t, objects, borrow.ServerConfig{})
	path := open(t, borrow.Config{})
	loans, err := path.Borrow(t.Context(), peer, []transfer.Ref{one, {Task: 2, Generation: 1}}, false)
	if err != nil {
		t.Fatal(err)
	}
	if !errors.Is(loans[1].Err, transfer.ErrNotHere) {
		t.Errorf("object 2: %v, want ErrNotHere", loans[1].Err)
	}
	l := loans[0]
	if l.Err != nil || string(l.Head.Header) != "head" || len(l.Regions) != 3 {
		t.Fatalf("%+v", l)
	}
	if got := l.Regions[0].Bytes(); !bytes.Equal(got, []byte("some bytes")) {
		t.Errorf("%q", got)
	}
	if n := objects.Leases(); n != 1 {
		t.Errorf("%d leases, want 1", n)
	}
	if !l.End() {
		t.Error("the lease did not hold")
	}
	transfertest.NoLeases(t, objects)

	// If a live peer closes the connection, a loan no longer counts as valid. But its memory stays
	// mapped until the loan ends.
	if loans, err = path.Borrow(t.Context(), peer, []transfer.Ref{one}, false); err != nil {
		t.Fatal(err)
	}
	end()
	if got := loans[0].Regions[2].Bytes(); !bytes.Equal(got, []byte("more")) {
		t.Errorf("%q", got)
	}
	if loans[0].End() {
		t.Error("a lease held that its giver took back")
	}
}

// refusing is a source that renews no lease.
type refusing struct{ *transfertest.Objects }

func (refusing) Renew(leases []transfer.LeaseID, _ time.Duration) []bool {
	return make([]bool, len(leases))
}

func TestLeaseThatWasNotRenewedDoesNotHold(t *testing.T) {
	objects := transfertest.NewObjects()
	objects.Put(one, "", []byte("x"))
	peer, _ := serve(t, refusing{objects}, borrow.ServerConfig{})
	path := open(t, borrow.Config{LeaseTTL: 20 * time.Millisecond})
	loans, err := path.Borrow(t.Context(), peer, []transfer.Ref{one}, false)
	if err != nil {
		t.Fatal(err)
	}
	<-time.After(30 * time.Millisecond) // the test needs the time to pass
	if loans[0].End() {
		t.Error("a lease of 20 ms held for 30")
	}
}

func TestStrangersGetNothing(t *testing.T) {
	objects := transfertest.NewObjects()
	objects.Put(one, "", []byte("x"))
	peer, _ := serve(t, objects, borrow.ServerConfig{Accept: func(token string) bool { return token == "right" }})
	if _, err := open(t, borrow.Config{Token: "wrong"}).Borrow(t.Context(), peer, []transfer.Ref{one}, false); !errors.Is(err, transfer.ErrUnreachable) {
		t.Errorf("with a wrong token: %v", err)
	}
	if _, err := open(t, borrow.Config{Token: "right"}).Borrow(t.Context(), peer, []transfer.Ref{one}, false); err != nil {
		t.Errorf("with the right token: %v", err)
	}
	nowhere := transfer.Peer{Worker: 9, Name: "other host", Address: "192.0.2.1:7"}
	if _, err := open(t, borrow.Config{}).Borrow(t.Context(), nowhere, []transfer.Ref{one}, false); !errors.Is(err, transfer.ErrUnreachable) {
		t.Errorf("of a peer on another host: %v", err)
	}
}

func TestClientsDoNotTakeAllTheRoom(t *testing.T) {
	objects := transfertest.NewObjects()
	var refs []transfer.Ref
	// 5 times 64 MiB of 512 MiB: four of them fit into the half that clients may use.
	for i := range 5 {
		ref := transfer.Ref{Task: ids.TaskID(i + 1), Generation: 1}
		objects.Put(ref, "", make([]byte, 64<<20))
		refs = append(refs, ref)
	}
	peer, _ := serve(t, objects, borrow.ServerConfig{})
	lent := func(path *borrow.Path) (loans []transfer.Loan) {
		got, err := path.Borrow(t.Context(), peer, refs, false)
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range got {
			if l.Err == nil {
				loans = append(loans, l)
			} else if !errors.Is(l.Err, transfer.ErrUnreachable) {
				t.Error(l.Err)
			}
		}
		return loans
	}
	client := open(t, borrow.Config{})
	first := lent(client)
	worker := lent(open(t, borrow.Config{Worker: func() ids.WorkerID { return 2 }}))
	if len(first) != 4 || len(worker) != 5 {
		t.Errorf("%d loans of a client and %d of a worker, want 4 and 5", len(first), len(worker))
	}
	for _, l := range append(first, worker...) {
		l.End()
	}
	transfertest.NoLeases(t, objects)
	if again := lent(client); len(again) != 4 {
		t.Errorf("%d loans after all were given back, want 4", len(again))
	} else {
		for _, l := range again {
			l.End()
		}
	}
}
