package loop

import (
	"errors"
	"fmt"

	"github.com/millrace/millrace/internal/ids"
)

// Stopped returns the reason why the worker has stopped, nil if it has not. REQUIRES: no goroutine
// owns the worker.
func (w *Worker) Stopped() error { return w.stopped }

// Busy says whether the worker has attempts, and so needs ticks. REQUIRES: no goroutine owns the
// worker.
func (w *Worker) Busy() bool { return w.machine.Len() > 0 }

// Describe describes the attempts of a task. REQUIRES: no goroutine owns the worker.
func (w *Worker) Describe(task ids.TaskID) []string { return w.machine.Describe(task) }

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
	if w.machine.Busy() || w.peers.Rescuing() || len(w.attempts)+len(w.reservations.ids)+len(w.functions.known)+w.leases.pending > 0 {
		return fmt.Errorf("attempts %v, busy %v, rescuing %v, %d reservations, %d functions, %d requests for leases", w.machine.Attempts(), w.machine.Busy(),
			w.peers.Rescuing(), len(w.reservations.ids), len(w.functions.known), w.leases.pending)
	}
	if written := w.writes.Reports(); len(written) > 0 {
		return errors.New("written objects that are neither accepted nor refused")
	}
	return nil
}
