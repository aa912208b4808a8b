package loop

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/worker/lifecycle"
)

// This file takes the worker through its turns. Run does so by the clock, in a goroutine that owns
// the worker; a simulation calls Begin and Turn by a clock of its own.

// Reason says why the owner takes a turn.
type Reason uint8

// The reasons.
const (
	// Woken: events wait in the inbox.
	Woken Reason = iota
	// TickDue and BeatDue: a lifecycle.Tick or a lifecycle.Beat has passed.
	TickDue
	BeatDue
	// StopOrdered: the process is told to end. DrainOrdered: it is told to leave without loss.
	// GraceOver: the time for that is over.
	StopOrdered
	DrainOrdered
	GraceOver
)

// Next says what follows a turn.
type Next struct {
	// Stopped: the worker has stopped, and no turn may follow. Ticks: a turn must follow after a
	// lifecycle.Tick, for the reason TickDue.
	Stopped, Ticks bool
}

// Begin prepares the worker for its turns. The goroutines that it starts later end with the
// context.
func (w *Worker) Begin(ctx context.Context) {
	w.running = ctx
	w.peers.Begin(ctx)
	w.config.Native.Open(host{w})
}

// Turn handles the events in the inbox, and then does the work of the reason. It must not be called
// again when the worker has stopped.
func (w *Worker) Turn(why Reason) (next Next) {
	w.owning.Lock()
	if w.stopped == nil {
		w.drainInbox()
		w.due(why)
		w.settle()
	}
	if w.stopped != nil {
		return Next{Stopped: true} // with the lock: nobody becomes the owner any more
	}
	if w.machine.Len() > 0 {
		w.ticking = true
	} else if why == TickDue {
		w.ticking = false
	}
	next.Ticks = w.ticking
	w.owning.Unlock()
	return next
}

func (w *Worker) due(why Reason) {
	switch why {
	case Woken:
	case TickDue:
		w.step(lifecycle.Ticked{})
		w.config.Store.Tick(time.Now())
		host{w}.Poll() // in case the slots that have declared to poll are delayed
	case BeatDue:
		w.beaten()
	case StopOrdered:
		w.leave("told to stop")
	case DrainOrdered:
		w.askToLeave()
	case GraceOver:
		w.leave(fmt.Sprintf("its time to leave, %v, is over", w.config.DrainGrace))
	}
}

// Waiting says whether events wait in the inbox.
func (w *Worker) Waiting() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.inbox) > 0
}

// Stopped returns the reason why the worker has stopped, nil if it has not. REQUIRES: no goroutine
// owns the worker.
func (w *Worker) Stopped() error { return w.stopped }

// Busy says whether the worker has attempts, and so needs ticks. REQUIRES: no goroutine owns the
// worker.
func (w *Worker) Busy() bool { return w.machine.Len() > 0 }

// Describe describes the attempts of a task. REQUIRES: no goroutine owns the worker.
func (w *Worker) Describe(task ids.TaskID) (lines []string) {
	for _, ref := range w.machine.Attempts() {
		if ref.Task == task {
			state, _ := w.machine.State(ref)
			lines = append(lines, fmt.Sprintf("%s, %s: %v", ref, state, w.machine.History(ref)))
		}
	}
	return lines
}

// Check returns the first broken invariant of the worker's machines and of its records about them.
// REQUIRES: no goroutine owns the worker.
func (w *Worker) Check() error {
	if err := w.machine.Check(); err != nil {
		return err
	}
	if err := w.config.Store.Check(); err != nil {
		return err
	}
	refs := w.machine.Attempts()
	for _, ref := range refs {
		if w.attempts[ref] == nil {
			return fmt.Errorf("loop: the machine has %s, and the loop does not", ref)
		}
	}
	if len(w.attempts) != len(refs) {
		return fmt.Errorf("loop: %d attempts, and the machine has %d", len(w.attempts), len(refs))
	}
	return nil
}

// Residue returns an error that names what the worker has beside its objects, nil if nothing.
// REQUIRES: no goroutine owns the worker.
func (w *Worker) Residue() error {
	if w.machine.Busy() || w.peers.Rescuing() || len(w.attempts)+len(w.reservations)+len(w.functions)+w.lending > 0 {
		return fmt.Errorf("attempts %v, busy %v, rescuing %v, %d reservations, %d functions, %d requests for leases", w.machine.Attempts(), w.machine.Busy(),
			w.peers.Rescuing(), len(w.reservations), len(w.functions), w.lending)
	}
	if written := w.writes.Reports(); len(written) > 0 {
		return errors.New("written objects that are neither accepted nor refused")
	}
	return nil
}
