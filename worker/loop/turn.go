package loop

import (
	"context"
	"fmt"
	"time"

	"github.com/millrace/millrace/memory/ledger"
	"github.com/millrace/millrace/worker/lifecycle"
)

// This file takes the worker through its turns. Run does so by the clock, in a goroutine that owns
// the worker; a simulation calls Begin and Turn by a clock of its own.

// Occasion says why the owner takes a turn.
type Occasion uint8

// The occasions.
const (
	// Woken: events wait in the inbox.
	Woken Occasion = iota
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
func (w *Worker) Turn(why Occasion) (next Next) {
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

func (w *Worker) due(why Occasion) {
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

// beaten does what is done once per Beat.
func (w *Worker) beaten() {
	w.config.Store.Tick(time.Now())
	w.config.Store.Trim(ledger.KeepBytes)
	w.outbox.Stats(w.stats.Beat())
	w.step(lifecycle.Beaten{})
	if w.config.Alive != nil {
		w.config.Alive()
	}
}

// Waiting says whether events wait in the inbox.
func (w *Worker) Waiting() bool { return w.inbox.Waiting() }
