package borrow_test

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	hostv1 "github.com/millrace/millrace/gen/go/millrace/host/v1"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/internal/slabshare"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/host"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/borrow"
	"github.com/millrace/millrace/transfer/transfertest"
)

// stager copies parts to a slab with the processor.
type stager struct {
	to *host.Slab
	// release, if set, holds Stage until it is closed or its context ends.
	release chan struct{}
	// returned gets an element for each place that is given back.
	returned chan struct{}

	mu sync.Mutex
	// All below is guarded by mu. places are the places that were not given back.
	next   uint64
	places map[uint64]bool
	most   int
}

const stageAtOnce = 64 << 10

func (*stager) StageBytes() uint64 { return stageAtOnce }

func (s *stager) Stage(ctx context.Context, size uint64, slab memory.Space, pieces []memory.Piece) (memory.Frame, error) {
	if s.release != nil {
		select {
		case <-s.release:
		case <-ctx.Done():
			return memory.Frame{}, context.Cause(ctx)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	at := memory.Frame{Offset: memory.HeaderBytes + s.next*stageAtOnce, Bytes: size}
	s.next++
	s.places[at.Offset] = true
	s.most = max(s.most, len(s.places))
	for _, p := range pieces {
		copy(s.to.Bytes(at.Offset, size)[p.At:p.At+p.Bytes], slab.Bytes(p.Offset, p.Bytes))
	}
	return at, nil
}

func (s *stager) Unstage(at memory.Frame) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.places[at.Offset] {
		panic("a place was given back twice")
	}
	delete(s.places, at.Offset)
	s.returned <- struct{}{}
}

func (s *stager) mostHeld() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.most
}

func (s *stager) held() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.places)
}

// staging serves objects on a "GPU" that no reader maps.
func staging(t *testing.T, objects *transfertest.Objects, timeout time.Duration) (transfer.Peer, *stager) {
	t.Helper()
	to, err := host.NewSlab(64<<20, memory.Identity{Nonce: 9})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := to.Close(); err != nil {
			t.Error(err)
		}
	})
	s := &stager{to: to, places: map[uint64]bool{}, returned: make(chan struct{}, 1000)}
	gpu := newSlabbed(t, objects)
	peer, end := listen(t, borrow.ServerConfig{
		Space: gpu.slab, Source: gpu, StageTimeout: timeout, Host: &borrow.Host{Space: to, Source: gpu, Stager: s},
	})
	t.Cleanup(func() {
		end()
		if n := s.held(); n != 0 {
			t.Errorf("%d places were not given back", n)
		}
	})
	return peer, s
}

func stagingPath(t *testing.T, c borrow.Config) *borrow.Path {
	t.Helper()
	c.Pinned, c.NoIndex = true, true
	return open(t, c)
}

func ref(task int) transfer.Ref { return transfer.Ref{Task: ids.TaskID(task), Generation: 1} }

func random(seed byte, n int) []byte {
	p := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{seed}).Read(p) // it never fails
	return p
}

func whole(b *borrow.Batch, object int) []borrow.Part {
	return []borrow.Part{{Object: object, Bytes: b.Objects[object].Head.FrameBytes[0]}}
}

func TestPartsOfObjectsElsewhereAreStaged(t *testing.T) {
	objects := transfertest.NewObjects()
	content := [][]byte{bytes.Repeat([]byte("abc"), 10000), bytes.Repeat([]byte("de"), 700)}
	objects.Put(ref(1), "one", nil, content[0])
	objects.Put(ref(2), "two", content[1])
	peer, s := staging(t, objects, 0)
	path := stagingPath(t, borrow.Config{})
	b, err := path.Batch(t.Context(), peer, []transfer.Ref{ref(1), ref(2)})
	if err != nil {
		t.Fatal(err)
	}
	defer b.EndAll()
	o := b.Objects[0]
	if o.Err != nil || len(o.OnGPU) != 2 || o.OnGPU[0] || !o.OnGPU[1] || len(o.Frames) != 2 || o.Frames[1].Bytes != 30000 || b.StageBytes() != stageAtOnce {
		t.Fatalf("%+v, %d bytes at a time", o, b.StageBytes())
	}
	place, err := b.Stage(t.Context(), []borrow.Part{{Object: 0, Frame: 1, Offset: 5, Bytes: 20001}, {Object: 1, Bytes: 1400}})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range [][]byte{content[0][5:20006], content[1]} {
		if at := place.Parts[i]; at.Offset%16 != 0 || !bytes.Equal(b.Memory.Bytes(at.Offset, at.Bytes), want) {
			t.Errorf("other bytes at %+v", at)
		}
	}
	if s.held() != 1 {
		t.Errorf("%d places are held", s.held())
	}
	place.End()
	if held := b.End([]int{0, 1}); !held[0] || !held[1] {
		t.Errorf("held: %v", held)
	}
}

