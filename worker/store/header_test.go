package store_test

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/ledger"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/worker/store"
)

// headerOf returns the header of a task's result; the task number determines size and content.
func headerOf(task int) []byte {
	b := make([]byte, store.LargeHeader-2+task*7919%(512<<10))
	for i := range b {
		b[i] = byte(i*task + i>>8)
	}
	return b
}

// readHeader reads an object as peers and clients do.
func (s *spilling) readHeader(task int) ([]byte, error) {
	l := s.Source().Lease(transfer.Reader{Worker: 7}, []transfer.Ref{{Task: id(task, 1).Task, Generation: 1}}, patience)[0]
	if l.Err != nil {
		return nil, l.Err
	}
	if len(l.Regions)+len(l.Head.FrameBytes) > 0 {
		return nil, errors.New("the header is shown as a frame")
	}
	if !s.Source().Release([]transfer.LeaseID{l.Lease})[0] {
		return nil, errors.New("the lease did not hold")
	}
	return l.Head.Header, nil
}

// loadHeader reads an object as a task does, with a reservation that has it as input.
func (s *spilling) loadHeader(task int) ([]byte, error) {
	told := make(chan store.ReservationResult, 4)
	r, progress, err := s.Acquire(store.Request{Holder: ledger.Holder{Kind: ledger.HolderTask, ID: 1000}, Inputs: []ledger.ObjectID{id(task, 1)}, Deadline: time.Now().Add(patience)},
		func(x store.ReservationResult) { told <- x })
	if err != nil {
		return nil, err
	}
	defer s.Release(r)
	for progress != ledger.Ready {
		if x := <-told; x.Err != nil {
			return nil, x.Err
		} else if x.Ready {
			progress = ledger.Ready
		}
	}
	o, ok := s.Held(id(task, 1))
	if !ok || !o.InSlab || o.HasPlace() != (o.Header == nil) {
		return nil, errors.New("it was loaded and is not there")
	}
	return s.ReadHeader(o)
}

// Large headers behave like other objects in the slab: they are spilled and come back, in any order
// of operations, and every reader gets the stored bytes.
func TestLargeHeadersGoToDiskAndComeBack(t *testing.T) {
	inBoth(t, func(t *testing.T, open func(*testing.T) *spilling) {
		t.Helper()
		s := open(t)
		random := rand.New(rand.NewPCG(1, 2))
		var here []int
		last := 0
		rounds := 600
		if testing.Short() {
			rounds /= 3
		}
		for range rounds {
			var task int
			if len(here) > 0 {
				task = here[random.IntN(len(here))]
			}
			switch what := random.IntN(10); {
			case len(here) == 0 || what < 4 && len(here) < 100:
				last++
				putSmall(t, s.Store, id(last, 1), headerOf(last))
				here = append(here, last)
			case what < 5:
				if !s.Drop(id(task, 1)) {
					t.Fatalf("object %d was not here", task)
				}
				for i := range here {
					if here[i] == task {
						here = append(here[:i], here[i+1:]...)
						break
					}
				}
				if _, err := s.readHeader(task); !errors.Is(err, transfer.ErrNotHere) {
					t.Fatalf("object %d, which was dropped: %v", task, err)
				}
			default:
				read := s.readHeader
				if what < 7 {
					read = s.loadHeader
				}
				got, err := read(task)
				if err != nil || !bytes.Equal(got, headerOf(task)) {
					t.Fatalf("object %d: %d bytes, which are not those stored, %v", task, len(got), err)
				}
			}
			if o, ok := s.Lookup(id(last, 1)); ok && o.Bytes() != uint64(len(headerOf(last))) {
				t.Fatalf("object %d has %d bytes", last, o.Bytes())
			}
		}
		if n := len(s.Inventory()); n != len(here) {
			t.Errorf("%d objects in the inventory, and there are %d", n, len(here))
		}
		if _, n, bytes := s.Stats(); n > 3 || bytes > 3*store.LargeHeader {
			t.Errorf("%d objects of %d bytes are kept beside the slab", n, bytes)
		}
		if disk := s.Tiers()[1]; disk.OutBytes < 4<<20 || disk.InBytes < 4<<20 {
			t.Errorf("the disk: %+v", disk)
		}
		s.Forget()
		if n := len(s.Inventory()); n > 0 {
			t.Errorf("%d objects are left", n)
		}
	})
}

// A header that cannot be read back is lost, like other bytes, and its reader gets an error.
func TestUnreadableHeadersAreLost(t *testing.T) {
	s := newSpilling(t)
	for task := range 40 {
		putSmall(t, s.Store, id(task+1, 1), bytes.Repeat([]byte{byte(task)}, 1<<20))
	}
	s.settle(t)
	s.file.set(nil, nil, true)
	lost := 0
	for task := range 40 {
		if _, err := s.readHeader(task + 1); err != nil {
			lost++
			if !errors.Is(err, transfer.ErrNotHere) || !errors.Is(err, memory.ErrChecksum) {
				t.Error(err)
			}
			if _, ok := s.Lookup(id(task+1, 1)); ok {
				t.Errorf("object %d is found although it cannot be read", task+1)
			}
		}
	}
	if lost < 30 {
		t.Errorf("%d of 40 objects of 1 MiB were lost; the slab has 4 MiB", lost)
	}
}

// However many attempts with small inputs wait, there is room for the results of the runs before
// them.
func TestSmallInputsOfManyAttemptsLeaveRoom(t *testing.T) {
	s := newSpilling(t)
	for task := range 50 {
		if err := s.put(t, task+1, 120_000); err != nil {
			t.Fatal(err)
		}
	}
	loose := 0
	for task := range 50 {
		if got, is := s.Admit(id(1000+task, 1).Task, 1, uint64(task), []ledger.ObjectID{id(task+1, 1)}, false, false, nil); got[0].ID != id(task+1, 1) {
			t.Errorf("object %d is not here", task+1)
		} else if is {
			loose++
		}
	}
	// These inputs are smaller than 1/256 of the slab.
	for task := range 400 {
		if err := s.put(t, 100+task, 12_000); err != nil {
			t.Fatal(err)
		}
		if _, is := s.Admit(id(2000+task, 1).Task, 1, uint64(task), []ledger.ObjectID{id(100+task, 1)}, false, false, nil); is {
			loose++
		}
	}
	s.wait = patience
	if err := s.put(t, 999, 512<<10); err != nil {
		t.Errorf("%d of 450 attempts wait for room, and a result of 512 KiB finds none: %v", loose, err)
	}
}
