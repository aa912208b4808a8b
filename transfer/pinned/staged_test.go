//go:build cgo && linux

package pinned_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/cuda"
	"github.com/millrace/millrace/memory/cuda/cudatest"
	"github.com/millrace/millrace/memory/host"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/borrow"
	"github.com/millrace/millrace/transfer/mirror"
	"github.com/millrace/millrace/transfer/transfertest"
)

// source is a worker of a GPU with pinned memory below it. Its objects lie on the GPU.
type source struct {
	objects *transfertest.Objects
	slab    *cuda.Slab
	mirror  *mirror.Mirror
	end     func() error
}

// tierBytes is the size of the pinned memory behind the mirror.
const tierBytes = 8 << 20

// newSource opens the last GPU, which is another one than the reader's if there are two.
func newSource(slabBytes, mirrorBytes uint64) (s *source, err error) {
	s = &source{}
	var undo []func() error
	s.end = func() (err error) {
		for _, f := range slices.Backward(undo) {
			err = errors.Join(err, f())
		}
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.end())
		}
	}()
	d, err := driver.Open(len(driver.Devices()) - 1)
	if err != nil {
		return nil, err
	}
	undo = append(undo, d.Close)
	id := identity()
	if s.slab, err = d.NewSlab(cuda.SlabConfig{Size: cuda.Size{Bytes: slabBytes}, Identity: id}); err != nil {
		return nil, err
	}
	undo = append(undo, s.slab.Close)
	below, err := host.NewSlab(tierBytes+mirrorBytes, id)
	if err != nil {
		return nil, err
	}
	undo = append(undo, below.Close)
	tier, err := d.NewTier(below, cuda.TierConfig{StageBytes: mirrorBytes})
	if err != nil {
		return nil, err
	}
	undo = append(undo, tier.Close)
	if s.mirror, err = mirror.New(tier, tier.Size(), mirrorBytes); err != nil {
		return nil, err
	}
	s.objects = transfertest.NewObjectsIn(transfertest.NewRoom(s.slab))
	return s, nil
}

// config is that of the source's server. Peers cannot map the GPU's memory.
func (s *source) config() borrow.ServerConfig {
	return borrow.ServerConfig{
		Space: s.slab, Source: s.objects, Incarnation: "test",
		Host: &borrow.Host{Space: s.mirror.Space(), Source: nobody{}, Stager: s.mirror},
	}
}

func (s *source) serve(tb testing.TB, c borrow.ServerConfig) (transfer.Peer, func()) {
	tb.Helper()
	peer := transfer.Peer{Worker: 7, Name: "source", Address: fmt.Sprintf("pinned-test-%d-%d", os.Getpid(), last.Add(1))}
	server, err := borrow.Listen(peer.Address, c)
	if err != nil {
		tb.Fatal(err)
	}
	ended := false
	end := func() {
		if !ended {
			ended = true
			closing(tb, server)
		}
	}
	tb.Cleanup(func() {
		end()
		if n := s.mirror.StagedBytes(); n != 0 {
			tb.Errorf("%d bytes of pinned memory were not given back", n)
		}
	})
	return peer, end
}

func onGPU(tb testing.TB, slabBytes, mirrorBytes uint64) *source {
	tb.Helper()
	s, err := newSource(slabBytes, mirrorBytes)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := s.end(); err != nil {
			tb.Error(err)
		}
	})
	return s
}

// No GPU reads the memory of another one. The objects lie on the source's GPU.
func apart(t *testing.T) {
	t.Helper()
	if fake != nil {
		fake.RefusePeer.Store(1)
		t.Cleanup(func() { fake.RefusePeer.Store(0) })
	}
}

func TestGPUStagedConformance(t *testing.T) {
	for name, mirrorBytes := range map[string]uint64{"plenty of pinned memory": 256 << 20, "little pinned memory": 2 << 20} {
		t.Run(name, func(t *testing.T) {
			apart(t)
			rooms := map[transfer.Path]*transfertest.Room{}
			sources := map[*transfertest.Objects]*source{}
			transfertest.Harness{
				Serve: func(t *testing.T, objects transfer.Source) (transfer.Peer, func()) {
					t.Helper()
					s := sources[objects.(*transfertest.Objects)]
					return s.serve(t, s.config())
				},
				Path: func(t *testing.T, stall time.Duration) transfer.Path {
					t.Helper()
					r := newReader(t, 1<<30, stall)
					rooms[r.path] = r.room
					return r.path
				},
				CanStall: true,
				Objects: func(t *testing.T) *transfertest.Objects {
					t.Helper()
					s := onGPU(t, 1<<30, mirrorBytes)
					sources[s.objects] = s
					return s.objects
				},
				Room: func(path transfer.Path) *transfertest.Room { return rooms[path] },
			}.Run(t)
		})
	}
}

