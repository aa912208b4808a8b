package ipc

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/cuda"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/borrow"
	"github.com/millrace/millrace/transfer/objindex"
)

// Placed objects are submitted when they have enough bytes: first firstBytes, which is little, so
// that the link gets work while the rest is looked up, and in the end laterBytes. If a batch has no
// more than firstBytes, its first three quarters are submitted early if they have at least
// earlyBytes: copying those takes longer than the additional launch.
const (
	firstBytes = 4 << 20
	laterBytes = 16 << 20
	earlyBytes = 2 << 20
)

const (
	// stretch is the number of objects that are looked up and placed at a time: their lists fit in
	// the first-level cache.
	stretch = 128
	// pieceRows bounds the rows of a piece of small objects.
	pieceRows = 512
)

// fetch reads objects of one peer: a batch of leased objects, or the objects that are found under
// one epoch guard.
type fetch struct {
	path *Path
	sink transfer.Sink
	// batcher is the sink, or nil if it takes objects only one by one.
	batcher transfer.Batcher
	memory  borrow.Memory
	// Exactly one of batch and guard is set. refs are the objects to find under guard.
	batch *borrow.Batch
	guard *borrow.ReadGuard
	refs  []transfer.Ref
	// missed are the indices of objects that were not found.
	missed []int
	// indices maps an object to its index in the request. nil: they are equal.
	indices []int
	// queue is the copy queue, nil before the first copy. group is the state of this fetch on it.
	queue *copyQueue
	group *group
	// The queue has the pieces before submitted. The pieces that are not submitted have the given
	// bytes; they are submitted once bytes reaches enough.
	cutting       cutting
	submitted     int
	bytes, enough uint64
	// empty are objects without bytes, which need no copy.
	empty []span

	// The lists below are reused.
	heads  [stretch]transfer.Head
	frames []memory.Frame
	places []memory.Frame
	list   []int
}

// fetches are kept for reuse, because their lists are as long as batches are.
var fetches = sync.Pool{New: func() any { return &fetch{group: newGroup()} }}

// newFetch returns a fetch with empty lists.
func (p *Path) newFetch(sink transfer.Sink, m borrow.Memory) *fetch {
	f := fetches.Get().(*fetch)
	f.path, f.sink, f.memory, f.enough = p, sink, m, firstBytes
	f.batcher = sink.Capabilities().Batch
	return f
}

// close returns the fetch to the pool. REQUIRES: run has returned.
func (f *fetch) close() {
	clear(f.heads[:min(f.objects(), stretch)])
	f.cutting.reset()
	f.group.reset()
	f.path, f.sink, f.batcher, f.memory, f.batch, f.guard, f.queue = nil, nil, nil, nil, nil, nil, nil
	f.refs, f.missed, f.indices, f.empty, f.submitted, f.bytes = nil, nil, nil, f.empty[:0], 0, 0
	fetches.Put(f)
}

func (f *fetch) objects() int {
	if f.batch != nil {
		return len(f.batch.Objects)
	}
	return len(f.refs)
}

func (f *fetch) ref(object int) transfer.Ref {
	if f.batch != nil {
		return f.batch.Objects[object].Head.Ref
	}
	return f.refs[object]
}

func (f *fetch) index(object int) int {
	if f.indices == nil {
		return object
	}
	return f.indices[object]
}

// together reports whether objects are contiguous in the request, too, and the sink takes several
// at once.
func (f *fetch) together(first, count int) bool {
	return f.batcher != nil && (f.indices == nil || f.indices[first+count-1]-f.indices[first] == count-1)
}

// end releases the leases of objects that are no longer needed.
func (f *fetch) end(objects ...int) {
	if f.batch != nil {
		f.batch.End(objects)
	}
}

// endSpan is end for contiguous objects. Those without a lease are ignored.
func (f *fetch) endSpan(first, count int) {
	if f.batch != nil {
		f.batch.End(f.span(f.list[:0], first, count))
	}
}

func (f *fetch) span(list []int, first, count int) []int {
	for i := first; i < first+count; i++ {
		list = append(list, i)
	}
	f.list = list
	return list
}

