package loop

import (
	"cmp"
	"fmt"
	"strconv"
	"sync"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/internal/text"
	"github.com/millrace/millrace/server/schedapi"
)

const (
	// eventsKept bounds the events that are kept, and eventBytes the text of one: together 2 MB.
	eventsKept = 2000
	eventBytes = 1 << 10
)

// events is a ring buffer of the latest events. Readers need not wait for the loop.
type events struct {
	mu   sync.Mutex
	ring []schedapi.Event // guarded by mu
	last uint64           // guarded by mu
}

func (s *events) add(e schedapi.Event) {
	e.Text = text.Cut(e.Text, eventBytes)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last++
	e.Number = s.last
	if at := int((s.last - 1) % eventsKept); at < len(s.ring) {
		s.ring[at] = e
	} else {
		s.ring = append(s.ring, e)
	}
}

// Events returns the kept events with numbers above after, oldest first.
func (l *Loop) Events(after uint64) []schedapi.Event {
	s := &l.events
	s.mu.Lock()
	defer s.mu.Unlock()
	var found []schedapi.Event
	for n := max(after, s.last-uint64(len(s.ring))); n < s.last; n++ {
		found = append(found, s.ring[n%eventsKept])
	}
	return found
}

// happened keeps an event about a worker; with an empty name, about the cluster.
func (l *Loop) happened(kind schedapi.EventKind, severity schedapi.Severity, worker, format string, args ...any) {
	l.events.add(schedapi.Event{Time: l.now, Kind: kind, Severity: severity, Worker: worker, Text: fmt.Sprintf(format, args...)})
}

// graphFailed keeps an event about a graph that has ended with newly failed tasks. If their holders
// have released them by then, it keeps none.
func (l *Loop) graphFailed(id ids.GraphID) {
	g, known := l.machine.Graph(id)
	if !known || graphState(g.Counts) != schedapi.GraphFailed {
		return
	}
	l.events.add(schedapi.Event{
		Time: l.now, Kind: schedapi.EventGraphFailed, Severity: schedapi.SeverityError, Graph: id,
		Text: fmt.Sprintf("%s has failed: %s", named("graph "+strconv.FormatUint(uint64(id), 10), g.Name), cmp.Or(g.NewError.Message, g.NewError.Reason)),
	})
}

// named puts a name behind a noun. Names of clients and graphs may be empty.
func named(noun, name string) string {
	if name == "" {
		return noun
	}
	return fmt.Sprintf("%s %q", noun, name)
}

// counted gives a number with its noun.
func counted[N int | uint32 | uint64](n N, one, more string) string {
	if n == 1 {
		more = one
	}
	return fmt.Sprintf("%d %s", n, more)
}

// compareStats keeps events about changes between two reports of a worker.
func (l *Loop) compareStats(w *worker, before *schedapi.WorkerStats) {
	now := &w.stats
	if n := now.ExecutorDeaths; n > before.ExecutorDeaths {
		l.happened(schedapi.EventExecutorDied, schedapi.SeverityWarning, w.name, "%s of worker %q died until now, the last one by: %s", counted(n, "executor process", "executor processes"), w.name, cmp.Or(now.LastExecutorDeath, "an unknown cause"))
	}
	switch {
	case now.SpillFailure == before.SpillFailure:
	case now.SpillFailure != "":
		l.happened(schedapi.EventSpillFailed, schedapi.SeverityError, w.name, "worker %q cannot write to its disk: %s", w.name, now.SpillFailure)
	default:
		l.happened(schedapi.EventSpillMended, schedapi.SeverityInfo, w.name, "worker %q can write to its disk again", w.name)
	}
	if now.GPU != nil && before.GPU != nil && now.GPU.XIDs > before.GPU.XIDs {
		l.happened(schedapi.EventDevice, schedapi.SeverityError, w.name, "the GPU of worker %q has reported an error: %s", w.name, cmp.Or(now.GPU.LastEvent, "an Xid error"))
	}
}