// spread is a source whose objects have every second frame below the GPU.
type spread struct {
	*transfertest.Objects
	room  *transfertest.Room
	below map[transfer.Ref][]transfer.Region
}

func (s *spread) put(t *testing.T, r transfer.Ref, frames ...[]byte) {
	t.Helper()
	s.Put(r, "x", frames...)
	for _, f := range frames {
		region, err := s.room.Take(uint64(len(f)))
		if err != nil {
			t.Fatal(err)
		}
		copy(region.Bytes(), f)
		s.below[r] = append(s.below[r], region)
	}
}

func (s *spread) Lease(reader transfer.Reader, refs []transfer.Ref, ttl time.Duration) []transfer.Leased {
	leased := s.Objects.Lease(reader, refs, ttl)
	for i := range leased {
		leased[i].Regions = slices.Clone(leased[i].Regions)
		for n := 1; n < len(leased[i].Regions); n += 2 {
			leased[i].Regions[n] = s.below[refs[i]][n]
		}
	}
	return leased
}

// compare compares an object with what it must be.
func compare(t *testing.T, sink *transfertest.Sink, index int, want ...[]byte) {
	t.Helper()
	_, frames, done, err := sink.Result(index)
	if !done || err != nil || len(frames) != len(want) {
		t.Errorf("object %d: done %v, %v, %d frames of %d", index, done, err, len(frames), len(want))
		return
	}
	for i := range want {
		if !bytes.Equal(frames[i], want[i]) {
			t.Errorf("object %d: frame %d of %d bytes differs", index, i, len(want[i]))
		}
	}
}

func TestGPUFramesOnTheGPUAndBelowItComeInOneFetch(t *testing.T) {
	apart(t)
	s := onGPU(t, 64<<20, 8<<20)
	objects := &spread{s.objects, transfertest.NewRoom(s.mirror.Space()), map[transfer.Ref][]transfer.Region{}}
	c := s.config()
	c.Source = objects
	peer, _ := s.serve(t, c)
	r := newReader(t, 64<<20, transfertest.Patience)
	var refs []transfer.Ref
	var want [][][]byte
	for i := range 40 {
		frames := [][]byte{pattern(1 + i*10007), pattern(100 + i*3001), nil, pattern(7), pattern(5000)}[:i%6]
		objects.put(t, ref(i), frames...)
		refs, want = append(refs, ref(i)), append(want, frames)
	}
	sink := transfertest.NewSinkIn(r.room)
	if err := r.path.Fetch(t.Context(), peer, refs, sink); err != nil {
		t.Fatal(err)
	}
	for i := range want {
		compare(t, sink, i, want[i]...)
	}
	transfertest.NoLeases(t, s.objects)
	if by := r.path.Lane(peer.Address); by != (transfer.Lane{Transport: "shared memory", Staged: "both"}) {
		t.Errorf("they came by %+v", by)
	}
}

// Clients may keep the mirror full. Then objects on the GPU are refused one by one, so that other
// paths bring them, and objects below the GPU come all the same.
func TestStagingWithAFullMirror(t *testing.T) {
	apart(t)
	s := onGPU(t, 64<<20, 8<<20)
	objects := &spread{s.objects, transfertest.NewRoom(s.mirror.Space()), map[transfer.Ref][]transfer.Region{}}
	c := s.config()
	c.Source = objects
	peer, _ := s.serve(t, c)
	r := newReader(t, 64<<20, transfertest.Patience)
	objects.put(t, ref(0), pattern(3<<20))
	objects.put(t, ref(1), nil, pattern(1<<20))
	objects.put(t, ref(2), nil, pattern(1000))
	s.objects.Put(ref(9), "for a client", pattern(8<<20-256))
	client := s.mirror.Source(s.objects)
	kept := client.Lease(transfer.Reader{}, []transfer.Ref{ref(9)}, 0)
	if kept[0].Err != nil {
		t.Fatal(kept[0].Err)
	}
	refs := []transfer.Ref{ref(1), ref(0), ref(2)}
	sink := transfertest.NewSinkIn(r.room)
	if err := r.path.Fetch(t.Context(), peer, refs, sink); err != nil {
		t.Fatal(err)
	}
	compare(t, sink, 0, nil, pattern(1<<20))
	compare(t, sink, 2, nil, pattern(1000))
	if _, _, done, err := sink.Result(1); !done || !errors.Is(err, transfer.ErrUnreachable) || !strings.Contains(err.Error(), "which clients keep") {
		t.Errorf("done %v, %v", done, err)
	}
	transfertest.NoLeases(t, s.objects)
	if held := client.Release([]transfer.LeaseID{kept[0].Lease}); !held[0] {
		t.Error("the client lost its copy")
	}
	sink = transfertest.NewSinkIn(r.room)
	if err := r.path.Fetch(t.Context(), peer, refs, sink); err != nil {
		t.Fatal(err)
	}
	compare(t, sink, 1, pattern(3<<20))
}