// run places all objects, while the copies of earlier ones are under way, and waits for all copies.
func (f *fetch) run(ctx context.Context) error {
	done := ctx.Done()
	var failed error
	n := f.objects()
	for first := 0; first < n && failed == nil; first += stretch {
		select {
		case <-done:
			failed = context.Cause(ctx)
			f.endSpan(first, n-first)
			continue
		default:
		}
		if f.submitted == 0 && f.bytes >= earlyBytes && n-first <= n/4 {
			f.submit()
		}
		count := min(stretch, n-first)
		frames, sum := f.find(first, count)
		var at int
		if at, failed = f.place(ctx, first, f.heads[:count], frames, sum); failed != nil {
			f.endSpan(at, n-at)
		}
	}
	if failed == nil && ctx.Err() != nil {
		failed = context.Cause(ctx)
	}
	if failed == nil {
		f.submit()
		failed = f.deliver(f.empty)
	} else {
		f.abandon()
	}
	return f.await(ctx, failed)
}

// find fills in the heads of objects. The Ref is zero for an object that needs no place: it was not
// found, or its error was reported to the sink. frames are the frames of the other objects, which
// sum counts.
func (f *fetch) find(first, count int) (frames []memory.Frame, sum objindex.Sum) {
	if f.guard != nil {
		frames, sum = f.guard.FindAll(f.refs[first:first+count], f.heads[:count])
		for i := 0; i < count && sum.Objects < count; i++ {
			if f.heads[i].Ref.Generation == 0 {
				f.missed = append(f.missed, first+i)
			}
		}
		return frames, sum
	}
	f.frames = f.frames[:0]
	for i := range count {
		l := &f.batch.Objects[first+i]
		if l.Err != nil {
			f.heads[i].Ref = transfer.Ref{}
			f.sink.Done(f.index(first+i), l.Err)
			continue
		}
		f.heads[i] = l.Head
		f.frames = append(f.frames, l.Frames...)
		sum.Objects++
		if len(l.Frames) == 1 {
			sum.Single++
		}
	}
	return f.frames, sum
}

// place gets regions for the objects that have a head (counted by sum) and cuts their copies. If it
// returns an error, the fetch ends, and the objects from at on have no copies.
func (f *fetch) place(ctx context.Context, first int, heads []transfer.Head, frames []memory.Frame, sum objindex.Sum) (at int, err error) {
	simple := sum.Single == sum.Objects
	for i := 0; i < len(heads); {
		if heads[i].Ref.Generation == 0 {
			i++
			continue
		}
		count := 1
		if f.batcher != nil && sum.Objects == len(heads) {
			count = len(heads) - i
		}
		for f.batcher != nil && i+count < len(heads) && heads[i+count].Ref.Generation != 0 {
			count++
		}
		placed, err := f.regions(ctx, first+i, heads[i:i+count])
		if ctx.Err() != nil {
			return first + i, context.Cause(ctx)
		}
		places := placed.Frames
		for end := i + placed.Objects; i < end; {
			if placed.Space == memory.Space(f.path.config.Slab) {
				if n := f.cutSimple(first+i, heads[i:end], frames, places, simple); n > 0 {
					frames, places, i = frames[n:], places[n:], i+n
					continue
				}
			}
			// NB: an object with unsuitable places fails below, and places for the objects after it
			// are requested again.
			sizes := heads[i].FrameBytes
			if err = f.path.fitFirst(placed, places, sizes); err != nil {
				break
			}
			n := len(sizes)
			f.cut(first+i, frames[:n], places[:n])
			frames, places = frames[n:], places[n:]
			i++
		}
		if err != nil {
			f.end(first + i)
			f.sink.Done(f.index(first+i), err)
			frames = frames[len(heads[i].FrameBytes):]
			i++
		}
	}
	return 0, nil
}

