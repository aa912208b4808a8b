package loop

import (
	"sync"

	"github.com/millrace/millrace/worker/native"
)

// inbox has the events that wait for the owner, in their order.
type inbox struct {
	// wake wakes the owner goroutine and has room for one signal.
	wake chan struct{}

	mu sync.Mutex
	// events are guarded by mu.
	events []any
	// emptied is an empty slice for reuse. It belongs to the owner.
	emptied []any
}

// post appends an event and wakes the owner goroutine. It may be called with locks held.
func (b *inbox) post(x any) {
	b.put(x)
	b.wakeOwner()
}

// put appends an event, and returns the number of those that wait now.
func (b *inbox) put(x any) (waiting int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.events = append(b.events, x)
	return len(b.events)
}

func (b *inbox) wakeOwner() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// waiting says whether events wait.
func (b *inbox) waiting() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.events) > 0
}

// take returns all events. The owner gives the slice back by reuse.
func (b *inbox) take() []any {
	b.mu.Lock()
	defer b.mu.Unlock()
	events := b.events
	b.events, b.emptied = b.emptied, nil
	return events
}

func (b *inbox) reuse(events []any) {
	clear(events)
	b.emptied = events[:0]
}

// takeUrgent returns the ended native runs and the notifications from peers, and leaves the rest.
func (b *inbox) takeUrgent() (first []any) {
	if !b.waiting() {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	rest := b.events[:0]
	for _, x := range b.events {
		switch x.(type) {
		case []*native.Run, completed:
			first = append(first, x)
		default:
			rest = append(rest, x)
		}
	}
	clear(b.events[len(rest):])
	b.events = rest
	return first
}
