//go:build cgo && linux

package ipc_test

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/borrow"
	"github.com/millrace/millrace/transfer/ipc"
	"github.com/millrace/millrace/transfer/objindex"
	"github.com/millrace/millrace/transfer/transfertest"
)

// middle is a peer in whose slab an object arrives under the control of the test.
type middle struct {
	*child
	memory *held
	index  *objindex.Index
	server *borrow.Server
	peer   transfer.Peer
	want   []byte
	frames []memory.Frame
}

const arrivingBytes = 70<<20 + 3

var arriving = sync.OnceValue(func() []byte { return pattern(arrivingBytes) })

func newMiddle(t *testing.T, ttl time.Duration) *middle {
	t.Helper()
	h, c := newHeld(t, 256<<20)
	b, err := objindex.New(16, ttl)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closing(t, b) })
	objects := transfertest.NewObjectsIn(transfertest.NewRoom(h))
	objects.PublishTo(b)
	m := &middle{child: c, memory: h, index: b, want: arriving()}
	at := uint64(memory.HeaderBytes)
	for _, n := range []uint64{40 << 20, 5, 30<<20 - 2} {
		m.frames = append(m.frames, memory.Frame{Offset: at, Bytes: n})
		at += (n + 255) / 256 * 256
	}
	m.peer = transfer.Peer{Worker: 7, Name: "middle", Address: freeAddress()}
	if m.server, err = borrow.Listen(m.peer.Address, lending(h, h.export, objects)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.hangUp)
	return m
}

func (m *middle) hangUp() { _ = m.server.Close() }

// begin publishes the object with no bytes arrived.
func (m *middle) begin(t *testing.T) {
	t.Helper()
	if !m.index.PublishArriving(ref(1), []byte("head"), m.frames) {
		t.Fatal("it is not published")
	}
}

// bring writes a range of the object and reports the progress.
func (m *middle) bring(t *testing.T, from, to uint64) {
	t.Helper()
	at := uint64(0)
	for _, f := range m.frames {
		lo, hi := max(from, at), min(to, at+f.Bytes)
		if lo < hi {
			if err := m.memory.WriteFrom(f.Offset+lo-at, m.want[lo:hi]); err != nil {
				t.Fatal(err)
			}
		}
		at += f.Bytes
	}
	m.index.SetProgress(ref(1), to)
}

// onward is a sink that records the reported progress of its object.
type onward struct {
	*transfertest.Sink
	mu   sync.Mutex
	told []uint64
}

func (o *onward) Capabilities() transfer.SinkCapabilities {
	return transfer.SinkCapabilities{Forward: o}
}

func (o *onward) Forward(int) (func(uint64), uint64) {
	return func(n uint64) {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.told = append(o.told, n)
	}, 16 << 20
}

func (o *onward) Withdraw(int) {}

func (o *onward) come() uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.told) == 0 {
		return 0
	}
	return o.told[len(o.told)-1]
}

func newOnward(r *reader) *onward { return &onward{Sink: transfertest.NewSinkIn(r.room)} }

// check verifies the object's bytes and the reported progress.
func (o *onward) check(t *testing.T, want []byte) {
	t.Helper()
	head, frames, done, err := o.Result(0)
	if !done || err != nil || string(head.Header) != "head" || !bytes.Equal(slices.Concat(frames...), want) {
		t.Errorf("done %v, %v, header %q, or its bytes differ", done, err, head.Header)
	}
	if o.come() != uint64(len(want)) || !slices.IsSorted(o.told) || len(o.told) < 3 {
		t.Errorf("it was told that %v bytes have come, of %d", o.told, len(want))
	}
}

// pipelinedCopy starts a pipelined read of the middle's object. The channel gets the final error.
func pipelinedCopy(ctx context.Context, r *reader, at transfer.Peer, sink transfer.Sink) <-chan error {
	over := make(chan error, 1)
	go func() { over <- r.path.FetchPipelined(ctx, at, []transfer.Ref{ref(1)}, sink) }()
	return over
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(transfertest.Patience); !is(); {
		if time.Now().After(end) {
			t.Fatal("it did not come to this: " + what)
		}
		time.Sleep(time.Millisecond)
	}
}