// regions asks the sink for places for contiguous objects. placed may cover fewer of them than
// asked for. An error concerns the first object without a place.
func (f *fetch) regions(ctx context.Context, first int, heads []transfer.Head) (placed transfer.Placed, err error) {
	f.places = f.places[:0]
	if f.together(first, len(heads)) {
		placed, err = f.batcher.PlaceBatch(ctx, f.index(first), heads, f.places)
		f.places = placed.Frames
		if n := framesOf(heads[:placed.Objects]); len(placed.Frames) > n {
			// The places do not say to which objects they belong.
			return transfer.Placed{}, fmt.Errorf("places for %d objects from %s on: %d regions for %d frames", placed.Objects, heads[0].Ref, len(placed.Frames), n)
		}
		if placed.Objects == 0 && err == nil {
			err = errors.New("no places and no error")
		}
		return placed, err
	}
	into, err := f.sink.Place(ctx, f.index(first), heads[0])
	if err != nil {
		return placed, err
	}
	if err := f.path.fitAll(into, heads[0].FrameBytes); err != nil {
		return placed, err
	}
	for _, r := range into {
		f.places = append(f.places, r.Frame)
	}
	return transfer.Placed{Objects: 1, Space: f.path.config.Slab, Frames: f.places}, nil
}

func framesOf(heads []transfer.Head) (n int) {
	for i := range heads {
		n += len(heads[i].FrameBytes)
	}
	return n
}

var errElsewhere = errors.New("does not lie in the slab of this worker")

// fitAll returns an error if the regions do not fit frames of the given sizes in this worker's
// slab.
func (p *Path) fitAll(into []transfer.Region, frameBytes []uint64) error {
	if len(into) != len(frameBytes) {
		return fmt.Errorf("%d regions for %d frames", len(into), len(frameBytes))
	}
	for i, r := range into {
		if err := p.fits(r.Space, r.Frame, frameBytes[i]); err != nil {
			return fmt.Errorf("region %d %w", i, err)
		}
	}
	return nil
}

// fitFirst is fitAll for the object whose frames have the first of the places.
func (p *Path) fitFirst(placed transfer.Placed, places []memory.Frame, frameBytes []uint64) error {
	for i, bytes := range frameBytes {
		if i == len(places) {
			return fmt.Errorf("%d regions for %d frames", i, len(frameBytes))
		}
		if err := p.fits(placed.Space, places[i], bytes); err != nil {
			return fmt.Errorf("region %d %w", i, err)
		}
	}
	return nil
}

// fits returns an error if a region does not fit a frame.
func (p *Path) fits(space memory.Space, frame memory.Frame, bytes uint64) error {
	switch {
	case frame.Bytes != bytes:
		return fmt.Errorf("has %d bytes for a frame of %d", frame.Bytes, bytes)
	case bytes == 0:
		return nil
	case space != memory.Space(p.config.Slab) || !frame.Within(p.config.Slab.Size()):
		return errElsewhere
	}
	return nil
}

// cutSimple cuts copies for leading objects with exactly one small frame and a fitting place in our
// slab: in large batches most objects are such. simple: all heads have one frame. It returns the
// number of objects that it handled.
func (f *fetch) cutSimple(first int, heads []transfer.Head, from, to []memory.Frame, simple bool) (count int) {
	m, c := f.memory.(*mapping), &f.cutting
	most, size := min(m.chunk, smallBytes-1), f.path.config.Slab.Size()
	rows, began, sum := c.rows, c.began, uint64(0)
	room := m.queue.pieceRows() - (len(rows) - began)
	if c.open.count > 0 && c.open.object+c.open.count != first {
		return 0 // cut of the first object closes the open piece
	}
	heads = heads[:min(len(heads), len(from), len(to))]
	from, to = from[:len(heads)], to[:len(heads)]
	base, slab, left := m.base, f.path.slab, f.enough-f.bytes
	var last row
	if len(rows) > began {
		last = rows[len(rows)-1]
		rows = rows[:len(rows)-1]
	}
	for ; count < len(heads) && sum < left; count++ {
		bytes, place := from[count].Bytes, to[count]
		if !simple && len(heads[count].FrameBytes) != 1 || bytes == 0 || bytes > most || place.Bytes != bytes || !place.Within(size) {
			break
		}
		r := row{To: slab + place.Offset, From: base + from[count].Offset, Bytes: bytes}
		if last.To+last.Bytes == r.To && last.From+last.Bytes == r.From && last.Bytes+bytes <= cuda.GatherRow {
			last.Bytes += bytes
			sum += bytes
			continue
		}
		if room <= 0 {
			break
		}
		room--
		if last.Bytes > 0 {
			rows = append(rows, last)
		}
		last = r
		sum += bytes
	}
	if last.Bytes > 0 {
		rows = append(rows, last)
	}
	if count == 0 {
		return 0
	}
	if c.open.count == 0 {
		c.open = piece{group: f.group, object: first}
	}
	c.rows = rows
	c.open.count += count
	c.open.bytes += sum
	f.queue = m.queue
	if f.bytes += sum; f.bytes >= f.enough {
		f.submit()
	}
	return count
}

