package transfertest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/millrace/millrace/transfer"
)

// Sink collects the objects that a fetch delivers.
type Sink struct {
	// PlaceHook, if set, is called first in Place.
	PlaceHook func(ctx context.Context, index int, head transfer.Head) error
	// Misplace, if set, changes the regions that Place returns.
	Misplace func(regions []transfer.Region) []transfer.Region

	room *Room

	mu sync.Mutex
	// All below is guarded by mu.
	heads  map[int]transfer.Head
	places map[int][]transfer.Region
	errs   map[int]error
	twice  []int
}

// NewSink returns an empty sink in the heap.
func NewSink() *Sink { return NewSinkIn(nil) }

// NewSinkIn returns an empty sink that places objects in a room; nil: in the heap.
func NewSinkIn(room *Room) *Sink {
	return &Sink{room: room, heads: make(map[int]transfer.Head), places: make(map[int][]transfer.Region), errs: make(map[int]error)}
}

// Capabilities is part of transfer.Sink: the sink has no optional ability.
func (*Sink) Capabilities() transfer.SinkCapabilities { return transfer.SinkCapabilities{} }

// Place is part of transfer.Sink.
func (s *Sink) Place(ctx context.Context, index int, head transfer.Head) ([]transfer.Region, error) {
	if s.PlaceHook != nil {
		if err := s.PlaceHook(ctx, index, head); err != nil {
			return nil, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.heads[index] = head
	var regions []transfer.Region
	for _, n := range head.FrameBytes {
		region, err := s.room.Take(n)
		if err != nil {
			return nil, err
		}
		regions = append(regions, region)
	}
	s.places[index] = regions
	if s.Misplace != nil {
		return s.Misplace(slices.Clone(regions)), nil
	}
	return regions, nil
}

// Done is part of transfer.Sink.
func (s *Sink) Done(index int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, again := s.errs[index]; again {
		s.twice = append(s.twice, index)
	}
	s.errs[index] = err
}

// Result returns the result for an object. done is false as long as Done was not called for it.
func (s *Sink) Result(index int) (head transfer.Head, frames [][]byte, done bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	err, done = s.errs[index]
	if len(s.twice) > 0 {
		err = errors.Join(err, fmt.Errorf("done was called twice for objects %v", s.twice))
	}
	for _, r := range s.places[index] {
		frames = append(frames, content(r))
	}
	return s.heads[index], frames, done, err
}
