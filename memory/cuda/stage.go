package cuda

import (
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/memory"
)

// stagePinned is how many buffers of a slab are pinned: two for each stream of a
// peer or client, of which few are busy at once.
const stagePinned = 16

// stage are a slab's buffers, made when the first one is asked for.
type stage struct {
	mu sync.Mutex
	// All below is guarded by mu.
	made   bool
	closed bool
	pinned bool
	arena  []byte
	// all are the pinned buffers, free those of them that nobody has.
	all, free []*buffer
}

// buffer is a memory.Buffer.
type buffer struct {
	slab *Slab
	data []byte
	// event is behind what was begun, nil for buffers that are not pinned.
	event *Event
	begun bool
	err   error
}

var _ memory.Buffer = (*buffer)(nil)

// Buffer is part of memory.Staged. When all pinned ones are lent, the copies of
// what is lent then are made by the processor and waited for at once.
func (s *Slab) Buffer() (memory.Buffer, error) {
	if err := s.device.Health(); err != nil {
		return nil, err
	}
	s.stage.mu.Lock()
	defer s.stage.mu.Unlock()
	if s.stage.closed {
		return nil, fmt.Errorf("%w: the slab on %s", ErrClosed, s.device.name)
	}
	if !s.stage.made {
		s.stage.made = true
		if err := s.makeStage(); err != nil {
			return nil, errors.Join(err, s.stage.release(s.device))
		}
	}
	if n := len(s.stage.free); n > 0 {
		b := s.stage.free[n-1]
		s.stage.free = s.stage.free[:n-1]
		return b, nil
	}
	return &buffer{slab: s, data: make([]byte, memory.StageBytes)}, nil
}

// makeStage pins the buffers. REQUIRES: mu is held.
func (s *Slab) makeStage() (err error) {
	const bytes = stagePinned * memory.StageBytes
	if s.stage.arena, err = unix.Mmap(-1, 0, bytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE); err != nil {
		return fmt.Errorf("cuda: %d bytes for copies to and from %s: %w", bytes, s.device.name, err)
	}
	if err := touch(s.stage.arena, RegisterConfig{Touchers: 4}); err != nil {
		return fmt.Errorf("cuda: %d bytes for copies to and from %s: %w", bytes, s.device.name, err)
	}
	if err := s.device.pin(s.stage.arena, false); err != nil {
		return err
	}
	s.stage.pinned = true
	for i := range stagePinned {
		event, err := s.device.NewEvent()
		if err != nil {
			return err
		}
		b := &buffer{slab: s, data: s.stage.arena[i*memory.StageBytes : (i+1)*memory.StageBytes : (i+1)*memory.StageBytes], event: event}
		s.stage.all = append(s.stage.all, b)
	}
	s.stage.free = append(s.stage.free, s.stage.all...)
	return nil
}

// close gives all back. REQUIRES: no buffer is lent.
func (s *stage) close(d *Device) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	return s.release(d)
}

func (s *stage) release(d *Device) error {
	var errs []error
	for _, b := range s.all {
		errs = append(errs, b.event.Close())
	}
	if s.pinned {
		errs = append(errs, d.unpin(s.arena))
	}
	if s.arena != nil {
		errs = append(errs, unix.Munmap(s.arena))
	}
	s.all, s.free, s.arena, s.pinned = nil, nil, nil, false
	return errors.Join(errs...)
}

// Bytes is part of memory.Buffer.
func (b *buffer) Bytes() []byte { return b.data }

// Load is part of memory.Buffer.
func (b *buffer) Load(pieces ...memory.Piece) {
	b.begin(pieces, b.slab.device.Stream(Out), b.slab.ReadInto, func(host, device, n uint64) Copy { return ToHost(host, device, n) })
}

// Store is part of memory.Buffer.
func (b *buffer) Store(pieces ...memory.Piece) {
	b.begin(pieces, b.slab.device.Stream(In), b.slab.WriteFrom, func(host, device, n uint64) Copy { return ToDevice(device, host, n) })
}

func (b *buffer) begin(pieces []memory.Piece, stream *Stream, now func(uint64, []byte) error, copies func(host, device, n uint64) Copy) {
	if b.event == nil {
		for _, p := range pieces {
			if b.err == nil {
				b.err = now(p.Offset, b.data[p.At:p.At+p.Bytes])
			}
		}
		return
	}
	list := make([]Copy, len(pieces))
	for i, p := range pieces {
		list[i] = copies(address(b.data[p.At:p.At+p.Bytes]), b.slab.Pointer(p.Offset, p.Bytes), p.Bytes)
	}
	if b.err = stream.Copy(list, b.event); b.err != nil {
		// Some may be on their way.
		b.err = errors.Join(b.err, stream.Sync())
		return
	}
	b.begun = true
}

// Wait is part of memory.Buffer.
func (b *buffer) Wait() error {
	if b.begun {
		b.begun = false
		b.err = b.event.Sync()
	}
	err := b.err
	b.err = nil
	return err
}

// Free is part of memory.Buffer. On a device that was lost nothing is copied any
// more.
func (b *buffer) Free() {
	_ = b.Wait() // who cares for what was copied has waited
	if b.event == nil {
		return
	}
	s := &b.slab.stage
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.free = append(s.free, b)
	}
}
