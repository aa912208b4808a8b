// Package transfertest is Test support: the conformance suite that each transfer path must pass,
// and the sources and sinks for it.
package transfertest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/objindex"
)

// Heap is a memory.Space in the Go heap.
type Heap []byte

var _ memory.Space = Heap(nil)

// Size is part of memory.Space.
func (h Heap) Size() uint64 { return uint64(len(h)) }

// Identity is part of memory.Space.
func (h Heap) Identity() memory.Identity { return memory.Identity{} }

// Bytes is part of memory.Space.
func (h Heap) Bytes(off, n uint64) []byte { return h[off : off+n : off+n] }

// FD is part of memory.Space.
func (h Heap) FD() int { return -1 }

// Objects is a transfer.Source and transfer.Receiver for objects in the heap or in a space.
type Objects struct {
	room *Room

	mu sync.Mutex
	// All below is guarded by mu. While silence is not nil and not closed, Lease waits.
	silence chan struct{}
	objects map[transfer.Ref]transfer.Leased
	leases  map[transfer.LeaseID]transfer.Ref
	last    transfer.LeaseID
	index   *objindex.Index
}

// NewObjects returns an empty source in the heap.
func NewObjects() *Objects { return NewObjectsIn(nil) }

// NewObjectsIn returns an empty source that copies frames into a room. Nil: it uses the given
// frames themselves.
func NewObjectsIn(room *Room) *Objects {
	return &Objects{room: room, objects: make(map[transfer.Ref]transfer.Leased), leases: make(map[transfer.LeaseID]transfer.Ref)}
}

// Room returns the room that contains the objects; nil for the heap.
func (o *Objects) Room() *Room { return o.room }

// PublishTo also publishes all objects that are put from now on in a shared object index.
func (o *Objects) PublishTo(b *objindex.Index) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.index = b
}

// Index returns the shared object index with the objects; nil if there is none.
func (o *Objects) Index() *objindex.Index {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.index
}

// Hush makes Lease wait until the returned function is called. It may be called once.
func (o *Objects) Hush() (speak func()) {
	silence := make(chan struct{})
	o.mu.Lock()
	defer o.mu.Unlock()
	o.silence = silence
	return func() { close(silence) }
}

// Put adds an object with the given frames.
func (o *Objects) Put(ref transfer.Ref, header string, frames ...[]byte) {
	l := transfer.Leased{Head: transfer.Head{Ref: ref, Header: []byte(header)}}
	for _, f := range frames {
		l.Head.FrameBytes = append(l.Head.FrameBytes, uint64(len(f)))
		l.Regions = append(l.Regions, o.room.keep(f))
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.objects[ref] = l
	if o.index == nil {
		return
	}
	var places []memory.Frame
	for _, r := range l.Regions {
		places = append(places, r.Frame)
	}
	o.index.Publish(ref, l.Head.Header, places)
}

// Get returns the frames of an object.
func (o *Objects) Get(ref transfer.Ref) (frames [][]byte, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	l, ok := o.objects[ref]
	for _, r := range l.Regions {
		frames = append(frames, content(r))
	}
	return frames, ok
}

// Leases returns the number of leases that were not released.
func (o *Objects) Leases() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.leases)
}

// Revoke ends all leases, as if they had expired.
func (o *Objects) Revoke() {
	o.mu.Lock()
	defer o.mu.Unlock()
	clear(o.leases)
}

// Lease is part of transfer.Source.
func (o *Objects) Lease(_ transfer.Reader, refs []transfer.Ref, _ time.Duration) []transfer.Leased {
	o.mu.Lock()
	silence := o.silence
	o.mu.Unlock()
	if silence != nil {
		<-silence
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	out := make([]transfer.Leased, len(refs))
	for i, r := range refs {
		l, ok := o.objects[r]
		if !ok {
			out[i].Err = fmt.Errorf("%s: %w", r, transfer.ErrNotHere)
			continue
		}
		o.last++
		l.Lease = o.last
		o.leases[l.Lease] = r
		out[i] = l
	}
	return out
}

// Release is part of transfer.Source.
func (o *Objects) Release(leases []transfer.LeaseID) []bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	held := make([]bool, len(leases))
	for i, id := range leases {
		_, held[i] = o.leases[id]
		delete(o.leases, id)
	}
	return held
}

