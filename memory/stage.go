package memory

import (
	"bytes"
	"errors"
	"slices"
)

// StageBytes is the size of the buffers of a Staged space.
const StageBytes = 4 << 20

// Staged is a Space whose bytes the processor cannot address: Bytes returns nil. It copies them to
// and from buffers of host memory, asynchronously and several at a time. Its methods may be called
// from any goroutine. The caller orders copies that touch the same bytes.
type Staged interface {
	Space
	Reader
	// WriteFrom copies p to [off, off+len(p)), and waits until the copy is done.
	WriteFrom(off uint64, p []byte) error
	// Buffer lends a buffer until Buffer.Free. If all are lent, it waits for one, first come, first
	// served. That cannot last for ever, because each holder gives its buffers back within a
	// bounded time, without a wait for anything that may wait for a buffer.
	// REQUIRES: the caller holds no other buffer of the space, and keeps that rule.
	Buffer() (Buffer, error)
	// TryBuffer is Buffer for callers that hold other buffers: it returns nil instead of waiting.
	TryBuffer() (Buffer, error)
}

// Buffer is host memory to and from which a Staged space copies. Only one goroutine may use it at a
// time.
type Buffer interface {
	// Bytes returns the StageBytes of the buffer.
	Bytes() []byte
	// Load begins to copy pieces of the space to the buffer. Store begins to copy pieces of the
	// buffer to the space.
	// REQUIRES: Wait was called after the last Load or Store.
	Load(pieces ...Piece)
	Store(pieces ...Piece)
	// Wait waits for the copies that were begun, and returns their error.
	Wait() error
	// Free gives the buffer back, after waiting for its copies.
	Free()
}

// Piece says that the bytes of a buffer from At on are the bytes of a frame of a space.
type Piece struct {
	At uint64
	Frame
}

// DirectTier is a Tier for which the device copies to and from some Staged spaces, without the
// processor. Its bytes are as safe as those of the space, so Save and Load use no checksum. The
// checksums of Read and Write do not apply to bytes from Save.
type DirectTier interface {
	Tier
	// Reaches says whether the device can copy between this tier and a space.
	Reaches(s Space) bool
	// Save copies a frame of a space to off of the tier, and waits until the copy is done. Load
	// copies in the other direction. Several calls may run at the same time, in both directions.
	Save(off uint64, from Space, f Frame) error
	Load(off uint64, to Space, f Frame) error
	// Gather copies pieces of a space to the tier, where a piece begins at off+At, and waits until
	// the copies are done. It does not wait behind Saves, because a reader waits for it. Many small
	// pieces are copied fastest if Offset and off+At of each are equal modulo 16.
	Gather(off uint64, from Space, pieces []Piece) error
	// Host returns the host memory that contains the bytes of the tier, from the offset base on.
	// The processor can use the bytes in place, and other processes can map them.
	Host() (s Space, base uint64)
}

const (
	// ahead is the number of buffers that a flow uses: one is copied while another is used.
	ahead = 2
	// pieceAlign is the alignment of the pieces of different frames in a buffer. Devices copy
	// pieces fastest whose addresses there and here are equal modulo 16.
	pieceAlign = 16
)

// aligned returns the next place for a piece, from at on.
func aligned(at uint64) uint64 { return (at + pieceAlign - 1) / pieceAlign * pieceAlign }

// Outflow reads the bytes of frames of a Staged space, in their order. The next buffer is copied
// while the caller uses a chunk. A caller that waits for another process meanwhile must limit the
// wait, and call Park.
type Outflow struct {
	space  Staged
	frames []Frame
	chunk  uint64
	// frame and offset are the position of the next bytes to load.
	frame   int
	offset  uint64
	loaded  []load
	current load
}

// load is a buffer and the chunks in it. buffer is nil if the chunks were parked. Then err is the
// error of the copies.
type load struct {
	buffer Buffer
	chunks []Chunk
	err    error
}

// Chunk is a range of bytes of one of the frames, from Offset in the frame on.
type Chunk struct {
	Frame  int
	Offset uint64
	Data   []byte
}

// NewOutflow returns an Outflow; the first Next begins to copy. A chunk has at most chunk bytes,
// and at most StageBytes. Empty frames have no chunks.
func NewOutflow(space Staged, frames []Frame, chunk uint64) *Outflow {
	return &Outflow{space: space, frames: frames, chunk: min(chunk, StageBytes)}
}

