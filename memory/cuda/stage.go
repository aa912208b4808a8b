package cuda

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/memory"
)

const (
	// stagePinned is how many buffers of a slab are pinned at a time, when all others are lent: two for each stream
	// of a peer or client, of which few are busy at once. stageMost bounds them.
	stagePinned = 16
	stageMost   = 64
	// stageWait is how long Buffer waits for a pinned buffer when all are lent: most are given back sooner, but a slow
	// client could hold one for ever.
	stageWait = 5 * time.Millisecond
	// stageRetry is how long no more buffers are pinned after pinning has failed.
	stageRetry = time.Second
)

// stage are a slab's buffers, made when they are asked for.
type stage struct {
	// free are the pinned buffers that nobody has: room for all.
	free chan *buffer
	// pageable counts the buffers that were not pinned.
	pageable atomic.Uint64

	mu sync.Mutex
	// All below is guarded by mu.
	closed bool
	arenas [][]byte
	all    []*buffer
	// err is why pinning failed the last time, retry when it is tried again.
	err   error
	retry time.Time
}

// Staging tells how copies through the processor's memory go.
type Staging struct {
	// Pinned is how many buffers are pinned, Pageable how often one was lent that is not: its copies take the
	// processor's time, and a thread's. Err is why no more are pinned, nil if they are, or need not be.
	Pinned   int
	Pageable uint64
	Err      error
}

// Staging may be called from any goroutine.
func (s *Slab) Staging() Staging {
	s.stage.mu.Lock()
	defer s.stage.mu.Unlock()
	return Staging{len(s.stage.all), s.stage.pageable.Load(), s.stage.err}
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

// Buffer is part of memory.Staged. When all pinned ones are lent, and no more can be pinned, it waits a little for one;
// else the copies of what is lent are made by the processor and waited for at once.
func (s *Slab) Buffer() (memory.Buffer, error) {
	if err := s.device.Health(); err != nil {
		return nil, err
	}
	select {
	case b := <-s.stage.free:
		return b, nil
	default:
	}
	some, err := s.moreStage()
	if err != nil {
		return nil, err
	}
	if some {
		timer := time.NewTimer(stageWait)
		defer timer.Stop()
		select {
		case b := <-s.stage.free:
			return b, nil
		case <-timer.C:
		}
	}
	s.stage.pageable.Add(1)
	return &buffer{slab: s, data: make([]byte, memory.StageBytes)}, nil
}

// moreStage pins more buffers unless some are free by now or there are enough, and says whether there are any.
func (s *Slab) moreStage() (some bool, err error) {
	st := &s.stage
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.closed {
		return false, fmt.Errorf("%w: the slab on %s", ErrClosed, s.device.name)
	}
	if len(st.free) == 0 && len(st.all) < stageMost && !time.Now().Before(st.retry) {
		if st.err = s.makeStage(); st.err != nil {
			st.retry = time.Now().Add(stageRetry)
			if health := s.device.Health(); health != nil {
				return false, health
			}
		}
	}
	return len(st.all) > 0, nil
}

// makeStage pins buffers, all or none. REQUIRES: mu is held.
func (s *Slab) makeStage() (err error) {
	const bytes = stagePinned * memory.StageBytes
	arena, err := unix.Mmap(-1, 0, bytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return fmt.Errorf("cuda: %d bytes for copies to and from %s: %w", bytes, s.device.name, err)
	}
	var made []*buffer
	pinned := false
	defer func() {
		if err != nil {
			err = errors.Join(err, releaseStage(s.device, made, arena, pinned))
		}
	}()
	if err := touch(arena, RegisterConfig{Touchers: 4}); err != nil {
		return fmt.Errorf("cuda: %d bytes for copies to and from %s: %w", bytes, s.device.name, err)
	}
	if err := s.device.pin(arena, false); err != nil {
		return err
	}
	pinned = true
	for i := range stagePinned {
		event, err := s.device.NewEvent()
		if err != nil {
			return err
		}
		made = append(made, &buffer{slab: s, data: arena[i*memory.StageBytes : (i+1)*memory.StageBytes : (i+1)*memory.StageBytes], event: event})
	}
	s.stage.arenas = append(s.stage.arenas, arena)
	s.stage.all = append(s.stage.all, made...)
	for _, b := range made {
		s.stage.free <- b
	}
	return nil
}

// close gives all back. REQUIRES: no buffer is lent.
func (s *stage) close(d *Device) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	var errs []error
	for i, arena := range s.arenas {
		errs = append(errs, releaseStage(d, s.all[i*stagePinned:(i+1)*stagePinned], arena, true))
	}
	s.all, s.arenas = nil, nil
	return errors.Join(errs...)
}

func releaseStage(d *Device, made []*buffer, arena []byte, pinned bool) error {
	var errs []error
	for _, b := range made {
		errs = append(errs, b.event.Close())
	}
	if pinned {
		errs = append(errs, d.unpin(arena))
	}
	return errors.Join(append(errs, unix.Munmap(arena))...)
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
		s.free <- b // there is room for all
	}
}
