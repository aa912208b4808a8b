package millrace

import (
	"errors"
	"slices"
	"sync"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

const pageFutures = 512

// futureTable maps the number of a task to its futures. The numbers of one submission are close
// together, so the table uses pages instead of a map: a million futures cost 8 MB and no hashing.
type futureTable struct {
	mu    sync.Mutex
	pages map[uint64]*futurePage
	last  *futurePage // the page of the last look-up
	at    uint64      // the number of that page

	// early holds, by task, the updates of tasks whose submission is not acknowledged yet.
	// It is used only while a submission is in progress.
	early    map[uint64]taskUpdate
	underWay int
}

// futurePage holds the futures of pageFutures consecutive tasks. Several futures of one task are
// chained by next.
type futurePage struct {
	futures [pageFutures]*Future
	used    int
}

func (t *futureTable) init() {
	t.pages = make(map[uint64]*futurePage)
	t.early = make(map[uint64]taskUpdate)
}

// slot returns the place of a task; nil if it does not exist and create is false.
// REQUIRES: mu is held.
func (t *futureTable) slot(id uint64, create bool) (*futurePage, **Future) {
	n := id / pageFutures
	if t.last == nil || t.at != n {
		p := t.pages[n]
		if p == nil {
			if !create {
				return nil, nil
			}
			p = new(futurePage)
			t.pages[n] = p
		}
		t.last, t.at = p, n
	}
	return t.last, &t.last.futures[id%pageFutures]
}

// begin says that a submission is in progress; every begin is followed by one end.
func (t *futureTable) begin() {
	t.mu.Lock()
	t.underWay++
	t.mu.Unlock()
}

func (t *futureTable) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.underWay--; t.underWay == 0 && len(t.early) > 0 {
		clear(t.early)
	}
}

// bind assigns task numbers to futures, and applies the updates on these tasks that arrived before.
// since is the revision after which every snapshot includes the tasks. failed are those of the
// tasks that had failed before and do not run again. bind returns the tasks whose futures were
// released in the meantime.
func (t *futureTable) bind(futures []*Future, ids []uint64, since uint64, failed []uint64) (released []uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	old := make(map[uint64]bool, len(failed))
	for _, id := range failed {
		old[id] = true
	}
	for i, f := range futures {
		if f == nil {
			continue
		}
		id := ids[i]
		f.id, f.since, f.joinedFailure = id, since, old[id]
		if f.released {
			if _, s := t.slot(id, false); s == nil || *s == nil {
				released = append(released, id)
			}
			continue
		}
		page, s := t.slot(id, true)
		if *s == nil {
			page.used++
		}
		// NB: the scheduler sends an update to a client once, so the new future takes over the
		// state of an older future of the same task.
		f.next = *s
		*s = f
		if f.next != nil {
			// A cancelled task is submitted in order to run again.
			if end := f.next.end.Load(); end != nil && f.next.State() != Cancelled {
				f.state.Store(f.next.state.Load())
				f.finish(end.joined(f.joinedFailure))
				continue
			}
		}
		if len(t.early) > 0 {
			if u, ok := t.early[id]; ok {
				delete(t.early, id)
				u.apply(f)
			}
		}
		if f.State() == Queued {
			f.state.Store(int32(Waiting))
		}
	}
	return released
}

// update applies updates from the scheduler.
func (t *futureTable) update(updates []taskUpdate) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range updates {
		u := &updates[i]
		_, s := t.slot(u.id, false)
		if s == nil || *s == nil {
			if t.underWay > 0 {
				t.early[u.id] = *u
			}
			continue
		}
		for f := *s; f != nil; f = f.next {
			u.apply(f)
		}
	}
}

// snapshot applies a snapshot. A task that is not in it does not exist any more, unless the task
// was submitted after the snapshot was made. NB: revisions count changes, not submissions,
// so a snapshot of the same revision may be older than the task.
func (t *futureTable) snapshot(updates []taskUpdate, revision uint64) {
	t.update(updates)
	known := make(map[uint64]bool, len(updates))
	for i := range updates {
		known[updates[i].id] = true
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.each(func(f *Future) {
		if !known[f.id] && f.end.Load() == nil && f.since < revision {
			f.fail(ErrLeaseLost)
		}
	})
}

// each visits all futures. REQUIRES: mu is held.
func (t *futureTable) each(visit func(*Future)) {
	for _, p := range t.pages {
		for _, f := range p.futures {
			for ; f != nil; f = f.next {
				visit(f)
			}
		}
	}
}

// forget removes released futures, and returns the tasks that no future of this client holds any
// more.
func (t *futureTable) forget(futures []*Future) (released []uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, f := range futures {
		if f.released {
			continue
		}
		f.released = true
		f.fail(ErrReleased)
		if f.id == 0 {
			continue // still being submitted; bind will handle it
		}
		page, s := t.slot(f.id, false)
		if s == nil {
			continue
		}
		at := s
		for *at != nil && *at != f {
			at = &(*at).next
		}
		if *at == nil {
			continue // of an earlier lease: the place belongs to another task
		}
		*at = f.next
		f.next = nil
		if *s != nil {
			continue
		}
		released = append(released, f.id)
		t.vacate(page, f.id)
	}
	return released
}

// vacate decrements the number of used places of a page, and drops the page when none is left.
// REQUIRES: mu is held.
func (t *futureTable) vacate(page *futurePage, id uint64) {
	if page.used--; page.used == 0 {
		delete(t.pages, id/pageFutures)
		t.last = nil
	}
}

// unheld returns the given tasks without those that got a new future after their release was
// queued.
func (t *futureTable) unheld(ids []uint64) []uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.DeleteFunc(ids, func(id uint64) bool {
		_, s := t.slot(id, false)
		return s != nil && *s != nil
	})
}

