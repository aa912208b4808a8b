// Package inbox is an Adapter: goroutines put events into an Inbox, and the owner of a loop takes
// them out.
package inbox

import "sync"

// Inbox has the events that wait for the owner, in their order.
type Inbox struct {
	// wake wakes the owner goroutine and has room for one signal.
	wake chan struct{}

	mu sync.Mutex
	// events are guarded by mu.
	events []any
	// emptied is an empty slice for reuse. It belongs to the owner.
	emptied []any
}

// New returns an empty Inbox.
func New() *Inbox { return &Inbox{wake: make(chan struct{}, 1)} }

// Woken has a signal when the owner goroutine is to look for events.
func (b *Inbox) Woken() <-chan struct{} { return b.wake }

// Post appends an event and wakes the owner goroutine. It may be called with locks held.
func (b *Inbox) Post(x any) {
	b.Put(x)
	b.WakeOwner()
}

// Put appends an event, and returns the number of those that wait now.
func (b *Inbox) Put(x any) (waiting int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.events = append(b.events, x)
	return len(b.events)
}

// WakeOwner wakes the owner goroutine.
func (b *Inbox) WakeOwner() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// Waiting says whether events wait.
func (b *Inbox) Waiting() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.events) > 0
}

// Take returns all events. The owner gives the slice back by Reuse.
func (b *Inbox) Take() []any {
	b.mu.Lock()
	defer b.mu.Unlock()
	events := b.events
	b.events, b.emptied = b.emptied, nil
	return events
}

// Reuse takes a slice of Take back.
func (b *Inbox) Reuse(events []any) {
	clear(events)
	b.emptied = events[:0]
}

// TakeFirst returns the events that are to be handled before their turn, and leaves the rest.
func (b *Inbox) TakeFirst(is func(x any) bool) (first []any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	rest := b.events[:0]
	for _, x := range b.events {
		if is(x) {
			first = append(first, x)
		} else {
			rest = append(rest, x)
		}
	}
	clear(b.events[len(rest):])
	b.events = rest
	return first
}
