package transfertest

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/objindex"
)

// Objects is a transfer.Source and transfer.Receiver for objects in the heap or in a space.
type Objects struct {
	room *Room

	mu sync.Mutex
	// All below is guarded by mu. While stalled is not nil and not closed, Lease waits.
	stalled chan struct{}
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

// Stall makes Lease wait until the returned function is called. It may be called once.
func (o *Objects) Stall() (resume func()) {
	stalled := make(chan struct{})
	o.mu.Lock()
	defer o.mu.Unlock()
	o.stalled = stalled
	return func() { close(stalled) }
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
	stalled := o.stalled
	o.mu.Unlock()
	if stalled != nil {
		<-stalled
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