// counting counts the places that a source was asked for.
type counting struct {
	borrow.Stager
	asked atomic.Int64
}

func (c *counting) Stage(ctx context.Context, bytes uint64, slab memory.Space, pieces []memory.Piece) (memory.Frame, error) {
	c.asked.Add(1)
	return c.Stager.Stage(ctx, bytes, slab, pieces)
}

// A refusal may take seconds, so a fetch asks for no other object after the first one.
func TestAFullMirrorIsNotAskedAgainAndAgain(t *testing.T) {
	apart(t)
	s := onGPU(t, 256<<20, 8<<20)
	c, count := s.config(), &counting{Stager: s.mirror}
	c.Host.Stager = count
	peer, _ := s.serve(t, c)
	r := newReader(t, 256<<20, transfertest.Patience)
	s.objects.Put(ref(99), "for a client", pattern(8<<20-256))
	client := s.mirror.Source(s.objects)
	kept := client.Lease(transfer.Reader{}, []transfer.Ref{ref(99)}, 0)[0]
	if kept.Err != nil {
		t.Fatal(kept.Err)
	}
	var refs []transfer.Ref
	for i := range 40 { // of places of 1 MiB
		s.objects.Put(ref(i), "x", pattern(5<<20/2))
		refs = append(refs, ref(i))
	}
	sink := transfertest.NewSinkIn(r.room)
	if err := r.path.Fetch(t.Context(), peer, refs, sink); err != nil {
		t.Fatal(err)
	}
	for i := range refs {
		if _, _, done, err := sink.Result(i); !done || !errors.Is(err, transfer.ErrUnreachable) {
			t.Errorf("object %d: done %v, %v", i, done, err)
		}
	}
	if n := count.asked.Load(); n > 2*8 {
		t.Errorf("the source was asked for %d places", n)
	}
	client.Release([]transfer.LeaseID{kept.Lease})
	transfertest.NoLeases(t, s.objects)
}

// The reader's copy fails: the places are given back, and the next fetch works.
func TestStagedCopiesThatFail(t *testing.T) {
	if fake == nil {
		return // a real GPU does not fail on demand
	}
	s := onGPU(t, 64<<20, 16<<20)
	peer, _ := s.serve(t, s.config())
	r := newReader(t, 64<<20, transfertest.Patience)
	s.objects.Put(ref(0), "x", pattern(20<<20))
	for _, call := range []string{"cuMemcpyDtoHAsync_v2", "cuMemcpyHtoDAsync_v2", "cuEventRecord"} {
		r.room.Reset()
		fake.Fail(call, cudatest.Unknown, 1, 1)
		sink := transfertest.NewSinkIn(r.room)
		err := r.path.Fetch(t.Context(), peer, []transfer.Ref{ref(0)}, sink)
		if _, _, done, failed := sink.Result(0); err == nil && (!done || failed == nil) || fake.Failing() {
			t.Errorf("%s: %v; done %v, %v; it still fails: %v", call, err, done, failed, fake.Failing())
		}
		fake.Heal()
		sink = transfertest.NewSinkIn(r.room)
		if err := r.path.Fetch(t.Context(), peer, []transfer.Ref{ref(0)}, sink); err != nil {
			t.Fatal(err)
		}
		compare(t, sink, 0, pattern(20<<20))
	}
	transfertest.NoLeases(t, s.objects)
}

// stagingChild makes this test program a source; its value is the address. Of its objects, number i
// has childBytes<<i bytes.
const (
	stagingChild = "MILLRACE_TEST_STAGE_AS"
	// stagingLibrary has the path of the fake driver of that source; empty on a real GPU.
	stagingLibrary = "MILLRACE_TEST_STAGE_LIBRARY"
	childBytes     = 8 << 20
	childObjects   = 3
)

