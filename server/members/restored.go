package members

import (
	"time"

	"github.com/millrace/millrace/internal/ids"
)

// DefaultRestartGrace is the time that members have to come back after a restart of the scheduler.
// It must exceed the time in which all workers notice that their connection broke, dial again, and
// send what they hold.
const DefaultRestartGrace = 15 * time.Second

// Restored means that the scheduler was started again, with these members, which are disconnected
// from now on. REQUIRES: the machine has no members yet.
type Restored struct {
	// Members are in the order of their numbers.
	Members []Member
	// Last is the last number that may have been given before.
	Last ids.WorkerID
	// Grace is the time that they have to come back.
	Grace time.Duration
}

// Member is an incarnation with its number.
type Member struct {
	Worker            ids.WorkerID
	Name, Incarnation string
}

func (Restored) event() {}

func (m *Machine) restored(event Restored) {
	for _, member := range event.Members {
		w := &worker{id: member.Worker, disconnectedAt: m.now, grace: event.Grace}
		w.seen.Worker.Worker, w.seen.Worker.Name, w.seen.Worker.Incarnation = member.Worker, member.Name, member.Incarnation
		m.all = append(m.all, w)
		m.byName[member.Name] = w
		m.watch(w)
	}
	m.last = event.Last
}
