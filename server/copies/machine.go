// Package copies is a Machine: it decides where copies of objects must be. It has objects of dead
// workers copied out of their memory (a rescue).
//
// It belongs to the machine of tasks (server/sched), which owns the tables of objects and workers.
// That machine tells this one facts, carries out the effects in their order before it does anything
// else, and lets this one read its tables. This machine never changes them.
//
//	a rescued object:  ordered from a survivor ⇄ ordered from the next one
//	                       │ RescueEnded            │ no survivor, or the deadline
//	                   has a copy, or is unwanted   given up
package copies

import (
	"cmp"
	"slices"
	"time"

	"github.com/millrace/millrace/internal/ids"
)

// Config sets up a machine.
type Config struct {
	// RescueTimeout is how long the copy of a dead worker's objects may take, beside the time that
	// their bytes need. Negative: nothing is rescued.
	RescueTimeout time.Duration
	// BytesPerSecond is the rate at which a worker makes room in its memory.
	BytesPerSecond float64
}

// Machine knows which copies are ordered. It is not safe for concurrent use.
type Machine struct {
	config Config
	tables Tables
	now    time.Time
	out    []Effect

	// rescues has the rescues by dead worker, rescuing the objects that survivors are to copy.
	rescues  map[ids.WorkerID]*rescue
	rescuing map[ids.TaskID]rescuing

	totals Totals
	// holders is a scratch value of one step.
	holders []ids.WorkerID
}

// Totals has sums over the life of a machine.
type Totals struct {
	// Stale counts the answers that were dropped because another order had replaced theirs.
	Stale uint64
}

// New returns a machine that orders no copies. It reads the tables within its steps.
func New(config Config, tables Tables) *Machine {
	return &Machine{
		config: config, tables: tables,
		rescues: make(map[ids.WorkerID]*rescue), rescuing: make(map[ids.TaskID]rescuing),
	}
}

// Step handles an event. The effects are appended to out and returned. REQUIRES: those of the step
// before are carried out.
func (m *Machine) Step(now time.Time, event Event, out []Effect) []Effect {
	m.begin(now, out)
	switch event := event.(type) {
	case WorkerLost:
		m.workerLost(event)
	case WorkerRemoved:
		m.workerRemoved(event)
	case WorkerReturned:
		m.repeatOrders(event.Worker)
	case RescueEnded:
		m.endObjectRescue(event.Object)
	case RescueFailed:
		m.rescueFailed(event)
	case TimePassed:
		m.timePassed(event.Wake)
	}
	return m.end()
}

func (m *Machine) begin(now time.Time, out []Effect) { m.now, m.out = now, out }

func (m *Machine) end() []Effect {
	out := m.out
	m.out = nil
	return out
}

func (m *Machine) emit(e Effect) { m.out = append(m.out, e) }

// wake makes the owner step the machine with TimePassed at a time.
func (m *Machine) wake(at time.Time, wake Wake) {
	m.emit(Effect{Kind: EffectWake, At: at, Wake: wake})
}

func (m *Machine) timePassed(wake Wake) {
	switch wake.Kind {
	case WakeRescue:
		m.rescueDue(wake.Worker)
	}
}

// Totals returns the sums over the life of the machine.
func (m *Machine) Totals() Totals { return m.totals }

// Rescuing returns the number of objects that survivors are to copy.
func (m *Machine) Rescuing() int { return len(m.rescuing) }

func sortedKeys[K cmp.Ordered, V any](from map[K]V) []K {
	keys := make([]K, 0, len(from))
	// sorted: below.
	for k := range from {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
