package lifecycle

import (
	"fmt"

	"github.com/millrace/millrace/internal/ids"
)

// historyLen is the number of transitions that are remembered, for all attempts together.
const historyLen = 1024

// history is a ring buffer with the last transitions.
type history struct {
	ring []transition
	next uint64
}

type transition struct {
	seq  uint64
	ref  Ref
	what string
}

func (h *history) add(r Ref, what string) {
	t := transition{h.next, r, what}
	if len(h.ring) < historyLen {
		h.ring = append(h.ring, t)
	} else {
		h.ring[h.next%historyLen] = t
	}
	h.next++
}

// History returns the remembered transitions of one attempt, oldest first, each with its sequence
// number among all transitions.
func (m *Machine) History(r Ref) []string {
	var lines []string
	for i := range m.log.ring {
		t := m.log.ring[(m.log.next+uint64(i))%uint64(len(m.log.ring))]
		if t.ref == r {
			lines = append(lines, fmt.Sprintf("#%d %s", t.seq, t.what))
		}
	}
	return lines
}

// Describe describes the attempts of a task, one a line.
func (m *Machine) Describe(task ids.TaskID) (lines []string) {
	for _, ref := range m.Attempts() {
		if ref.Task == task {
			state, _ := m.State(ref)
			lines = append(lines, fmt.Sprintf("%s, %s: %v", ref, state, m.History(ref)))
		}
	}
	return lines
}