// cut makes the copies of one object and submits all unsubmitted pieces if they are enough.
func (f *fetch) cut(object int, from, to []memory.Frame) {
	c, bytes := &f.cutting, uint64(0)
	for i := range from {
		bytes += from[i].Bytes
	}
	m := f.memory.(*mapping)
	slab := f.path.slab
	switch {
	case bytes == 0:
		f.empty = append(f.empty, span{first: object, count: 1})
		return
	case bytes < smallBytes && len(from) > m.queue.pieceRows():
		c.close()
		for i := range from {
			if n := from[i].Bytes; n > 0 {
				c.small(slab+to[i].Offset, m.base+from[i].Offset, n, m.chunk)
			}
		}
		c.parts(f.group, object, m.queue.pieceRows())
	case bytes < smallBytes:
		if c.open.count == 0 || c.open.object+c.open.count != object || len(c.rows)-c.began >= m.queue.pieceRows() {
			c.close()
			c.open = piece{group: f.group, object: object}
		}
		for i := range from {
			if n := from[i].Bytes; n > 0 {
				c.small(slab+to[i].Offset, m.base+from[i].Offset, n, m.chunk)
			}
		}
		c.open.count++
		c.open.bytes += bytes
	default:
		c.close()
		f.large(object, bytes, m, from, to)
	}
	f.queue = m.queue
	if f.bytes += bytes; f.bytes >= f.enough {
		f.submit()
	}
}

// large cuts an object into pieces of its own.
func (f *fetch) large(object int, bytes uint64, m *mapping, from, to []memory.Frame) {
	c := &f.cutting
	on := forward(f.sink, f.index(object), bytes)
	chunk, step := m.chunk, on.step > 0 && on.step < m.chunk
	if step {
		chunk = on.step
	}
	first := len(c.pieces)
	for i := range from {
		if n := from[i].Bytes; n > 0 {
			c.large(f.path.slab+to[i].Offset, m.base+from[i].Offset, n, chunk, f.group, object)
		}
	}
	pieces := c.pieces[first:]
	for i := range pieces {
		pieces[i].step = step
	}
	m.queue.forward(f.group, object, on, pieces)
}

// submit gives the cut pieces to the queue and raises the threshold for the next time.
func (f *fetch) submit() {
	if f.queue == nil {
		return
	}
	f.cutting.close()
	f.queue.add(f.cutting.pieces[f.submitted:])
	f.submitted, f.bytes = len(f.cutting.pieces), 0
	f.enough = min(2*f.enough, laterBytes)
}

// abandon releases the leases of objects that were placed but not submitted.
func (f *fetch) abandon() {
	if f.batch == nil {
		return
	}
	f.cutting.close()
	last := -1
	for _, p := range f.cutting.pieces[f.submitted:] {
		if p.object != last {
			f.endSpan(p.object, p.count)
		}
		last = p.object
	}
	for _, s := range f.empty {
		f.endSpan(s.first, s.count)
	}
}

// await waits until all submitted copies are over and delivers their objects. failed is an error
// that happened before; then nothing is delivered.
func (f *fetch) await(ctx context.Context, failed error) error {
	if f.queue == nil {
		return failed
	}
	if failed != nil {
		f.queue.cancel(f.group, failed)
	}
	if w := f.sink.Capabilities().Wait; w != nil {
		f.group.waits = w.Waits
	}
	for {
		ended, err := f.queue.wait(ctx, f.group, f.path.config.StallTimeout)
		if failed == nil {
			failed = err
		}
		if len(ended) == 0 {
			return failed
		}
		if failed != nil {
			for _, s := range ended {
				f.endSpan(s.first, s.count)
			}
			continue
		}
		if failed = f.deliver(ended); failed != nil {
			f.queue.cancel(f.group, failed)
		}
	}
}
