package ipc

import (
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/memory/cuda"
)

// marker is the event behind a post. Each query of an event takes the driver 1.5 µs, and recording
// it nearly as much. So a short gather writes a word when it is done, and the driver is not
// queried. A waiter that has waited longer than expected records the event after all, because the
// event also reports a lost device. Only one goroutine at a time may use a marker.
type marker struct {
	event  *cuda.Event
	stream *cuda.Stream
	// batch is the reused memory for a submission.
	batch cuda.Batch
	// word equals number when the post is over. word is nil if the event is recorded instead.
	word   *uint64
	number uint64
	// err is the reason why the event could not be recorded.
	err error
}

// expect makes the marker check a word instead of its event, which is not recorded.
func (m *marker) expect(word *uint64, number uint64) { m.word, m.number, m.err = word, number, nil }

// recorded makes the marker check its event.
func (m *marker) recorded() { m.expect(nil, 0) }

// written reports whether the kernel has written the word.
func (m *marker) written() bool { return atomic.LoadUint64(m.word) == m.number }

// Query is part of event.
func (m *marker) Query() (bool, error) {
	switch {
	case m.word == nil:
		return m.event.Query()
	case m.written():
		return true, nil
	}
	return false, m.err
}

// Await is part of event.
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
	// NB: an event that is not recorded yet still belongs to the post before.
	if m.err = m.event.Record(m.stream); m.err == nil {
		m.recorded()
	}
	return false, m.err
}
