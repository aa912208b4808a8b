package store

import (
	"fmt"

	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/transfer"
)

// View returns the bytes of a frame in place, nil if the processor cannot address them.
func (s *Store) View(f memory.Frame) []byte {
	if f.Bytes == 0 {
		return nil
	}
	return s.space.Bytes(f.Offset, f.Bytes)
}

// Views returns the bytes of frames in place.
func (s *Store) Views(frames []memory.Frame) [][]byte {
	if len(frames) == 0 {
		return nil
	}
	out := make([][]byte, len(frames))
	for i, f := range frames {
		out[i] = s.View(f)
	}
	return out
}

// Copies returns the bytes of frames for reading, in place if possible and otherwise as copies. It
// is meant for small objects.
func (s *Store) Copies(frames []memory.Frame) ([][]byte, error) {
	from, ok := s.space.(memory.Reader)
	if !ok {
		return s.Views(frames), nil
	}
	out := make([][]byte, len(frames))
	for i, f := range frames {
		out[i] = make([]byte, f.Bytes)
		if f.Bytes > 0 {
			if err := from.ReadInto(f.Offset, out[i]); err != nil {
				return nil, fmt.Errorf("store: %w", err)
			}
		}
	}
	return out, nil
}

// Regions returns frames in the form that transfer paths use.
func (s *Store) Regions(frames []memory.Frame) []transfer.Region {
	out := make([]transfer.Region, len(frames))
	for i, f := range frames {
		out[i] = transfer.Region{Space: s.space, Frame: f}
	}
	return out
}
