package millrace

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"google.golang.org/protobuf/proto"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/rawframe"
)

// errObject marks an object that was delivered but cannot be used. Reading it again will not help.
var errObject = errors.New("millrace: ReadObjects")

// errGrown means that a worker announced an object that is much larger than the scheduler knows.
// The scheduler may know the size of an earlier run, so its next answer may help.
var errGrown = errors.New("it is larger than the scheduler knows")

// maxExtraBytes is how much larger than its known size an object may be. A known size is
// approximate: it may not count the header, or belong to an earlier run.
const maxExtraBytes = 64 << 20

// objectReader assembles objects. Several streams may deliver parts of them.
type objectReader struct {
	dst []byte

	mu sync.Mutex
	// objects are guarded by mu, except for the bytes of their frames: the streams write disjoint
	// ranges.
	objects []partObject
}

// newObjectReader reads one object for each known size. It allocates little more than these.
func newObjectReader(dst []byte, sizes ...uint64) *objectReader {
	r := &objectReader{dst: dst, objects: make([]partObject, len(sizes))}
	for i, n := range sizes {
		r.objects[i].most = max(n, n+maxExtraBytes) // the sum may wrap
	}
	return r
}

// take returns the complete objects in got. REQUIRES: no stream is in progress.
func (r *objectReader) take(got []Object) {
	for i := range got {
		if p := &r.objects[i]; p.value != nil && p.missing == 0 {
			got[i] = Object{Value: p.value, Frames: p.frames}
		}
	}
}

type partObject struct {
	// head is the first head that arrived.
	head    *millracev1.ObjectHead
	value   *millracev1.Value
	frames  [][]byte
	missing uint64
	// most is the largest size of all frames for which memory is allocated.
	most uint64
}

func (r *objectReader) accept(m *rawframe.Message) error {
	into, err := r.claim(m)
	if err == nil && into != nil {
		m.Data.CopyTo(into)
	}
	return err
}

// claim returns the memory for the bytes of a message, nil if the message has no bytes.
func (r *objectReader) claim(m *rawframe.Message) ([]byte, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if uint64(m.Index) >= uint64(len(r.objects)) {
		return nil, fmt.Errorf("object %d of %d", m.Index, len(r.objects))
	}
	p := &r.objects[m.Index]
	switch {
	case m.Head == nil:
	case p.head != nil:
		if p.head.GetObject().GetGeneration() != m.Head.GetObject().GetGeneration() || !slices.Equal(p.head.GetFrameBytes(), m.Head.GetFrameBytes()) {
			return nil, fmt.Errorf("task %d: its parts differ", m.Head.GetObject().GetTaskId())
		}
	default:
		p.head, p.value = m.Head, new(millracev1.Value)
		if err := proto.Unmarshal(m.Head.GetHeader(), p.value); err != nil {
			return nil, fmt.Errorf("header of task %d: %w", m.Head.GetObject().GetTaskId(), err)
		}
		if err := r.makeRoom(p, m.Head.GetFrameBytes()); err != nil {
			return nil, fmt.Errorf("task %d: %w", m.Head.GetObject().GetTaskId(), err)
		}
	}
	n := uint64(m.Data.Len())
	if n == 0 {
		return nil, nil
	}
	if uint64(m.Frame) >= uint64(len(p.frames)) {
		return nil, fmt.Errorf("%d bytes for frame %d of an object with %d frames", n, m.Frame, len(p.frames))
	}
	frame := p.frames[m.Frame]
	// NB: the sum of an offset and a length may have more than 64 bits.
	if size := uint64(len(frame)); m.Offset > size || n > size-m.Offset || n > p.missing {
		return nil, fmt.Errorf("%d bytes at %d of frame %d do not belong to the object", n, m.Offset, m.Frame)
	}
	p.missing -= n
	return frame[m.Offset : m.Offset+n], nil
}

// makeRoom allocates the memory of each frame. The largest frame uses dst, if it is set.
func (r *objectReader) makeRoom(p *partObject, sizes []uint64) error {
	largest := -1
	for i, n := range sizes {
		if n > p.most-p.missing {
			return fmt.Errorf("%w: frames of more than %d bytes were announced; the worker's log may tell why", errGrown, p.most)
		}
		if r.dst != nil && (largest < 0 || n > sizes[largest]) {
			largest = i
		}
		p.missing += n
	}
	p.frames = make([][]byte, len(sizes))
	for i, n := range sizes {
		if i != largest {
			p.frames[i] = newFrame(n)
			continue
		}
		if n > uint64(len(r.dst)) {
			return fmt.Errorf("the result has %d bytes, the destination %d", n, len(r.dst))
		}
		p.frames[i] = r.dst[:n:n]
	}
	return nil
}
