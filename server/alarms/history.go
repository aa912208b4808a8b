package alarms

import (
	"fmt"
	"time"
)

// historyLength bounds the transitions that are kept, over all alarms.
const historyLength = 1 << 10

// history is a ring buffer of the latest transitions of all alarms.
type history struct {
	ring []transition
	next int
}

type transition struct {
	at   time.Time
	id   string
	what string
	why  string // the text of the finding that caused it; empty: there was none
}

func (h *history) add(now time.Time, id, what, why string) {
	tr := transition{at: now, id: id, what: what, why: why}
	if len(h.ring) < historyLength {
		h.ring = append(h.ring, tr)
		return
	}
	h.ring[h.next] = tr
	h.next = (h.next + 1) % historyLength
}

// History returns the latest transitions of an alarm, oldest first, with the finding that caused
// each. Old entries are overwritten by transitions of other alarms.
func (m *Machine) History(id string) []string {
	var lines []string
	h := &m.history
	for i := range h.ring {
		tr := &h.ring[(h.next+i)%len(h.ring)]
		if tr.id != id {
			continue
		}
		line := tr.at.UTC().Format("15:04:05.000") + " " + tr.what
		if tr.why != "" {
			line = fmt.Sprintf("%s: %s", line, tr.why)
		}
		lines = append(lines, line)
	}
	return lines
}