func stageUntilKilled(address string) error {
	s, err := newSource(128<<20, 32<<20)
	if err != nil {
		return err
	}
	for i := range childObjects {
		s.objects.Put(ref(i), "x", pattern(childBytes<<i))
	}
	if _, err := borrow.Listen(address, s.config()); err != nil {
		return err
	}
	fmt.Println("stages")
	_, err = io.Copy(io.Discard, os.Stdin) // until the parent ends
	return err
}

func startStaging(t *testing.T) (*exec.Cmd, transfer.Peer) {
	t.Helper()
	peer := transfer.Peer{Worker: 7, Name: "source", Address: fmt.Sprintf("pinned-child-%d-%d", os.Getpid(), last.Add(1))}
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), stagingChild+"="+peer.Address)
	if fake != nil {
		child.Env = append(child.Env, stagingLibrary+"="+fake.Library)
	}
	child.Stderr = os.Stderr
	child.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	in, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := child.StdoutPipe()
	if err == nil {
		err = child.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		_ = child.Process.Kill()
		_ = child.Wait() // ends with an error, because it was killed
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatalf("the child said %q: %v", line, err)
	}
	return child, peer
}

// The source is killed or stopped in the middle of a fetch. The delivered objects are right, and
// the others fail in time.
func TestGPUStagingSourceThatIsKilledOrStopped(t *testing.T) {
	for _, kind := range []struct {
		name   string
		signal syscall.Signal
		stall  time.Duration
		want   error
	}{{"killed", syscall.SIGKILL, transfertest.Patience, transfer.ErrPeerLost}, {"stopped", syscall.SIGSTOP, 2 * time.Second, transfer.ErrStalled}} {
		t.Run(kind.name, func(t *testing.T) {
			apart(t)
			child, peer := startStaging(t)
			r := newReader(t, 512<<20, kind.stall)
			refs := []transfer.Ref{ref(0), ref(1), ref(2)}
			// fetch goes on after a stall: a busy machine may stand still for longer.
			fetch := func() (sink *transfertest.Sink, err error) {
				for limit := time.Now().Add(transfertest.Patience); ; {
					r.room.Reset()
					sink = transfertest.NewSinkIn(r.room)
					err = r.path.Fetch(t.Context(), peer, refs, sink)
					if !errors.Is(err, transfer.ErrStalled) || time.Now().After(limit) {
						return sink, err
					}
				}
			}
			if _, err := fetch(); err != nil {
				t.Fatal(err)
			}
			r.room.Reset()
			sink := transfertest.NewSinkIn(r.room)
			sink.PlaceHook = func(_ context.Context, index int, _ transfer.Head) error {
				if index == 2 {
					return child.Process.Signal(kind.signal)
				}
				return nil
			}
			err := r.path.Fetch(t.Context(), peer, refs, sink)
			if !errors.Is(err, kind.want) {
				t.Errorf("got %v", err)
			}
			for i := range refs {
				if _, frames, done, err := sink.Result(i); done && err == nil && !bytes.Equal(frames[0], pattern(childBytes<<i)) {
					t.Errorf("object %d was delivered as valid and is not", i)
				}
			}
			if _, _, done, _ := sink.Result(2); done {
				t.Error("an object came whole from a source that did nothing for it")
			}
			if kind.signal != syscall.SIGSTOP {
				return
			}
			if err := child.Process.Signal(syscall.SIGCONT); err != nil {
				t.Fatal(err)
			}
			if sink, err = fetch(); err != nil {
				t.Errorf("after it went on: %v", err)
			}
			compare(t, sink, 2, pattern(childBytes<<2))
		})
	}
}

// Many small objects are copied by kernels, at the source and here.
func TestManySmallObjectsOfAGPUComeByKernels(t *testing.T) {
	if fake == nil {
		return // only the fake driver counts launches
	}
	apart(t)
	s := onGPU(t, 64<<20, 32<<20)
	peer, _ := s.serve(t, s.config())
	r := newReader(t, 64<<20, transfertest.Patience)
	var refs []transfer.Ref
	const count, size = 900, 8 << 10 // two places
	for i := range count {
		s.objects.Put(ref(i), "x", pattern(size + i)[i:])
		refs = append(refs, ref(i))
	}
	before := fake.Launches.Load()
	sink := transfertest.NewSinkIn(r.room)
	if err := r.path.Fetch(t.Context(), peer, refs, sink); err != nil {
		t.Fatal(err)
	}
	for i := range refs {
		compare(t, sink, i, pattern(size + i)[i:])
	}
	if n := fake.Launches.Load() - before; n != 4 {
		t.Errorf("%d launches", n)
	}
}
