package memory

// StageBytes is the size of the buffers of a Staged space.
const StageBytes = 4 << 20

// Staged is a Space whose bytes the processor cannot address: Bytes returns nil. It
// copies them to and from buffers of host memory, by itself and several at a time.
// Its methods may be called from any goroutine; the order of copies that touch the
// same bytes is the caller's business.
type Staged interface {
	Space
	Reader
	// WriteFrom copies p to [off, off+len(p)), and waits for it.
	WriteFrom(off uint64, p []byte) error
	// Buffer lends a buffer, until Buffer.Free. There always is one; beyond a certain
	// number they are slow.
	Buffer() (Buffer, error)
}

// Buffer is host memory to which and from which a Staged space copies. It belongs
// to one goroutine at a time.
type Buffer interface {
	// Bytes are the StageBytes of the buffer.
	Bytes() []byte
	// Load begins to copy pieces of the space to the buffer, Store pieces of the
	// buffer to the space. REQUIRES: what was begun before has been waited for.
	Load(pieces ...Piece)
	Store(pieces ...Piece)
	// Wait returns when what was begun is over, with its error.
	Wait() error
	// Free gives the buffer back, after waiting if need be.
	Free()
}

// Piece says that the bytes of a buffer from At on are those of a frame of a space.
type Piece struct {
	At uint64
	Frame
}

// DirectTier is a Tier between which and some Staged spaces a device copies, without
// the processor. Its bytes are as safe as those of the space, so they have no
// checksum: that of Read and Write does not matter for what was saved.
type DirectTier interface {
	Tier
	// Reaches says whether it is so for a space.
	Reaches(s Space) bool
	// Save copies a frame of a space to off of the tier, and waits for it; Load the
	// other way round. Several can be on their way, in both directions.
	Save(off uint64, from Space, f Frame) error
	Load(off uint64, to Space, f Frame) error
	// Host is memory in which the bytes of the tier lie, from an offset on: the
	// processor can use them in place, and other processes map them.
	Host() (s Space, base uint64)
}

// ahead is how many buffers a flow uses: one is copied while another is used.
const ahead = 2

// Outflow hands the bytes of frames of a Staged space out, in their order: what
// comes next is being copied while a chunk is used.
type Outflow struct {
	space  Staged
	frames []Frame
	chunk  uint64
	// frame and offset are what is to be loaded next.
	frame   int
	offset  uint64
	loaded  []load
	current load
}

// load is a buffer with the chunks in it.
type load struct {
	buffer Buffer
	chunks []Chunk
}

// Chunk are bytes from an offset of one of the frames on.
type Chunk struct {
	Frame  int
	Offset uint64
	Data   []byte
}

// NewOutflow begins to copy. Chunks have at most so many bytes, and at most
// StageBytes. Empty frames have none.
func NewOutflow(space Staged, frames []Frame, chunk uint64) *Outflow {
	return &Outflow{space: space, frames: frames, chunk: min(chunk, StageBytes)}
}

// Next returns the next chunk, whose bytes are good until the next call, and false
// when there are no more.
func (o *Outflow) Next() (c Chunk, ok bool, err error) {
	if len(o.current.chunks) == 0 {
		if o.current.buffer != nil {
			o.current.buffer.Free()
			o.current = load{}
		}
		for len(o.loaded) < ahead && o.more() {
			if err := o.load(); err != nil {
				return Chunk{}, false, err
			}
		}
		if len(o.loaded) == 0 {
			return Chunk{}, false, nil
		}
		o.current, o.loaded = o.loaded[0], o.loaded[1:]
		if err := o.current.buffer.Wait(); err != nil {
			return Chunk{}, false, err
		}
	}
	c, o.current.chunks = o.current.chunks[0], o.current.chunks[1:]
	return c, true, nil
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

// more moves on to a frame with bytes left.
func (o *Outflow) more() bool {
	for o.frame < len(o.frames) && o.offset == o.frames[o.frame].Bytes {
		o.frame, o.offset = o.frame+1, 0
	}
	return o.frame < len(o.frames)
}

// load begins to copy what fits into one buffer.
func (o *Outflow) load() error {
	buffer, err := o.space.Buffer()
	if err != nil {
		return err
	}
	room := buffer.Bytes()
	l := load{buffer: buffer}
	var pieces []Piece
	for at := uint64(0); o.more(); {
		f := o.frames[o.frame]
		n := min(o.chunk, f.Bytes-o.offset)
		if n > StageBytes-at {
			break
		}
		l.chunks = append(l.chunks, Chunk{Frame: o.frame, Offset: o.offset, Data: room[at : at+n : at+n]})
		pieces = append(pieces, Piece{At: at, Frame: Frame{Offset: f.Offset + o.offset, Bytes: n}})
		at += n
		o.offset += n
	}
	buffer.Load(pieces...)
	o.loaded = append(o.loaded, l)
	return nil
}

// Inflow takes bytes for a Staged space: what came is being copied there while the
// next is received. The zero Inflow is not usable; make it with NewInflow.
type Inflow struct {
	space   Staged
	current Buffer
	used    uint64
	pieces  []Piece
	sent    []Buffer
}

// NewInflow returns one for a space.
func NewInflow(space Staged) *Inflow { return &Inflow{space: space} }

// Room returns where the next bytes are to be put that belong at an offset of the
// space: n, or StageBytes if that is less. REQUIRES: n is not 0, and what it returned
// before has been filled.
func (f *Inflow) Room(off, n uint64) ([]byte, error) {
	n = min(n, StageBytes)
	if f.used+n > StageBytes {
		if err := f.send(); err != nil {
			return nil, err
		}
	}
	if f.current == nil {
		buffer, err := f.space.Buffer()
		if err != nil {
			return nil, err
		}
		f.current = buffer
	}
	p := f.current.Bytes()[f.used : f.used+n : f.used+n]
	f.used += n
	if last := len(f.pieces) - 1; last >= 0 && f.pieces[last].End() == off {
		f.pieces[last].Bytes += n
	} else {
		f.pieces = append(f.pieces, Piece{At: f.used - n, Frame: Frame{Offset: off, Bytes: n}})
	}
	return p, nil
}

// send begins to copy what has come to the space.
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

// Flush returns when all that came is in the space. After an error, Close it.
// REQUIRES: as for Room.
func (f *Inflow) Flush() error {
	err := f.send()
	for len(f.sent) > 0 && err == nil {
		err = f.settle()
	}
	return err
}

// Close gives the buffers back; what was not flushed may be in the space or not,
// and nothing is copied any more.
func (f *Inflow) Close() {
	if f.current != nil {
		f.sent = append(f.sent, f.current)
	}
	for _, b := range f.sent {
		b.Free()
	}
	f.current, f.used, f.pieces, f.sent = nil, 0, nil, nil
}
