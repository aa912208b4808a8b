//go:build cgo && linux

package ipc_test

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/transfertest"
)

// The end of a gather is detected by its word or, if it takes long, by its event.
func TestAGatherIsWaitedForHoweverLongItTakes(t *testing.T) {
	if fake == nil {
		return // a real driver cannot be slowed down
	}
	for _, each := range []time.Duration{0, 5 * time.Millisecond} {
		r, peer, refs, want := smallOnes(t)
		before := fake.Launches.Load()
		fake.DelayMicros.Store(uint64(each.Microseconds()))
		for range 3 {
			r.room.Reset()
			sink := transfertest.NewSinkIn(r.room)
			if err := r.path.Fetch(t.Context(), peer, refs, sink); err != nil {
				t.Fatal(err)
			}
			for i := range refs {
				if _, frames, done, err := sink.Result(i); !done || err != nil || !bytes.Equal(frames[0], want[i]) {
					t.Fatalf("after %v: number %d: done %v, %v, or its bytes differ", each, i, done, err)
				}
			}
		}
		if fake.Launches.Load() == before {
			t.Error("nothing was gathered")
		}
	}
}

// If the end of a gather cannot be queried, its reader fails with the cause, but not before the
// device has finished: until then the gather writes.
func TestAGatherThatCannotBeAskedAboutEndsWithItsStream(t *testing.T) {
	if fake == nil {
		return // a real driver cannot be made to fail
	}
	r, peer, refs, _ := smallOnes(t)
	before := fake.Launches.Load()
	fake.Hold.Store(1)
	fake.Fail("cuEventRecord", 999, 0, 1)
	sink := transfertest.NewSinkIn(r.room)
	ended := make(chan error, 1)
	go func() { ended <- r.path.Fetch(t.Context(), peer, refs, sink) }()
	for fake.Failing() {
		select {
		case err := <-ended:
			t.Fatalf("the fetch ended with %v and nothing had failed", err)
		case <-time.After(time.Millisecond):
		}
	}
	select {
	case err := <-ended:
		t.Errorf("the fetch ended with %v while the device was at it", err)
	default:
	}
	fake.Heal()
	err := <-ended
	if err == nil {
		_, _, _, err = sink.Result(0)
	}
	if err == nil || !strings.Contains(err.Error(), "cuEventRecord") {
		t.Errorf("the fetch ended with %v", err)
	}
	if fake.Launches.Load() == before {
		t.Error("nothing was gathered")
	}
	again := transfertest.NewSinkIn(r.room)
	if err := r.path.Fetch(t.Context(), peer, refs, again); err != nil {
		t.Errorf("the next one: %v", err)
	}
	if _, _, done, err := again.Result(0); !done || err != nil {
		t.Errorf("the next one: %v, %v", done, err)
	}
}

// smallOnes returns 64 objects of another process, and a reader.
func smallOnes(t *testing.T) (r *reader, peer transfer.Peer, refs []transfer.Ref, want [][]byte) {
	t.Helper()
	h, _ := newHeld(t, 64<<20)
	objects := transfertest.NewObjectsIn(transfertest.NewRoom(h))
	peer = lend(t, objects)
	r = newReader(t, 64<<20, nil)
	if _, err := r.path.Connect(t.Context(), peer); err != nil {
		t.Fatal(err)
	}
	for i := range 64 {
		frame := pattern(32 << 10)
		frame[0] = byte(i)
		objects.Put(ref(i), "x", frame)
		refs, want = append(refs, ref(i)), append(want, frame)
	}
	return r, peer, refs, want
}
