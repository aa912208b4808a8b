package mirror

import (
	"context"
	"fmt"
	"slices"

	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/alloc"
	"github.com/millrace/millrace/transfer"
)

// stages are places in the mirror for bytes on their way to another GPU of this host: parts of
// objects, for a moment only. They may use half of the mirror, so that clients find room, too.
// Mirror.mu guards all fields.
type stages struct {
	// used is the number of bytes that the places occupy, places the number of places.
	used   uint64
	places int
	// waiting are the calls of Stage without a place, first come, first served.
	waiting []*stage
}

// stage is a call of Stage that waits for a place.
type stage struct {
	bytes uint64
	// given is closed when the place is given or err is set.
	given chan struct{}
	off   uint64
	err   error
}

// piecesPerMirror is the number of pieces of the largest size for which the mirror has room. Half
// of it is for stages, so that a reader can copy one piece while the next ones come.
const piecesPerMirror = 8

// StageBytes returns the largest number of bytes that Stage takes; 0: the mirror is too small.
func (m *Mirror) StageBytes() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return min(m.space.Size()/piecesPerMirror/alloc.PageBytes*alloc.PageBytes, memory.StageBytes)
}

// Stage copies pieces of memory on the GPU to a place of the given size in Space, where a piece
// begins at At, and returns that place, which belongs to the caller until Unstage. If there is no
// room, it waits for other stages to end, but not for clients, which may keep objects for ever:
// then the error matches ErrUnreachable. REQUIRES: the pieces lie within the place, which has at
// most StageBytes.
func (m *Mirror) Stage(ctx context.Context, bytes uint64, from memory.Space, pieces []memory.Piece) (memory.Frame, error) {
	if !m.tier.Reaches(from) {
		return memory.Frame{}, fmt.Errorf("mirror: %w: what to stage does not lie on this worker's GPU", transfer.ErrUnreachable)
	}
	off, err := m.place(ctx, bytes)
	if err != nil {
		return memory.Frame{}, err
	}
	at := memory.Frame{Offset: m.base + m.first + off, Bytes: bytes}
	if err := m.tier.Gather(m.first+off, from, pieces); err != nil {
		m.Unstage(at)
		return memory.Frame{}, fmt.Errorf("mirror: %d bytes to pinned memory: %w", bytes, err)
	}
	return at, nil
}

// Unstage gives a place of Stage back.
func (m *Mirror) Unstage(at memory.Frame) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.space.Free(at.Offset - m.base - m.first)
	m.stages.used -= alloc.Rounded(at.Bytes)
	m.stages.places--
	m.serve()
}

// StagedBytes returns the number of bytes that the places occupy now.
func (m *Mirror) StagedBytes() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.stages.used
}

// place waits for a place of the given size, and returns its offset.
func (m *Mirror) place(ctx context.Context, bytes uint64) (off uint64, err error) {
	s := &stage{bytes: bytes, given: make(chan struct{})}
	m.mu.Lock()
	m.stages.waiting = append(m.stages.waiting, s)
	m.serve()
	m.mu.Unlock()
	select {
	case <-s.given:
		return s.off, s.err
	case <-ctx.Done():
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	select {
	case <-s.given:
		return s.off, s.err // it came at the same time
	default:
	}
	m.stages.waiting = slices.DeleteFunc(m.stages.waiting, func(x *stage) bool { return x == s })
	m.serve() // a smaller one behind it may fit
	return 0, fmt.Errorf("mirror: %w for %d bytes: of %d in host memory %d are taken: %w", transfer.ErrUnreachable, bytes, m.space.Size(), m.space.Used(), context.Cause(ctx))
}

// serve gives places to waiting stages, in their order. REQUIRES: mu.
func (m *Mirror) serve() {
	w := &m.stages
	for len(w.waiting) > 0 {
		s := w.waiting[0]
		off, ok := uint64(0), w.used+alloc.Rounded(s.bytes) <= m.space.Size()/2
		if ok {
			off, ok = m.space.Alloc(s.bytes)
		}
		switch {
		case ok:
			s.off = off
			w.used += alloc.Rounded(s.bytes)
			w.places++
		case w.places > 0:
			return // until one of these ends
		default:
			s.err = fmt.Errorf("mirror: %w for %d bytes: of %d in host memory %d are taken, which clients keep", transfer.ErrUnreachable, s.bytes, m.space.Size(), m.space.Used())
		}
		close(s.given)
		w.waiting = w.waiting[1:]
	}
}