func hear(t *testing.T, over <-chan error) error {
	t.Helper()
	select {
	case err := <-over:
		return err
	case <-time.After(transfertest.Patience):
		t.Fatal("it does not end")
		return nil
	}
}

// Two workers read one arriving object. Each copies what has arrived, and no more.
func TestGPUFollowersCopyWhatHasArrived(t *testing.T) {
	m := newMiddle(t, 0)
	m.begin(t)
	r := newReader(t, 512<<20, nil)
	sinks := []*onward{newOnward(r), newOnward(r)}
	var ends []<-chan error
	for _, s := range sinks {
		ends = append(ends, pipelinedCopy(t.Context(), r, m.peer, s))
	}
	for from := uint64(0); from < arrivingBytes; {
		to := min(from+24<<20, arrivingBytes)
		m.bring(t, from, to)
		for _, s := range sinks {
			eventually(t, "most of what has arrived is copied", func() bool { return s.come()+32<<20 > to })
			if s.come() > to {
				t.Fatalf("%d bytes are said to be here, of %d", s.come(), to)
			}
		}
		from = to
	}
	for _, s := range sinks {
		eventually(t, "all is copied", func() bool { return s.come() == arrivingBytes })
		if _, _, done, _ := s.Result(0); done {
			t.Error("it is delivered before the middle has found it valid")
		}
	}
	m.index.Complete(ref(1))
	for i, s := range sinks {
		if err := hear(t, ends[i]); err != nil {
			t.Fatal(err)
		}
		s.check(t, m.want)
	}
	// An object that is already complete can be read this way as well.
	r.room.Reset()
	late := newOnward(r)
	if err := r.path.FetchPipelined(t.Context(), m.peer, []transfer.Ref{ref(1)}, late); err != nil {
		t.Fatal(err)
	}
	late.check(t, m.want)
}

// A fetching worker reports the progress of its fetch to its downstream readers, in order.
func TestGPUFetchTellsHowFarItHasCome(t *testing.T) {
	m := newMiddle(t, 0)
	m.begin(t)
	m.bring(t, 0, arrivingBytes)
	m.index.Complete(ref(1))
	r := newReader(t, 256<<20, nil)
	sink := newOnward(r)
	if err := r.path.Fetch(t.Context(), m.peer, []transfer.Ref{ref(1)}, sink); err != nil {
		t.Fatal(err)
	}
	sink.check(t, m.want)
}

