package loop

import (
	"context"
	"slices"

	"github.com/millrace/millrace/server/sched"
)

// A client that scatters an object is told so by the worker that has it, once the scheduler has
// accepted it. The bytes cannot be computed again. So the rows that say they are there become
// durable first, and then the machine hears of them: whatever was accepted, or was read by a task,
// is there after a restart, or is reported as lost.

// written is a report of a scattered object that waits for the disk.
type written struct {
	session *session
	object  sched.Stored
	// record is that of its last row.
	record uint64
}

// recordWritten records the objects of a report that the machine would accept, and takes them out
// of it: the machine hears of them when that is durable. Without a journal it leaves the report as
// it is.
func (l *Loop) recordWritten(s *session, gained []sched.Stored) []sched.Stored {
	r := &l.restarting
	if r.journal == nil {
		return gained
	}
	rest := slices.DeleteFunc(gained, func(o sched.Stored) bool {
		rows := l.machine.WrittenRows(s.worker.id, &o)
		if len(rows) > 0 {
			r.recorded = r.journal.AppendAll(l.now, rows)
			r.written = append(r.written, written{s, o, r.recorded})
		}
		return len(rows) > 0
	})
	l.awaitWritten()
	return rest
}

// recordWrittenAgain repeats the rows of the objects that wait, because a snapshot takes the place
// of the earlier ones.
func (l *Loop) recordWrittenAgain() {
	r := &l.restarting
	for i := range r.written {
		x := &r.written[i]
		if rows := l.machine.WrittenRows(x.session.worker.id, &x.object); len(rows) > 0 {
			r.recorded = r.journal.AppendAll(l.now, rows)
		}
		x.record = r.recorded
	}
}

// loseWritten forgets an object that its worker has lost before it was accepted.
func (l *Loop) loseWritten(s *session, lost sched.Replica) {
	r := &l.restarting
	r.written = slices.DeleteFunc(r.written, func(x written) bool {
		return x.session == s && x.object.Task == lost.Task && x.object.Generation == lost.Generation
	})
}

// awaitWritten lets a goroutine wait until the objects that wait now are recorded.
func (l *Loop) awaitWritten() {
	r := &l.restarting
	if r.accepting || len(r.written) == 0 {
		return
	}
	r.accepting = true
	j, record := r.journal, r.written[len(r.written)-1].record
	go func() {
		lost := false
		for !lost && j.Wait(context.Background(), record) != nil {
			lost = j.Stats().Lost
		}
		_ = l.post(context.Background(), func() { // An error says that the loop has stopped.
			r.accepting = false
			if lost {
				r.written = nil // Their workers bring them to the next start.
				return
			}
			l.acceptWritten()
			l.awaitWritten()
		})
	}()
}

// acceptWritten gives the machine the objects whose rows are durable. A worker whose session has
// ended reports them again in the next one.
func (l *Loop) acceptWritten() {
	r := &l.restarting
	durable := r.recorded - r.journal.Waiting()
	for len(r.written) > 0 && r.written[0].record <= durable {
		x := r.written[0]
		r.written = slices.Delete(r.written, 0, 1)
		if !x.session.ended {
			l.step(sched.ObjectsReported{Worker: x.session.worker.id, Gained: []sched.Stored{x.object}})
			l.dirty.counters(x.session.worker)
		}
	}
}
