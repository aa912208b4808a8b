package stream

import (
	"encoding/json"
	"time"
)

// Alarm is something that an operator should know, with its remedy.
type Alarm struct {
	ID       string    `json:"id"`
	Kind     string    `json:"kind"`
	Severity string    `json:"severity"` // "info", "warning" or "error"
	Since    time.Time `json:"since"`
	// Subject is the worker, graph, op or pair of workers.
	Subject string `json:"subject"`
	Text    string `json:"text"`
	Remedy  string `json:"remedy"`
}

// SlowRoute is the slowest route of a reader.
type SlowRoute struct {
	Reader         string  `json:"reader"`
	Peer           string  `json:"peer"`
	Path           string  `json:"path"`
	BytesPerSecond float64 `json:"bytes_per_second"`
	// Median is that of the routes of the reader that are comparable, and Alike their number.
	Median float64 `json:"median_bytes_per_second"`
	Alike  int     `json:"alike"`
	// Good: the alarms' rule finds it good beside its median.
	Good bool `json:"good"`
}

// Alarms is the source of the alarms. Any goroutine may call it.
type Alarms interface {
	// List returns the present alarms, and a number that changes with them.
	List() (alarms []Alarm, revision uint64)
	// SlowestRoutes returns the slowest route of each reader beside the comparable ones. The
	// slowest of all is the first.
	SlowestRoutes() []SlowRoute
}

// alarms is the topic of the same name: the whole list, when it changes.
type alarms struct {
	source   Alarms // nil: there are none
	revision uint64
	whole    *event
}

func (t *alarms) update(time.Time) *event {
	list, revision := []Alarm{}, uint64(0)
	if t.source != nil {
		list, revision = t.source.List()
	}
	if t.whole != nil && revision == t.revision {
		return nil
	}
	t.revision = revision
	if list == nil {
		list = []Alarm{}
	}
	text, _ := json.Marshal(list) // Texts and times have a JSON.
	t.whole = &event{data: append(append([]byte("event: alarms\ndata: {\"alarms\":"), text...), "}\n\n"...)}
	return t.whole
}

func (t *alarms) snapshot(*viewer) *event { return t.whole }
