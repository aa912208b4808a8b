package millrace

import (
	"math"
	"testing"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

// Frames in a worker's memory may be anywhere in it, but one object is not larger than all of it.
func TestLentFramesAreInsideTheMemory(t *testing.T) {
	s := &share{data: make([]byte, 100)}
	at := func(places ...uint64) (out []*millracev1.FrameLocation, sizes []uint64) {
		for i := 0; i < len(places); i += 2 {
			out = append(out, &millracev1.FrameLocation{Offset: places[i], Bytes: places[i+1]})
			sizes = append(sizes, places[i+1])
		}
		return out, sizes
	}
	for _, c := range []struct {
		places []uint64
		ok     bool
	}{
		{[]uint64{0, 100}, true}, {[]uint64{0, 40, 40, 60}, true}, {[]uint64{100, 0}, true}, {nil, true},
		{[]uint64{1, 100}, false}, {[]uint64{math.MaxUint64, 1}, false}, {[]uint64{101, 0}, false}, {[]uint64{0, math.MaxUint64}, false},
		{[]uint64{0, 60, 0, 60}, false}, {[]uint64{0, 100, 0, 100, 0, 100}, false},
	} {
		if _, ok := s.frames(at(c.places...)); ok != c.ok {
			t.Errorf("frames at %v of 100 bytes: %v", c.places, ok)
		}
	}
}