// Results of a pipelined read whose object does not come, for each cause: nothing is delivered, and
// another holder may be asked.
func TestGPUFollowersOfWhatDoesNotCome(t *testing.T) {
	for name, test := range map[string]struct {
		do   func(t *testing.T, m *middle, cancel func())
		want error
		// stall is the stall timeout; 0 means 300 ms.
		stall time.Duration
	}{
		"its fetch fails":   {func(_ *testing.T, m *middle, _ func()) { m.index.Unpublish(ref(1)) }, transfer.ErrNotHere, time.Hour},
		"it stands still":   {func(*testing.T, *middle, func()) {}, transfer.ErrNotHere, 0},
		"we do not want it": {func(_ *testing.T, _ *middle, cancel func()) { cancel() }, context.Canceled, time.Hour},
		"it begins anew": {func(t *testing.T, m *middle, _ func()) {
			t.Helper()
			m.index.Unpublish(ref(1))
			m.begin(t)
			m.bring(t, 0, arrivingBytes)
			m.index.Complete(ref(1))
		}, transfer.ErrNotHere, time.Hour},
		"its connection ends": {func(_ *testing.T, m *middle, _ func()) { m.hangUp() }, transfer.ErrNotHere, time.Hour},
		"it hangs up and is whole": {func(_ *testing.T, m *middle, _ func()) {
			m.index.SetProgress(ref(1), arrivingBytes)
			m.index.Complete(ref(1))
			m.hangUp()
		}, transfer.ErrPeerLost, time.Hour},
		// NB: its memory can be read, but no one will report that the rest has arrived.
		"it is killed": {func(_ *testing.T, m *middle, _ func()) { m.kill() }, transfer.ErrNotHere, 0},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMiddle(t, 0)
			m.begin(t)
			m.bring(t, 0, 40<<20)
			var sink *onward
			var over <-chan error
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			// On a busy machine a short time may be over before some is copied.
			for stall := max(test.stall, 300*time.Millisecond); over == nil; stall *= 4 {
				r := newReader(t, 256<<20, func(c *ipc.Config) { c.StallTimeout = stall })
				sink = newOnward(r)
				over = pipelinedCopy(ctx, r, m.peer, sink)
				eventually(t, "some is copied", func() bool { return sink.come() >= 16<<20 || len(over) > 0 })
				if sink.come() >= 16<<20 {
					break
				}
				if stall > time.Minute {
					t.Fatal("it ended before some was copied: ", <-over)
				}
				over = nil
			}
			test.do(t, m, cancel)
			err := hear(t, over)
			_, _, done, failed := sink.Result(0)
			if done && failed == nil || !errors.Is(errors.Join(err, failed), test.want) {
				t.Errorf("done %v: %v, %v; want %v", done, err, failed, test.want)
			}
		})
	}
}

// A pipelined read that comes before the peer has begun waits for a short time only.
func TestGPUFollowerComesFirst(t *testing.T) {
	m := newMiddle(t, 0)
	r := newReader(t, 256<<20, nil)
	// The peer's memory is mapped before.
	if _, err := r.path.Connect(t.Context(), m.peer); err != nil {
		t.Fatal(err)
	}
	sink := newOnward(r)
	if err := r.path.FetchPipelined(t.Context(), m.peer, []transfer.Ref{ref(1)}, sink); err != nil {
		t.Fatal(err)
	}
	if _, _, done, err := sink.Result(0); !done || !errors.Is(err, transfer.ErrNotHere) {
		t.Errorf("what does not come there: done %v, %v", done, err)
	}
	m.bring(t, 0, arrivingBytes)
	for range 100 { // the reader may have given up before the object was published
		sink = newOnward(r)
		over := pipelinedCopy(t.Context(), r, m.peer, sink)
		m.begin(t)
		m.index.Complete(ref(1))
		if err := hear(t, over); err != nil {
			t.Fatal(err)
		}
		if _, _, _, err := sink.Result(0); err == nil {
			sink.check(t, m.want)
			return
		}
		m.index.Unpublish(ref(1))
	}
	t.Error("it never waited")
}

// The memory of an abandoned object is withheld until its readers have finished, and a reader
// that does not finish loses what it read.
func TestGPUFollowerThatIsSlowLosesItsSlot(t *testing.T) {
	m := newMiddle(t, time.Millisecond)
	m.begin(t)
	m.bring(t, 0, 40<<20)
	r := newReader(t, 256<<20, nil)
	sink := newOnward(r)
	over := pipelinedCopy(t.Context(), r, m.peer, sink)
	eventually(t, "some is copied", func() bool { return sink.come() >= 16<<20 })
	reads := m.index.Readers(time.Now())
	if reads == nil {
		t.Fatal("nobody is said to read")
	}
	eventually(t, "the slot is revoked", func() bool { return reads(time.Now()) })
	m.bring(t, 40<<20, arrivingBytes)
	m.index.Complete(ref(1))
	if err := hear(t, over); !errors.Is(err, transfer.ErrPeerLost) {
		t.Errorf("it lost its slot: %v", err)
	}
	if _, _, done, _ := sink.Result(0); done {
		t.Error("what was not protected was delivered")
	}
}
