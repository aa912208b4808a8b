package loop

import (
	"context"
	"slices"

	"github.com/millrace/millrace/server/sched"
)

// The bytes of a scattered object cannot be computed again. So the machine hears of them after the
// row that says that their task has succeeded is durable. Then an object that was accepted or read
// by a task is there after a restart, or is reported as lost.

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
		lost := persisted(context.Background(), j, record) != nil
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

// acceptWritten gives the machine the objects whose rows are durable. Consecutive ones of one
// worker are one event. A worker whose session has ended reports them again in the next one.
func (l *Loop) acceptWritten() {
	r := &l.restarting
	durable := r.recorded - r.journal.Waiting()
	ready := 0
	for ready < len(r.written) && r.written[ready].record <= durable {
		ready++
	}
	for i := 0; i < ready; {
		s := r.written[i].session
		var gained []sched.Stored
		for ; i < ready && r.written[i].session == s; i++ {
			gained = append(gained, r.written[i].object)
		}
		if !s.ended {
			l.step(sched.ObjectsReported{Worker: s.worker.id, Gained: gained})
			l.dirty.counters(s.worker)
		}
	}
	r.written = slices.Delete(r.written, 0, ready)
}