// Renew is part of transfer.Source. Leases last until Release or Revoke.
func (o *Objects) Renew(leases []transfer.LeaseID, _ time.Duration) []bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	held := make([]bool, len(leases))
	for i, id := range leases {
		_, held[i] = o.leases[id]
	}
	return held
}

// Create is part of transfer.Receiver.
func (o *Objects) Create(_ context.Context, head transfer.Head) (transfer.Incoming, error) {
	in := &written{objects: o, head: head}
	for _, n := range head.FrameBytes {
		in.frames = append(in.frames, make([]byte, n))
	}
	return in, nil
}

type written struct {
	objects *Objects
	head    transfer.Head
	frames  [][]byte
}

// Regions is part of transfer.Incoming.
func (w *written) Regions() (out []transfer.Region) {
	for _, f := range w.frames {
		out = append(out, transfer.Region{Space: Heap(f), Frame: memory.Frame{Bytes: uint64(len(f))}})
	}
	return out
}

// Commit is part of transfer.Incoming.
func (w *written) Commit(context.Context) error {
	w.objects.Put(w.head.Ref, string(w.head.Header), w.frames...)
	return nil
}

// Abort is part of transfer.Incoming.
func (w *written) Abort() {}

// Sink collects the objects that a fetch delivers.
type Sink struct {
	// PlaceHook, if set, is called first in Place.
	PlaceHook func(ctx context.Context, index int, head transfer.Head) error
	// Misplace, if set, changes the regions that Place returns.
	Misplace func(regions []transfer.Region) []transfer.Region

	room *Room

	mu sync.Mutex
	// All below is guarded by mu.
	heads  map[int]transfer.Head
	places map[int][]transfer.Region
	errs   map[int]error
	twice  []int
}

// NewSink returns an empty sink in the heap.
func NewSink() *Sink { return NewSinkIn(nil) }

// NewSinkIn returns an empty sink that places objects in a room; nil: in the heap.
func NewSinkIn(room *Room) *Sink {
	return &Sink{room: room, heads: make(map[int]transfer.Head), places: make(map[int][]transfer.Region), errs: make(map[int]error)}
}

// Capabilities is part of transfer.Sink: the sink has no optional ability.
func (*Sink) Capabilities() transfer.SinkCapabilities { return transfer.SinkCapabilities{} }

// Place is part of transfer.Sink.
func (s *Sink) Place(ctx context.Context, index int, head transfer.Head) ([]transfer.Region, error) {
	if s.PlaceHook != nil {
		if err := s.PlaceHook(ctx, index, head); err != nil {
			return nil, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.heads[index] = head
	var regions []transfer.Region
	for _, n := range head.FrameBytes {
		region, err := s.room.Take(n)
		if err != nil {
			return nil, err
		}
		regions = append(regions, region)
	}
	s.places[index] = regions
	if s.Misplace != nil {
		return s.Misplace(slices.Clone(regions)), nil
	}
	return regions, nil
}

// Done is part of transfer.Sink.
func (s *Sink) Done(index int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, again := s.errs[index]; again {
		s.twice = append(s.twice, index)
	}
	s.errs[index] = err
}

// Result returns the result for an object. done is false as long as Done was not called for it.
func (s *Sink) Result(index int) (head transfer.Head, frames [][]byte, done bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	err, done = s.errs[index]
	if len(s.twice) > 0 {
		err = errors.Join(err, fmt.Errorf("done was called twice for objects %v", s.twice))
	}
	for _, r := range s.places[index] {
		frames = append(frames, content(r))
	}
	return s.heads[index], frames, done, err
}

func idOf(task int) ids.TaskID { return ids.TaskID(task) }