// A path never holds more places than the connection may have, whatever its callers do.
func TestPlacesAreBoundedPerConnection(t *testing.T) {
	objects := transfertest.NewObjects()
	objects.Put(ref(1), "x", random(1, 1000))
	peer, s := staging(t, objects, 0)
	path := stagingPath(t, borrow.Config{})
	b, err := path.Batch(t.Context(), peer, []transfer.Ref{ref(1)})
	if err != nil {
		t.Fatal(err)
	}
	defer b.EndAll()
	var group sync.WaitGroup
	for range 100 {
		group.Go(func() {
			place, err := b.Stage(t.Context(), whole(b, 0))
			if err != nil {
				t.Error(err)
				return
			}
			if !bytes.Equal(b.Memory.Bytes(place.Parts[0].Offset, 1000), random(1, 1000)) {
				t.Error("other bytes")
			}
			place.End()
		})
	}
	group.Wait()
	if most := s.mostHeld(); most > 8 {
		t.Errorf("%d places at once", most)
	}
}

// A place that comes after its caller has given up is given back, and another one can be asked for
// instead of it.
func TestPlacesThatComeTooLateAreGivenBack(t *testing.T) {
	objects := transfertest.NewObjects()
	objects.Put(ref(1), "x", random(1, 1000))
	peer, s := staging(t, objects, 0)
	s.release = make(chan struct{})
	path := stagingPath(t, borrow.Config{})
	b, err := path.Batch(t.Context(), peer, []transfer.Ref{ref(1)})
	if err != nil {
		t.Fatal(err)
	}
	defer b.EndAll()
	for range 8 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		if _, err := b.Stage(ctx, whole(b, 0)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		cancel()
	}
	close(s.release)
	for range 20 {
		place, err := b.Stage(t.Context(), whole(b, 0))
		if err != nil {
			t.Fatal(err)
		}
		place.End()
	}
}

// A lender that finds no room in time refuses, and the connection goes on.
func TestStagingThatIsRefused(t *testing.T) {
	objects := transfertest.NewObjects()
	objects.Put(ref(1), "x", random(1, 1000))
	peer, s := staging(t, objects, 0)
	s.release = make(chan struct{})
	path := stagingPath(t, borrow.Config{})
	b, err := path.Batch(t.Context(), peer, []transfer.Ref{ref(1)})
	if err != nil {
		t.Fatal(err)
	}
	defer b.EndAll()
	t.Parallel() // the test only waits
	var group sync.WaitGroup
	for range 20 {
		group.Go(func() {
			if _, err := b.Stage(t.Context(), whole(b, 0)); !errors.Is(err, transfer.ErrUnreachable) || !strings.Contains(err.Error(), "no room within") {
				t.Errorf("got %v", err)
			}
		})
	}
	group.Wait()
	close(s.release)
	place, err := b.Stage(t.Context(), whole(b, 0))
	if err != nil {
		t.Fatal(err)
	}
	place.End()
}

