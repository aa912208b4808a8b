package rawframe

import (
	"errors"
	"io"
	"sync"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// Payload has the bytes of one chunk. They are either borrowed from the sender's memory, or in the
// transport's buffers, which Free releases.
type Payload struct {
	buffers mem.BufferSlice
	// The first skip bytes of buffers do not belong to the payload.
	skip, n int
}

// Len returns the number of bytes.
func (p *Payload) Len() int { return p.n }

// CopyTo copies the bytes to dst, which must have room, and returns their number.
func (p *Payload) CopyTo(dst []byte) int { return p.CopyFrom(0, dst) }

// CopyFrom copies the bytes after an offset to dst, as many as fit, and returns their number.
func (p *Payload) CopyFrom(from int, dst []byte) int {
	skip, left, done := p.skip+from, min(p.n-from, len(dst)), 0
	for _, b := range p.buffers {
		data := b.ReadOnlyData()
		if skip >= len(data) {
			skip -= len(data)
			continue
		}
		data = data[skip:]
		skip = 0
		if len(data) > left {
			data = data[:left]
		}
		done += copy(dst[done:], data)
		if left -= len(data); left == 0 {
			break
		}
	}
	return done
}

// Free releases the buffers. The payload is empty afterwards.
func (p *Payload) Free() {
	p.buffers.Free()
	*p = Payload{}
}

// Outgoing counts the chunks that were passed to gRPC and not sent yet. Their bytes must not change
// until then.
type Outgoing struct {
	// Sent, if set, is called for each chunk that was sent. It must not block.
	Sent func()

	mu      sync.Mutex
	pending int
	// idle is closed when pending falls to 0. It is nil if no goroutine waits. Drained creates it,
	// release closes it.
	idle chan struct{}
}

// Payload lends data to gRPC. The data must not change before Drained.
func (o *Outgoing) Payload(data []byte) Payload {
	if len(data) == 0 {
		return Payload{}
	}
	// NB: mem.NewBuffer decides by the capacity, and does not count references to small buffers. So
	// the capacity is limited, and small data is copied.
	data = data[:len(data):len(data)]
	if mem.IsBelowBufferPoolingThreshold(len(data)) {
		own := append([]byte(nil), data...)
		return Payload{buffers: mem.BufferSlice{mem.SliceBuffer(own)}, n: len(own)}
	}
	o.mu.Lock()
	o.pending++
	o.mu.Unlock()
	return Payload{buffers: mem.BufferSlice{mem.NewBuffer(&data, lender{o})}, n: len(data)}
}

// Drained returns a channel that is closed when no chunks are pending. If the stream breaks, its
// chunks may never be freed, so the caller must also wait for the stream's context.
func (o *Outgoing) Drained() <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.idle == nil {
		o.idle = make(chan struct{})
	}
	idle := o.idle
	if o.pending == 0 {
		close(idle)
		o.idle = nil
	}
	return idle
}

func (o *Outgoing) release() {
	if o.Sent != nil {
		o.Sent()
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.pending--
	if o.pending == 0 && o.idle != nil {
		close(o.idle)
		o.idle = nil
	}
}

// lender is a buffer pool that only takes buffers back: gRPC returns a buffer to its pool when the
// last of its bytes is sent.
type lender struct{ out *Outgoing }

// Get is part of mem.BufferPool.
func (lender) Get(int) *[]byte { panic("rawframe: a lender has no buffers of its own") }

// Put is part of mem.BufferPool.
func (l lender) Put(*[]byte) { l.out.release() }

var (
	errTruncated = errors.New("message ends in the middle of a field")
	errField     = errors.New("malformed field")
)

// reader decodes a message that is spread over several buffers.
type reader struct {
	buffers mem.BufferSlice
	at, off int // the next byte is buffers[at][off]
	done    int // number of bytes before it
}

// atEnd moves to the next buffer that has bytes, and reports whether there is none.
func (r *reader) atEnd() bool {
	for r.at < len(r.buffers) && r.off == r.buffers[r.at].Len() {
		r.at, r.off = r.at+1, 0
	}
	return r.at == len(r.buffers)
}

func (r *reader) varint() (uint64, error) {
	var v uint64
	for shift := uint(0); shift < 64; shift += 7 {
		if r.atEnd() {
			return 0, errTruncated
		}
		b := r.buffers[r.at].ReadOnlyData()[r.off]
		r.off++
		r.done++
		if b < 0x80 {
			if shift == 63 && b > 1 {
				return 0, errField
			}
			return v | uint64(b)<<shift, nil
		}
		v |= uint64(b&0x7f) << shift
	}
	return 0, errField
}

// advance skips n bytes, and copies them to dst if that is not nil.
func (r *reader) advance(n uint64, dst []byte) error {
	for n > 0 {
		if r.atEnd() {
			return errTruncated
		}
		data := r.buffers[r.at].ReadOnlyData()[r.off:]
		if uint64(len(data)) > n {
			data = data[:n]
		}
		if dst != nil {
			dst = dst[copy(dst, data):]
		}
		r.off += len(data)
		r.done += len(data)
		n -= uint64(len(data))
	}
	return nil
}

func (r *reader) length() (uint64, error) {
	n, err := r.varint()
	if err == nil && n > uint64(r.buffers.Len()-r.done) {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

func (r *reader) message(m proto.Message) error {
	n, err := r.length()
	if err != nil {
		return err
	}
	b := make([]byte, n)
	if err := r.advance(n, b); err != nil {
		return err
	}
	return proto.Unmarshal(b, m)
}

// payload returns bytes without copying them: it keeps their buffers.
func (r *reader) payload() (Payload, error) {
	n, err := r.length()
	if err != nil || n == 0 {
		return Payload{}, err
	}
	r.atEnd()
	first, skip := r.at, r.off
	if err := r.advance(n, nil); err != nil {
		return Payload{}, err
	}
	p := Payload{skip: skip, n: int(n)}
	for _, b := range r.buffers[first:min(r.at+1, len(r.buffers))] {
		b.Ref()
		p.buffers = append(p.buffers, b)
	}
	return p, nil
}

func (r *reader) skip(kind protowire.Type) error {
	switch kind {
	case protowire.Fixed32Type:
		return r.advance(4, nil)
	case protowire.Fixed64Type:
		return r.advance(8, nil)
	case protowire.BytesType:
		n, err := r.length()
		if err != nil {
			return err
		}
		return r.advance(n, nil)
	}
	return errField
}