// Next returns the next chunk, and false when there are no more. The bytes of a chunk are valid
// until the next call.
func (o *Outflow) Next() (c Chunk, ok bool, err error) {
	if len(o.current.chunks) == 0 {
		if o.current.buffer != nil {
			o.current.buffer.Free()
			o.current = load{}
		}
		for len(o.loaded) < ahead && o.more() {
			buffer, err := o.buffer()
			if err != nil {
				return Chunk{}, false, err
			}
			if buffer == nil {
				break // later, when this flow holds none
			}
			o.load(buffer)
		}
		if len(o.loaded) == 0 {
			return Chunk{}, false, nil
		}
		o.current, o.loaded = o.loaded[0], o.loaded[1:]
		if err := o.current.wait(); err != nil {
			return Chunk{}, false, err
		}
	}
	c, o.current.chunks = o.current.chunks[0], o.current.chunks[1:]
	return c, true, nil
}

// Several is Next for up to most chunks that lie in one buffer. It returns none when there are no
// more.
func (o *Outflow) Several(most int) ([]Chunk, error) {
	first, ok, err := o.Next()
	if !ok {
		return nil, err
	}
	n := min(most-1, len(o.current.chunks))
	chunks := append([]Chunk{first}, o.current.chunks[:n]...)
	o.current.chunks = o.current.chunks[n:]
	return chunks, nil
}

// buffer returns a buffer for the next load, nil if the flow holds one and no other is free.
func (o *Outflow) buffer() (Buffer, error) {
	if slices.ContainsFunc(o.loaded, func(l load) bool { return l.buffer != nil }) {
		return o.space.TryBuffer()
	}
	return o.space.Buffer()
}

// wait waits for the copies to the buffer.
func (l *load) wait() error {
	if l.buffer == nil {
		return l.err
	}
	return l.buffer.Wait()
}

// Park gives the buffers back and keeps their bytes in ordinary memory. The data of the chunk that
// Next returned last is not valid any more.
func (o *Outflow) Park() {
	o.current.park()
	for i := range o.loaded {
		o.loaded[i].park()
	}
}

func (l *load) park() {
	if l.buffer == nil {
		return
	}
	l.err = l.buffer.Wait()
	for i := range l.chunks {
		l.chunks[i].Data = bytes.Clone(l.chunks[i].Data)
	}
	l.buffer.Free()
	l.buffer = nil
}

// Close gives the buffers back.
func (o *Outflow) Close() {
	for _, l := range append(o.loaded, o.current) {
		if l.buffer != nil {
			l.buffer.Free()
		}
	}
	o.loaded, o.current = nil, load{}
}

// more moves to the next frame with bytes left, and says whether there is one.
func (o *Outflow) more() bool {
	for o.frame < len(o.frames) && o.offset == o.frames[o.frame].Bytes {
		o.frame, o.offset = o.frame+1, 0
	}
	return o.frame < len(o.frames)
}

// load begins to copy as many chunks as fit into a buffer.
func (o *Outflow) load(buffer Buffer) {
	room := buffer.Bytes()
	l := load{buffer: buffer}
	var pieces []Piece
	for at := uint64(0); o.more(); {
		f := o.frames[o.frame]
		n := min(o.chunk, f.Bytes-o.offset)
		if at+n > StageBytes {
			break
		}
		l.chunks = append(l.chunks, Chunk{Frame: o.frame, Offset: o.offset, Data: room[at : at+n : at+n]})
		pieces = append(pieces, Piece{At: at, Frame: Frame{Offset: f.Offset + o.offset, Bytes: n}})
		if at, o.offset = at+n, o.offset+n; o.offset == f.Bytes {
			at = aligned(at)
		}
	}
	buffer.Load(pieces...)
	o.loaded = append(o.loaded, l)
}

// Inflow writes bytes to a Staged space. Received bytes are copied there while the next bytes are
// received. A caller that waits for another process while the flow holds buffers must limit the
// wait, and call Park. The zero Inflow is not usable; make it with NewInflow.
type Inflow struct {
	space   Staged
	current Buffer
	used    uint64
	pieces  []Piece
	sent    []Buffer
	// err is the error of copies that Park waited for.
	err error
}

