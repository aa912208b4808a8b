package loop

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/millrace/millrace/memory/ledger"
	"github.com/millrace/millrace/worker/lifecycle"
)

// This file takes the worker through its turns. Run does so by the clock, in a goroutine that owns
// the worker; a simulation calls Begin and Turn by a clock of its own.

// Run runs the worker until the context ends, the scheduler stops or drains the worker, or the
// scheduler is unreachable for too long. It returns nil if the worker has left properly.
func (w *Worker) Run(ctx context.Context) error {
	work, cancel := context.WithCancel(context.WithoutCancel(ctx))
	w.Begin(work)
	sessionDone := make(chan struct{})
	go func() {
		defer close(sessionDone)
		w.sessions.Run(work)
	}()
	err := w.own(ctx)
	if w.leaving {
		// The scheduler ends the session when it has received the last message. Cancelling the
		// session earlier would discard data that is not on the wire yet.
		select {
		case <-sessionDone:
		case <-time.After(lifecycle.Farewell):
		}
	}
	cancel()
	w.outbox.Close()
	<-sessionDone
	w.config.Native.Close()
	w.peers.Wait()
	w.native.settle()
	w.endLeft()
	return err
}

// own is the owner goroutine. While it sleeps, other goroutines may be the owner; see combine.go.
func (w *Worker) own(ctx context.Context) error {
	beats := time.NewTicker(lifecycle.Beat)
	defer beats.Stop()
	// The ticker runs only while the machine has attempts: an idle worker costs nothing.
	ticks := time.NewTicker(lifecycle.Tick)
	defer ticks.Stop()
	ticking := true
	done, drain := ctx.Done(), w.config.Drain
	var graceEnds <-chan time.Time
	if w.config.Alive != nil {
		w.config.Alive() // before the registration, so that a worker which is known is also watched
	}
	for why := Woken; ; {
		next := w.Turn(why)
		if next.Stopped {
			break
		}
		switch {
		case next.Ticks && !ticking:
			ticks.Reset(lifecycle.Tick)
		case !next.Ticks:
			ticks.Stop()
		}
		ticking = next.Ticks
		if w.inbox.Waiting() {
			w.inbox.WakeOwner() // events that arrived while this goroutine held the lock were left to it
		}
		select {
		case <-w.inbox.Woken():
			why = Woken
		case <-ticks.C:
			why = TickDue
		case <-beats.C:
			why = BeatDue
		case <-done:
			done, why = nil, StopOrdered
		case <-drain:
			drain, why = nil, DrainOrdered
			graceEnds = time.After(w.config.DrainGrace)
		case <-graceEnds:
			graceEnds, why = nil, GraceOver
		}
	}
	if errors.Is(w.stopped, errLeft) {
		return nil
	}
	return w.stopped
}

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

// endLeft ends the leases that are left when the worker has stopped: the lenders may still expect
// their end. Those of attempts in processes are left to EndLoans.
func (w *Worker) endLeft() {
	w.endAnswers()
	// order-free: each lease is ended independently.
	for _, a := range w.attempts {
		if state, _ := w.machine.State(a.ref); state != lifecycle.Running || !a.inProcess() {
			a.endLoans()
		}
	}
}

// endAnswers ends the leases that came too late: the worker has stopped. REQUIRES: no more are
// requested.
func (w *Worker) endAnswers() {
	for _, x := range w.inbox.Take() {
		if late, is := x.(borrowed); is {
			late.attempt.loans = late.loans
			late.attempt.endLoans()
		}
	}
}

// EndLoans ends the leases of attempts that ran in processes when the worker stopped. REQUIRES: Run
// has returned, and these processes have ended: until then they may read what is leased.
func (w *Worker) EndLoans() {
	// order-free: each lease is ended independently.
	for _, a := range w.attempts {
		a.endLoans()
	}
}
