package sched

import (
	"time"

	"github.com/millrace/millrace/server/copies"
)

// timerKind selects the action of a timer.
type timerKind uint8

const (
	timerRetry timerKind = iota + 1
	timerLease
	timerRetention
	timerSteal
	timerCopies
	timerLostData
	timerDispatch
)

// timer is a deadline. Timers are never removed early. Instead, the action checks its object again
// when the timer is due.
type timer struct {
	at      time.Time
	kind    timerKind
	wake    copies.WakeKind // set for timerCopies only
	id      uint64
	attempt uint32
	// seq keeps timers that are due at the same time in the order in which they were set.
	seq uint64
}

func (a timer) Before(b timer) bool {
	if !a.at.Equal(b.at) {
		return a.at.Before(b.at)
	}
	return a.seq < b.seq
}

func (m *Machine) arm(t timer) {
	m.stamp++
	t.seq = m.stamp
	m.timers.push(t)
}
