package ipc

import (
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/memory/cuda"
)

// marker tells when a post is over. Usually it asks a CUDA event that is recorded after the post.
// Each query of an event takes the driver 1.5 µs, and recording it nearly as much. So the kernel of
// a short gather (at most markedBytes) writes a word at its end instead, and no event is recorded.
// If Await does not see the word in its time, it records the event after all, because the event
// also reports a lost device. Only one goroutine at a time may use a marker.
type marker struct {
	event  *cuda.Event
	stream *cuda.Stream
	// batch holds the launch of a gather; it is reused, so that a post allocates nothing.
	batch cuda.Batch
	// word equals number when the post is over. word is nil if the event is recorded instead.
	word   *uint64
	number uint64
	// err is the reason why Await could not record the event; nil if it did not fail.
	err error
}

// expect makes the marker check a word instead of its event, which is not recorded.
func (m *marker) expect(word *uint64, number uint64) { m.word, m.number, m.err = word, number, nil }

// recorded makes the marker check its event.
func (m *marker) recorded() { m.expect(nil, 0) }

// written reports whether the kernel has written the word. REQUIRES: word is not nil.
func (m *marker) written() bool { return atomic.LoadUint64(m.word) == m.number }

// Query is part of event. It reports, without waiting, whether the post is over.
func (m *marker) Query() (bool, error) {
	switch {
	case m.word == nil:
		return m.event.Query()
	case m.written():
		return true, nil
	}
	return false, m.err
}

// Await is part of event. It polls for the time spin, and reports whether it saw the post end.
func (m *marker) Await(spin time.Duration) (bool, error) {
	// polls is the number of checks between two reads of the clock.
	const polls = 32
	switch {
	case m.word == nil && spin == 0:
		return false, nil // the next Query answers as well
	case m.word == nil:
		return m.event.Await(spin)
	}
	for began := time.Now(); ; {
		for range polls {
			if m.written() {
				return true, nil
			}
		}
		if time.Since(began) >= spin {
			break
		}
	}
	// NB: if the record fails, the event still tells of an earlier post. So the marker keeps the
	// word, and Query returns err until the kernel has written it.
	if m.err = m.event.Record(m.stream); m.err == nil {
		m.recorded()
	}
	return false, m.err
}
