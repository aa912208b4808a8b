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
	// stagePinned is the number of buffers that a slab pins at a time, when no buffer is free. A
	// stream of a peer or a client uses two of them, and few streams are busy at once. stageMost is
	// the largest number of pinned buffers of a slab.
	stagePinned = 16
	stageMost   = 64
	// stageRetry is the time after a failure to pin buffers in which no other attempt is made.
	stageRetry = time.Second
)

// stage is the set of a slab's buffers. They are created on demand.
type stage struct {
	// free has the pinned buffers that are not lent. It has room for all. It serves the calls that
	// wait in their order.
	free chan *buffer
	// pageable counts the lent buffers that were not pinned.
	pageable atomic.Uint64

	mu sync.Mutex
	// mu guards all fields below.
	closed bool
	arenas []arena
	all    []*buffer
	// err is the result of the last attempt to pin buffers. After an error, retry is the time from
	// which the next attempt is allowed.
	err   error
	retry time.Time
}

// arena is the pinned memory of stagePinned buffers, and the kernel that copies many small pieces
// to and from them. gather is nil if the device does not run it.
type arena struct {
	memory []byte
	gather *Gather
}

// Staging describes the buffers for copies through the host's memory.
type Staging struct {
	// Pinned is the number of pinned buffers. Pageable is the number of times that a pageable
	// buffer was lent, because there was no pinned one at all: its copies take the processor's
	// time, and block a thread. Err is the last error of pinning, nil if the last attempt succeeded
	// or none was necessary.
	Pinned   int
	Pageable uint64
	Err      error
}

// Staging returns the state of the slab's buffers. It may be called from any goroutine.
func (s *Slab) Staging() Staging {
	s.stage.mu.Lock()
	defer s.stage.mu.Unlock()
	return Staging{len(s.stage.all), s.stage.pageable.Load(), s.stage.err}
}

// buffer is a memory.Buffer of a slab.
type buffer struct{ bounce }

var _ memory.Buffer = (*buffer)(nil)

// Buffer is part of memory.Staged. If nothing can be pinned, it lends a pageable buffer, whose
// copies are made by the processor, and Load and Store wait for them.
func (s *Slab) Buffer() (memory.Buffer, error) { return s.buffer(true) }

// TryBuffer is part of memory.Staged. It lends pageable buffers as Buffer does.
func (s *Slab) TryBuffer() (memory.Buffer, error) { return s.buffer(false) }

// buffer lends a pinned buffer, or a pageable one if there are no others. If all are lent, it waits
// for one or returns nil.
func (s *Slab) buffer(wait bool) (memory.Buffer, error) {
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
	if !some {
		s.stage.pageable.Add(1)
		return &buffer{bounce{slab: s, data: make([]byte, memory.StageBytes)}}, nil
	}
	if !wait {
		select {
		case b := <-s.stage.free:
			return b, nil
		default:
			return nil, nil //nolint:nilnil // no buffer is free, which is no error
		}
	}
	select {
	case b := <-s.stage.free:
		return b, nil
	case <-s.device.Failed():
		return nil, s.device.Health()
	}
}

// moreStage pins more buffers, unless some are free by now or there are enough. It says whether
// there are any pinned buffers.
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

// makeStage pins stagePinned buffers, all or none.
// REQUIRES: mu is held.
func (s *Slab) makeStage() (err error) {
	const bytes = stagePinned * memory.StageBytes
	var a arena
	if a.memory, err = unix.Mmap(-1, 0, bytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE); err != nil {
		return fmt.Errorf("cuda: %d bytes for copies to and from %s: %w", bytes, s.device.name, err)
	}
	var made []*buffer
	pinned := false
	defer func() {
		if err != nil {
			err = errors.Join(err, releaseStage(s.device, made, a, pinned))
		}
	}()
	if err := touch(a.memory, RegisterConfig{Touchers: 4}); err != nil {
		return fmt.Errorf("cuda: %d bytes for copies to and from %s: %w", bytes, s.device.name, err)
	}
	if err := s.device.pin(a.memory, false); err != nil {
		return err
	}
	pinned = true
	// Without the kernel, each small piece is copied by itself.
	if a.gather, err = s.device.newBounceGather(a.memory, stagePinned); err != nil {
		a.gather, err = nil, s.device.Health()
		if err != nil {
			return err
		}
	}
	for i := range stagePinned {
		event, err := s.device.NewEvent()
		if err != nil {
			return err
		}
		data := a.memory[i*memory.StageBytes : (i+1)*memory.StageBytes : (i+1)*memory.StageBytes]
		made = append(made, &buffer{bounce{
			slab: s, data: data, out: s.device.Stream(Out), in: s.device.Stream(In), event: event, gather: a.gather, table: i,
		}})
	}
	s.stage.arenas = append(s.stage.arenas, a)
	s.stage.all = append(s.stage.all, made...)
	for _, b := range made {
		s.stage.free <- b
	}
	return nil
}

// close frees all buffers.
// REQUIRES: no buffer is lent.
func (s *stage) close(d *Device) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	var errs []error
	for i, a := range s.arenas {
		errs = append(errs, releaseStage(d, s.all[i*stagePinned:(i+1)*stagePinned], a, true))
	}
	s.all, s.arenas = nil, nil
	return errors.Join(errs...)
}

func releaseStage(d *Device, made []*buffer, a arena, pinned bool) error {
	var errs []error
	for _, b := range made {
		errs = append(errs, b.event.Close())
	}
	if a.gather != nil {
		errs = append(errs, a.gather.Close())
	}
	if pinned {
		errs = append(errs, d.unpin(a.memory))
	}
	return errors.Join(append(errs, unix.Munmap(a.memory))...)
}

// Free is part of memory.Buffer. On a lost device no copy is in progress any more.
func (b *buffer) Free() {
	_ = b.Wait() // a caller that needs the result has already called Wait
	if b.event == nil {
		return
	}
	s := &b.slab.stage
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.free <- b // the channel has room for all
	}
}
