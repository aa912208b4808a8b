package ipc

import (
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/memory/cuda"
)

// marker is the event behind a post. For each look at an event the driver takes 1.5 µs, and
// nearly as much to record it. So a short gather writes a word when it is through, and nobody
// asks the driver; but who has waited for longer than that should take records the event after
// all: it also tells of a device that is lost. A marker is used by one goroutine at a time.
type marker struct {
	event  *cuda.Event
	stream *cuda.Stream
	// batch is what is submitted, to be used again.
	batch cuda.Batch
	// word is number when the post is over; nil: the event is recorded.
	word   *uint64
	number uint64
	// err is why the event could not be recorded.
	err error
}

// expect has the marker look at a word instead of its event, which is not recorded.
func (m *marker) expect(word *uint64, number uint64) { m.word, m.number, m.err = word, number, nil }

// recorded has it look at its event.
func (m *marker) recorded() { m.expect(nil, 0) }

// written says whether the word is what it will be.
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
func (m *marker) Await(nap, spin time.Duration) (w cuda.Waited, err error) {
	// looks are those between two at the clock.
	const looks = 32
	if m.word == nil {
		return m.event.Await(nap, spin)
	}
	if nap == 0 {
		for began := time.Now(); ; {
			for range looks {
				if m.written() {
					return cuda.Waited{Done: true}, nil
				}
			}
			if time.Since(began) >= spin {
				break
			}
		}
		spin = 0
	}
	// NB: before it is recorded an event tells of the post before.
	if m.err = m.event.Record(m.stream); m.err != nil {
		return w, m.err
	}
	m.recorded()
	return m.event.Await(nap, spin)
}