// NewInflow returns an Inflow for a space.
func NewInflow(space Staged) *Inflow { return &Inflow{space: space} }

// Fits says whether the Room of the next bytes would be in the buffer of the last Room. Then it may
// be asked for before the slice of the last Room is filled.
func (f *Inflow) Fits(n uint64) bool {
	return f.err == nil && f.current != nil && aligned(f.used)+n <= StageBytes
}

// Room returns a slice for the next bytes, which belong at offset off of the space. Its length is
// n, or StageBytes if that is less.
// REQUIRES: n is not 0, and the slice of the last call has been filled, or Fits returned true.
func (f *Inflow) Room(off, n uint64) ([]byte, error) {
	n = min(n, StageBytes)
	if f.err != nil {
		return nil, f.err
	}
	last := len(f.pieces) - 1
	follows := last >= 0 && f.pieces[last].End() == off
	if !follows {
		f.used = aligned(f.used)
	}
	if f.used+n > StageBytes {
		if err := f.send(); err != nil {
			return nil, err
		}
		follows = false
	}
	if f.current == nil {
		if err := f.take(); err != nil {
			return nil, err
		}
	}
	p := f.current.Bytes()[f.used : f.used+n : f.used+n]
	f.used += n
	if follows {
		f.pieces[last].Bytes += n
	} else {
		f.pieces = append(f.pieces, Piece{At: f.used - n, Frame: Frame{Offset: off, Bytes: n}})
	}
	return p, nil
}

// take gets a buffer. It waits for one only if the flow holds none.
func (f *Inflow) take() (err error) {
	if len(f.sent) > 0 {
		if f.current, err = f.space.TryBuffer(); err != nil || f.current != nil {
			return err
		}
		if err := f.settleAll(); err != nil {
			return err
		}
	}
	f.current, err = f.space.Buffer()
	return err
}

// Holds says whether the flow holds buffers.
func (f *Inflow) Holds() bool { return f.current != nil || len(f.sent) > 0 }

// Park gives the buffers back, when the received bytes are in the space. The last unfilled bytes of
// the slices of the last Rooms have not been received: their Room is asked for again. An error is
// returned by the next Room or Flush.
func (f *Inflow) Park(unfilled uint64) {
	for unfilled > 0 {
		last := &f.pieces[len(f.pieces)-1]
		n := min(unfilled, last.Bytes)
		unfilled -= n
		if last.Bytes -= n; last.Bytes == 0 {
			f.pieces = f.pieces[:len(f.pieces)-1]
		}
	}
	err := f.send()
	for len(f.sent) > 0 {
		err = errors.Join(err, f.settle())
	}
	if f.err == nil {
		f.err = err
	}
}

// send begins to copy the received bytes to the space.
func (f *Inflow) send() error {
	if f.current == nil {
		return nil
	}
	f.current.Store(f.pieces...)
	f.sent = append(f.sent, f.current)
	f.current, f.used, f.pieces = nil, 0, nil
	if len(f.sent) < ahead {
		return nil
	}
	return f.settle()
}

// settle waits for the oldest buffer.
func (f *Inflow) settle() error {
	err := f.sent[0].Wait()
	f.sent[0].Free()
	f.sent = f.sent[1:]
	return err
}

// settleAll waits for all buffers that were sent, or for the first that fails.
func (f *Inflow) settleAll() (err error) {
	for len(f.sent) > 0 && err == nil {
		err = f.settle()
	}
	return err
}

// Flush returns when all received bytes are in the space. After an error, call Close.
// REQUIRES: as for Room.
func (f *Inflow) Flush() error {
	if f.err != nil {
		return f.err
	}
	if err := f.send(); err != nil {
		return err
	}
	return f.settleAll()
}

// Close gives the buffers back. It is undefined whether bytes that were not flushed are in the
// space. After Close, no copy is in progress, and the flow is as new: errors of earlier copies,
// which Park may have kept, say nothing of the next bytes.
func (f *Inflow) Close() {
	if f.current != nil {
		f.sent = append(f.sent, f.current)
	}
	for _, b := range f.sent {
		b.Free()
	}
	f.current, f.used, f.pieces, f.sent, f.err = nil, 0, nil, nil, nil
}
