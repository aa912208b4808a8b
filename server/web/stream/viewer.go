package stream

import (
	"context"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// viewer is one open stream.
type viewer struct {
	topics uint32 // bits of Hub.topics
	// missing are the topics of which it needs a snapshot: at first all, then those of which it has
	// missed an event.
	missing atomic.Uint32
	// runsAfter is the number of the last run that it has, or that is in its queue.
	runsAfter uint64

	mu    sync.Mutex
	queue []*event // guarded by mu
	bytes int      // of the queue; guarded by mu
	// ready has a value when the queue may have events. ended is closed when the hub stops.
	ready chan struct{}
	ended chan struct{}
}

// offer puts an event into the queue. If there is no room, the viewer misses it.
func (v *viewer) offer(e *event, bit uint32) {
	v.mu.Lock()
	full := len(v.queue) > 0 && v.bytes+len(e.data) > queueBytes
	if !full {
		v.queue = append(v.queue, e)
		v.bytes += len(e.data)
	}
	v.mu.Unlock()
	if full {
		v.missing.Store(v.missing.Load() | bit) // Only the hub's goroutine writes it after the start.
		return
	}
	if e.last != 0 {
		v.runsAfter = e.last
	}
	select {
	case v.ready <- struct{}{}:
	default:
	}
}

// offerSnapshot puts a snapshot into the queue of a viewer that has missed events. It waits until
// the queue is empty.
func (v *viewer) offerSnapshot(t topic, bit uint32) {
	v.mu.Lock()
	lagging := v.bytes > queueBytes/2
	v.mu.Unlock()
	if lagging {
		return
	}
	v.missing.Store(v.missing.Load() &^ bit)
	if e := t.snapshot(v); e != nil {
		v.offer(e, bit)
	}
}

// take returns the events in the queue and empties it.
func (v *viewer) take(into []*event) []*event {
	v.mu.Lock()
	defer v.mu.Unlock()
	into = append(into[:0], v.queue...)
	clear(v.queue)
	v.queue, v.bytes = v.queue[:0], 0
	return into
}

// write sends events until the viewer leaves, takes none for too long, or the hub stops.
func (v *viewer) write(ctx context.Context, w http.ResponseWriter) {
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Accel-Buffering", "no") // Proxies such as nginx pass on each event at once.
	control := http.NewResponseController(w)
	send := func(data []byte) bool {
		_ = control.SetWriteDeadline(time.Now().Add(patience)) // Not every server has deadlines.
		_, err := w.Write(data)
		return err == nil
	}
	beat := time.NewTicker(heartbeat)
	defer beat.Stop()
	if !send([]byte("retry: 2000\n\n")) || control.Flush() != nil {
		return
	}
	var events []*event
	for {
		select {
		case <-ctx.Done():
			return
		case <-v.ended:
			return
		case <-beat.C:
			if !send([]byte(":\n\n")) {
				return
			}
		case <-v.ready:
			events = v.take(events)
			for _, e := range events {
				if !send(e.data) {
					return
				}
			}
			clear(events)
		}
		if control.Flush() != nil {
			return
		}
	}
}