// abandon ends futures whose tasks this client does not hold any more. No update on such a task
// will come, although it may continue for other clients. All futures of such a task end,
// and have no task from now on.
func (t *futureTable) abandon(futures []*Future) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, f := range futures {
		if f.id == 0 || f.end.Load() != nil {
			continue
		}
		page, s := t.slot(f.id, false)
		if s == nil || *s == nil {
			continue
		}
		id, chain := f.id, *s
		*s = nil
		t.vacate(page, id)
		for chain != nil {
			at := chain
			chain, at.next, at.id = at.next, nil, 0
			at.state.Store(int32(Cancelled))
			at.finish(&outcome{err: taskError(at.key, Cancelled, &millracev1.TaskError{
				Reason: "CANCELLED", Message: "cancelled by request; it may go on for other clients, which hold it too"})})
		}
	}
}

// failAll ends all futures that have not ended, and removes all futures from the table. If the
// lease is lost, results that are not here are gone, too.
func (t *futureTable) failAll(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.each(func(f *Future) {
		switch end := f.end.Load(); {
		case end == nil:
			f.fail(err)
		case end.err == nil && !end.isInline && errors.Is(err, ErrLeaseLost):
			f.state.Store(int32(Failed))
			f.finish(&outcome{err: err})
		}
	})
	t.pages, t.last = make(map[uint64]*futurePage), nil
}

// failUnbound ends futures whose submission was refused.
func (t *futureTable) failUnbound(futures []*Future, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, f := range futures {
		if f != nil && f.end.Load() == nil {
			f.fail(err)
		}
	}
}

func (t *futureTable) subscribe(f *Future, q *completions) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if f.end.Load() != nil {
		q.push(f)
		return
	}
	if f.wake == nil {
		f.wake = new(waiters)
	}
	f.wake.queues = append(f.wake.queues, q)
}

// finish ends a future and wakes its waiters. REQUIRES: table.mu is held.
func (f *Future) finish(end *outcome) {
	f.end.Store(end)
	w := f.wake
	if w == nil {
		return
	}
	f.wake = nil
	if w.done != nil {
		close(w.done)
	}
	for _, q := range w.queues {
		q.push(f)
	}
}

// fail ends a future without an update from the scheduler. REQUIRES: table.mu is held.
func (f *Future) fail(err error) {
	if f.end.Load() == nil {
		f.state.Store(int32(Failed))
	}
	if errors.Is(err, ErrReleased) {
		f.state.Store(int32(Released))
		f.finish(releasedOutcome)
		return
	}
	f.finish(&outcome{err: err})
}

// releasedOutcome is shared, like nullOutcome.
var releasedOutcome = &outcome{err: ErrReleased}

// taskUpdate is the decoded form of a TaskUpdate message.
type taskUpdate struct {
	id      uint64
	state   State
	end     *outcome // set if the task succeeded
	failure *millracev1.TaskError
}

// apply applies an update to one future. REQUIRES: table.mu is held.
func (u *taskUpdate) apply(f *Future) {
	if end := f.end.Load(); end != nil && f.joinedFailure {
		// The states between may be missing: the error of another attempt is one of a later run.
		var before *TaskError
		f.joinedFailure = errors.As(end.err, &before) && before.Attempt == u.failure.GetAttempt()
	}
	if (u.state == Failed || u.state == Cancelled) && f.end.Load() != nil {
		f.end.Store(nil) // so that nobody sees the new state with the old end
	}
	f.state.Store(int32(u.state))
	switch u.state {
	case Succeeded:
		f.finish(u.end)
	case Failed, Cancelled:
		f.joinedFailure = f.joinedFailure && u.state == Failed
		f.finish((&outcome{err: taskError(f.key, u.state, u.failure)}).joined(f.joinedFailure))
	case Queued, Waiting, Ready, Assigned, Running, Released, Rescuing:
		f.joinedFailure = false
		if f.end.Load() != nil {
			f.end.Store(nil) // the task was retried, or its object was lost: it runs again, or the object is searched for
		}
	}
}

// forgetJoined makes the next failures of futures their own: their tasks run again.
func (t *futureTable) forgetJoined(futures []*Future) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, f := range futures {
		f.joinedFailure = false
	}
}

// revive resets futures that failed with the given outcomes to waiting, since their tasks were told
// to run again. A future that has received a newer update since then stays as it is.
func (t *futureTable) revive(futures []*Future, before []*outcome) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, f := range futures {
		if end := f.end.Load(); end != nil && end == before[i] && end.err != nil && !f.released && f.id != 0 {
			f.end.Store(nil)
			f.state.Store(int32(Waiting))
		}
	}
}
