package sched

import (
	"time"

	"github.com/millrace/millrace/internal/ids"
)

// runsLength bounds the finished attempts that are kept, over all tasks.
const runsLength = 1 << 16

// Run is a finished attempt of a task. It outlives the task.
type Run struct {
	// Number of the attempt in the order of the ends, counted from 1.
	Number    uint64
	Task      ids.TaskID
	Key       string
	Namespace string
	// Worker is the name of the worker that ran it.
	Worker      string
	Attempt     ids.Attempt
	Succeeded   bool
	OutputBytes uint64
	// End is the time of the report; the function ran for RunTime.
	End     time.Time
	RunTime time.Duration
}

// runs is a ring buffer of the latest finished attempts. The attempt with the number n is at
// (n-1) % runsLength.
type runs struct {
	ring []keptRun
	last uint64
}

// keptRun is a Run whose key has memory of its own, which the next attempt at the same place uses
// again.
type keptRun struct {
	Run
	key []byte
}

func (s *runs) add(r Run, key []byte) {
	at := int(s.last % runsLength)
	s.last++
	if at == len(s.ring) {
		s.ring = append(s.ring, keptRun{})
	}
	kept := &s.ring[at]
	r.Number = s.last
	kept.Run, kept.key = r, append(kept.key[:0], key...)
}

// noteRun keeps an attempt that a worker has reported as finished.
func (m *Machine) noteRun(r *Report, b *block, t *task, w *worker) {
	m.runs.add(Run{
		Task: r.Task, Namespace: m.graphs[t.graph].ns.name, Worker: w.name, Attempt: r.Attempt,
		Succeeded: r.Outcome == OutcomeSucceeded, OutputBytes: r.OutputBytes, End: m.now, RunTime: r.RunTime,
	}, b.keyOf(t))
}

// Runs returns finished attempts with numbers above `after`, at most `limit` of them, and the
// number up to which it has looked; 0: there are no others.
//
// Only attempts in the namespace count (empty: in all) that ended at `begin` or later.
func (m *Machine) Runs(namespace string, begin time.Time, after uint64, limit int) (found []Run, next uint64) {
	s := &m.runs
	oldest := s.last - uint64(len(s.ring))
	for n := max(after, oldest); n < s.last; n++ {
		kept := &s.ring[n%runsLength]
		if kept.End.Before(begin) || namespace != "" && kept.Namespace != namespace {
			continue
		}
		if len(found) == limit {
			return found, n
		}
		run := kept.Run
		run.Key = string(kept.key)
		found = append(found, run)
	}
	return found, 0
}