// A reader that keeps a place too long loses its connection, its leases and its places.
func TestReaderThatKeepsAPlaceTooLong(t *testing.T) {
	objects := transfertest.NewObjects()
	objects.Put(ref(1), "x", random(1, 1000))
	// On a busy machine the reader may not even learn of its place in time.
	for timeout := 20 * time.Millisecond; ; timeout *= 4 {
		peer, s := staging(t, objects, timeout)
		b, err := stagingPath(t, borrow.Config{}).Batch(t.Context(), peer, []transfer.Ref{ref(1)})
		if err != nil {
			t.Fatal(err)
		}
		place, err := b.Stage(t.Context(), whole(b, 0))
		if errors.Is(err, transfer.ErrPeerLost) && timeout < time.Minute {
			b.EndAll()
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		<-s.returned
		place.End()
		if held := b.End([]int{0}); held[0] {
			t.Error("what was read in a place that was taken back counts")
		}
		transfertest.NoLeases(t, objects)
		return
	}
}

// Orders that no reader of ours sends.
func TestStagingChecksWhatReadersSay(t *testing.T) {
	objects := transfertest.NewObjects()
	objects.Put(ref(1), "x", random(1, 1000), random(2, 100<<10))
	peer, s := staging(t, objects, time.Hour)
	type stage = hostv1.BorrowStage
	for name, c := range map[string]struct {
		order *stage
		why   string
	}{
		"nothing":                 {&stage{}, "0 leases"},
		"lists that do not match": {&stage{LeaseIds: []uint64{1}, Frames: []uint32{0}, Offsets: []uint64{0}}, "0 sizes"},
		"too many parts": {&stage{LeaseIds: make([]uint64, 1025), Frames: make([]uint32, 1025), Offsets: make([]uint64, 1025), Bytes: make([]uint64, 1025)},
			"1 to 1024"},
		"no lease":           {&stage{LeaseIds: []uint64{99}, Frames: []uint32{0}, Offsets: []uint64{0}, Bytes: []uint64{1}}, "no frame 0"},
		"no frame":           {&stage{LeaseIds: []uint64{1}, Frames: []uint32{2}, Offsets: []uint64{0}, Bytes: []uint64{1}}, "no frame 2"},
		"a huge frame":       {&stage{LeaseIds: []uint64{1}, Frames: []uint32{1<<32 - 1}, Offsets: []uint64{0}, Bytes: []uint64{1}}, "no frame 4294967295"},
		"no bytes":           {&stage{LeaseIds: []uint64{1}, Frames: []uint32{0}, Offsets: []uint64{0}, Bytes: []uint64{0}}, "[0, +0)"},
		"behind the end":     {&stage{LeaseIds: []uint64{1}, Frames: []uint32{0}, Offsets: []uint64{1}, Bytes: []uint64{1000}}, "of 1000 bytes"},
		"far behind":         {&stage{LeaseIds: []uint64{1}, Frames: []uint32{0}, Offsets: []uint64{1<<64 - 1}, Bytes: []uint64{2}}, "of 1000 bytes"},
		"too large":          {&stage{LeaseIds: []uint64{1}, Frames: []uint32{1}, Offsets: []uint64{0}, Bytes: []uint64{stageAtOnce + 1}}, "has 65536 bytes at most"},
		"too large in sum":   {&stage{LeaseIds: []uint64{1, 1}, Frames: []uint32{1, 1}, Offsets: []uint64{0, 0}, Bytes: []uint64{stageAtOnce, 1}}, "at 65536 of a place"},
		"too large by a gap": {&stage{LeaseIds: []uint64{1, 1}, Frames: []uint32{1, 1}, Offsets: []uint64{0, 0}, Bytes: []uint64{1, stageAtOnce - 15}}, "at 16 of a place"},
		"a sum that wraps":   {&stage{LeaseIds: []uint64{1, 1}, Frames: []uint32{1, 1}, Offsets: []uint64{0, 0}, Bytes: []uint64{1, 1<<64 - 1}}, "at 16 of a place"},
		"a lease that ended": {&stage{LeaseIds: []uint64{2}, Frames: []uint32{0}, Offsets: []uint64{0}, Bytes: []uint64{1}}, "under a lease 2"},
	} {
		t.Run(name, func(t *testing.T) {
			conn := dial(t, peer)
			id := lease(t, conn, 1)
			other := lease(t, conn, 1)
			ask(t, conn, &hostv1.BorrowRequest{Order: &hostv1.BorrowRequest_Release{Release: &hostv1.BorrowRelease{LeaseIds: []uint64{other}}}})
			for i, n := range c.order.GetLeaseIds() {
				switch n {
				case 1:
					c.order.LeaseIds[i] = id
				case 2:
					c.order.LeaseIds[i] = other
					c.why = strings.Replace(c.why, "lease 2", "lease", 1)
				}
			}
			_, err := conn.Call(t.Context(), &hostv1.BorrowRequest{Order: &hostv1.BorrowRequest_Stage{Stage: c.order}}, nil)
			if !errors.Is(err, slabshare.ErrRefused) || !strings.Contains(err.Error(), c.why) {
				t.Errorf("got %v", err)
			}
			if s.held() != 0 {
				t.Errorf("%d places are held", s.held())
			}
		})
	}
	good := func(id uint64) *hostv1.BorrowRequest {
		return &hostv1.BorrowRequest{Order: &hostv1.BorrowRequest_Stage{Stage: &stage{LeaseIds: []uint64{id}, Frames: []uint32{0}, Offsets: []uint64{0}, Bytes: []uint64{1000}}}}
	}
	t.Run("a ninth place", func(t *testing.T) {
		conn := dial(t, peer)
		id := lease(t, conn, 1)
		var last uint64
		for range 8 {
			last = ask(t, conn, good(id)).GetStaged().GetPlaceId()
		}
		if _, err := conn.Call(t.Context(), good(id), nil); !errors.Is(err, slabshare.ErrRefused) || !strings.Contains(err.Error(), "8 places") {
			t.Errorf("got %v", err)
		}
		if err := conn.Send(&hostv1.BorrowRequest{Order: &hostv1.BorrowRequest_Unstage{Unstage: &hostv1.BorrowUnstage{PlaceId: last}}}); err != nil {
			t.Fatal(err)
		}
		ask(t, conn, good(id))
	})
	t.Run("a lease of another connection", func(t *testing.T) {
		id := lease(t, dial(t, peer), 1)
		if _, err := dial(t, peer).Call(t.Context(), good(id), nil); !errors.Is(err, slabshare.ErrRefused) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("a place that is not held", func(t *testing.T) {
		conn := dial(t, peer)
		if err := conn.Send(&hostv1.BorrowRequest{Order: &hostv1.BorrowRequest_Unstage{Unstage: &hostv1.BorrowUnstage{PlaceId: 5}}}); err != nil {
			t.Fatal(err)
		}
		<-conn.Done()
	})
	t.Run("without pinned memory", func(t *testing.T) {
		other, _ := serve(t, objects, borrow.ServerConfig{})
		conn, _, file, err := slabshare.Dial(t.Context(), other.Address, &hostv1.BorrowHello{ReaderWorkerId: 3})
		if err != nil {
			t.Fatal(err)
		}
		defer hangUp(t, conn, file.Close)
		if _, err := conn.Call(t.Context(), good(lease(t, conn, 1)), nil); !errors.Is(err, slabshare.ErrRefused) || !strings.Contains(err.Error(), "stages nothing") {
			t.Errorf("got %v", err)
		}
	})
}

// wide is a source of objects with many frames.
type wide struct {
	inSlab
	frames int
	last   atomic.Uint64
}

func (s *wide) Lease(reader transfer.Reader, refs []transfer.Ref, ttl time.Duration) []transfer.Leased {
	out := s.inSlab.Lease(reader, refs, ttl)
	for i := range out {
		out[i].Lease = transfer.LeaseID(s.last.Add(1))
		out[i].Head.FrameBytes = slices.Repeat(out[i].Head.FrameBytes, s.frames)
		out[i].Regions = slices.Repeat(out[i].Regions, s.frames)
	}
	return out
}

// The lender keeps the locations of all leased frames, so their number is bounded.
func TestFramesToStageAreBoundedPerConnection(t *testing.T) {
	slab := newSlabbed(t, transfertest.NewObjects()).slab
	source := &wide{inSlab: inSlab{slab, memory.Frame{Offset: 8192, Bytes: 1}}, frames: 400_000}
	peer, _ := listen(t, borrow.ServerConfig{Space: slab, Source: source, Host: &borrow.Host{Space: slab, Source: source, Stager: &stager{}}})
	conn := dial(t, peer)
	first := lease(t, conn, 1)
	lease(t, conn, 1)
	third := &hostv1.BorrowRequest{Order: &hostv1.BorrowRequest_AcquireMany{AcquireMany: &hostv1.BorrowAcquireMany{TaskIds: []uint64{1}, Generations: []uint32{1}}}}
	if a := ask(t, conn, third).GetAcquiredMany(); a.GetLeaseIds()[0] != 0 || a.GetRefusals()[0] != hostv1.Refusal_REFUSAL_ELSEWHERE {
		t.Errorf("a third lease: %d, %v", a.GetLeaseIds()[0], a.GetRefusals()[0])
	}
	ask(t, conn, &hostv1.BorrowRequest{Order: &hostv1.BorrowRequest_Release{Release: &hostv1.BorrowRelease{LeaseIds: []uint64{first}}}})
	lease(t, conn, 1)
}

// dial connects like a reader of pinned memory.
func dial(t *testing.T, peer transfer.Peer) *slabshare.Conn {
	t.Helper()
	conn, welcome, file, err := slabshare.Dial(t.Context(), peer.Address, &hostv1.BorrowHello{ReaderWorkerId: 3, Device: true, Pinned: true})
	if err != nil {
		t.Fatal(err)
	}
	if welcome.GetStageBytes() != stageAtOnce {
		t.Errorf("welcome: %v", welcome)
	}
	t.Cleanup(func() { hangUp(t, conn, file.Close) })
	return conn
}

func hangUp(t *testing.T, conn *slabshare.Conn, alsoEnd func() error) {
	t.Helper()
	if err := errors.Join(conn.Close(), alsoEnd()); err != nil {
		t.Error(err)
	}
	conn.Free()
}

func ask(t *testing.T, conn *slabshare.Conn, request *hostv1.BorrowRequest) *hostv1.BorrowResponse {
	t.Helper()
	response, err := conn.Call(t.Context(), request, nil)
	if err != nil {
		t.Fatal(err)
	}
	return response
}

// lease leases an object, and returns the number of the lease.
func lease(t *testing.T, conn *slabshare.Conn, task uint64) uint64 {
	t.Helper()
	answer := ask(t, conn, &hostv1.BorrowRequest{Order: &hostv1.BorrowRequest_AcquireMany{
		AcquireMany: &hostv1.BorrowAcquireMany{TaskIds: []uint64{task}, Generations: []uint32{1}},
	}}).GetAcquiredMany()
	if len(answer.GetLeaseIds()) != 1 || answer.GetLeaseIds()[0] == 0 {
		t.Fatalf("no lease: %v", answer)
	}
	return answer.GetLeaseIds()[0]
}
