//go:build cgo && linux

package ipc_test

import (
	"bytes"
	"strings"
	"sync"
	"testing"

	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/borrow"
	"github.com/millrace/millrace/transfer/ipc"
	"github.com/millrace/millrace/transfer/transfertest"
)

// lend serves objects of a child's slab and returns the peer.
func lend(t *testing.T, objects *transfertest.Objects) transfer.Peer {
	t.Helper()
	space := objects.Room().Space().(*held)
	address := freeAddress()
	s, err := borrow.Listen(address, lending(space, space.export, objects))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closing(t, s) })
	return transfer.Peer{Worker: 7, Name: "source", Address: address}
}

// Frames of all alignments, relative to each other and to words, in numbers that make small and
// large tables.
func TestGPUGatherCopiesWhateverLiesWherever(t *testing.T) {
	for _, count := range []int{3, 40, 700} {
		h, _ := newHeld(t, 256<<20)
		objects := transfertest.NewObjectsIn(transfertest.NewRoom(h))
		peer := lend(t, objects)
		r := newReader(t, 256<<20, nil)
		var refs []transfer.Ref
		var want [][]byte
		for i := range count {
			// Rooms place frames contiguously, so the sizes produce all alignments.
			frame := pattern(uint64(1 + i*i*7%200001))
			frame[0] = byte(i)
			objects.Put(ref(i), "x", frame)
			refs, want = append(refs, ref(i)), append(want, frame)
		}
		if _, err := r.room.Take(5); err != nil { // so that the alignments of the two sides differ
			t.Fatal(err)
		}
		before := uint64(0)
		if fake != nil {
			before = fake.Launches.Load()
		}
		sink := transfertest.NewSinkIn(r.room)
		if err := r.path.Fetch(t.Context(), peer, refs, sink); err != nil {
			t.Fatal(err)
		}
		for i := range refs {
			if _, frames, done, err := sink.Result(i); !done || err != nil || !bytes.Equal(frames[0], want[i]) {
				t.Errorf("%d frames: number %d of %d bytes: done %v, %v, or its bytes differ", count, i, len(want[i]), done, err)
			}
		}
		link := r.path.Links()[peer.Address]
		t.Logf("%d frames: %s", count, link)
		if link.GatherBytesPerSecond == 0 {
			t.Errorf("no gather: %s", link.Why)
		}
		if fake != nil && count > 3 && fake.Launches.Load() == before {
			t.Errorf("%d frames were not gathered", count)
		}
	}
}

// While tasks compute, a gather leaves them most of the device.
func TestGPUGatherUsesFewBlocksBesideTasks(t *testing.T) {
	if fake == nil {
		return // a real driver does not reveal the grid of a launch
	}
	h, _ := newHeld(t, 64<<20)
	objects := transfertest.NewObjectsIn(transfertest.NewRoom(h))
	peer := lend(t, objects)
	computing := false
	r := newReader(t, 64<<20, func(c *ipc.Config) {
		c.Computing, c.ComputeBlocks = func() bool { return computing }, 3
	})
	var refs []transfer.Ref
	for i := range 64 {
		objects.Put(ref(i), "x", pattern(128<<10))
		refs = append(refs, ref(i))
	}
	for _, computing = range []bool{false, true} {
		before := fake.Launches.Load()
		if err := r.path.Fetch(t.Context(), peer, refs, transfertest.NewSinkIn(r.room)); err != nil {
			t.Fatal(err)
		}
		launched := fake.Launched(before)
		if len(launched) == 0 {
			t.Fatal("nothing was gathered")
		}
		for _, l := range launched {
			if few := l.Grid[0] <= 3; few != computing {
				t.Errorf("computing %v: %s has %d blocks", computing, l.Name(), l.Grid[0])
			}
		}
		r.room.Reset()
	}
	if at := r.path.Lane(peer.Address).Transport; !strings.HasPrefix(at, "copies ") || !strings.Contains(at, " GB/s, gather ") {
		t.Errorf("the transport is described as %q", at)
	}
	if at := r.path.Lane("nobody:1"); at != (transfer.Lane{}) {
		t.Errorf("that of an unknown peer as %+v", at)
	}
}

// TestAProofKeepsItsTable: other fetches take every table that the proof of a link gives back
// between its reads.
func TestAProofKeepsItsTable(t *testing.T) {
	if fake == nil {
		return // on a real device the other takes nothing in time
	}
	h, _ := newHeld(t, 64<<20)
	objects := transfertest.NewObjectsIn(transfertest.NewRoom(h))
	peer := lend(t, objects)
	var r *reader
	var once sync.Once
	stop, stopped := make(chan struct{}), make(chan struct{})
	takeAll := func(others chan<- struct{}) {
		defer close(stopped)
		var taken []func()
		for {
			select {
			case <-stop:
				for _, give := range taken {
					give()
				}
				return
			default:
			}
			if give := r.path.TakeTable(); give != nil {
				if taken = append(taken, give); len(taken) == ipc.Tables-1 {
					close(others)
				}
			}
		}
	}
	r = newReader(t, 64<<20, func(c *ipc.Config) {
		c.Computing = func() bool { // called by each launch, which has a table
			once.Do(func() {
				others := make(chan struct{})
				go takeAll(others)
				<-others
			})
			return false
		}
	})
	link, err := r.path.Connect(t.Context(), peer)
	close(stop)
	<-stopped
	if err != nil {
		t.Fatal(err)
	}
	if link.GatherBytesPerSecond == 0 {
		t.Errorf("no gather: %q", link.Why)
	}
}
