package stream

import (
	"encoding/json"
	"time"

	"github.com/millrace/millrace/server/schedapi"
)

// events is the topic of the same name.
type events struct {
	scheduler schedapi.Scheduler
	last      uint64
}

// eventBody is the JSON of an event.
type eventBody struct {
	Number   uint64             `json:"number"`
	Time     time.Time          `json:"time"`
	Kind     schedapi.EventKind `json:"kind"`
	Severity schedapi.Severity  `json:"severity"`
	Worker   string             `json:"worker,omitempty"`
	Graph    uint64             `json:"graph,omitempty"`
	Text     string             `json:"text"`
}

func (t *events) update(time.Time) *event {
	found := t.scheduler.Events(t.last)
	if len(found) == 0 {
		return nil
	}
	t.last = found[len(found)-1].Number
	return encodeEvents(false, found)
}

func (t *events) snapshot(*viewer) *event {
	found := t.scheduler.Events(0)
	for len(found) > 0 && found[len(found)-1].Number > t.last {
		found = found[:len(found)-1] // It goes to all viewers with the next update.
	}
	return encodeEvents(true, found)
}

func encodeEvents(snapshot bool, found []schedapi.Event) *event {
	rows := make([]eventBody, 0, len(found))
	for _, e := range found {
		rows = append(rows, eventBody{e.Number, e.Time.UTC(), e.Kind, e.Severity, e.Worker, uint64(e.Graph), e.Text})
	}
	text, _ := json.Marshal(struct {
		Snapshot bool        `json:"snapshot"`
		Rows     []eventBody `json:"rows"`
	}{snapshot, rows}) // Texts and times have a JSON.
	return &event{data: append(append([]byte("event: events\ndata: "), text...), "\n\n"...)}
}
