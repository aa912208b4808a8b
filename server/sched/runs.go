package sched

import (
	"time"

	"github.com/millrace/millrace/internal/ids"
)

const (
	// runsLength and runsKeyBytes bound the finished attempts that are kept, over all tasks: their
	// number, and the bytes of their keys.
	runsLength   = 1 << 17
	runsKeyBytes = 32 << 20
	// runsChunk is the number of attempts whose memory is allocated at once.
	runsChunk = 1 << 12
	// runsVisited bounds the attempts that one call reads.
	runsVisited = 1 << 14
)

// Phases are the times that a worker spent on an attempt beside running it; 0: unknown.
type Phases struct {
	// Fetch is the time in which inputs came from other workers, Load that in which they came only
	// from lower tiers, Wait that for memory, Deserialize that for the function and the inputs, and
	// Publish that for the result.
	Fetch, Load, Wait, Deserialize, Publish time.Duration
	// FetchedBytes came from other workers.
	FetchedBytes uint64
	// Slot is the number of the worker's slot, counted from 1.
	Slot uint32
}

// Run is a finished attempt of a task. It outlives the task.
type Run struct {
	// Number of the attempt in the order of the ends, counted from 1.
	Number    uint64
	Task      ids.TaskID
	Graph     ids.GraphID
	Key       string
	Namespace string
	// Op is the name of its op, as in OpSummary.
	Op string
	// Worker is the name of the worker that ran it, WorkerID its number.
	Worker      string
	WorkerID    ids.WorkerID
	Attempt     ids.Attempt
	Succeeded   bool
	OutputBytes uint64
	// End is the time of the report; the function ran for RunTime.
	End     time.Time
	RunTime time.Duration
	// Queue is the time from the moment at which all inputs existed until the function began, as in
	// OpTimes.
	Queue  time.Duration
	Phases Phases
}

// runs is a ring buffer of the latest finished attempts: those with the numbers from first to last.
// The attempt with the number n is at (n-1) % runsLength.
type runs struct {
	chunks      [][]keptRun
	first, last uint64
	keyBytes    int
}

// keptRun is a Run whose key has memory of its own, which the next attempt at the same place uses
// again.
type keptRun struct {
	Run
	key []byte
}

func (s *runs) at(number uint64) *keptRun {
	i := int((number - 1) % runsLength)
	return &s.chunks[i/runsChunk][i%runsChunk]
}

func (s *runs) add(r Run, key []byte) {
	s.last++
	if s.first == 0 || s.last-s.first >= runsLength {
		s.first++
	}
	if i := int((s.last - 1) % runsLength); i/runsChunk == len(s.chunks) {
		s.chunks = append(s.chunks, make([]keptRun, runsChunk))
	}
	kept := s.at(s.last)
	before := cap(kept.key)
	r.Number = s.last
	kept.Run, kept.key = r, append(kept.key[:0], key...)
	s.keyBytes += cap(kept.key) - before
	for ; s.keyBytes > runsKeyBytes && s.first < s.last; s.first++ {
		old := s.at(s.first)
		s.keyBytes -= cap(old.key)
		old.key = nil
	}
}

// copied returns an attempt with memory of its own.
func (k *keptRun) copied() Run {
	run := k.Run
	run.Key = string(k.key)
	return run
}

// noteRun keeps an attempt that a worker has reported as finished.
func (m *Machine) noteRun(r *Report, b *block, t *task, w *worker) {
	g := m.graphs[t.graph]
	m.runs.add(Run{
		Task: r.Task, Graph: g.id, Namespace: g.ns.name, Op: m.ops[t.op].spec.Name, Worker: w.name, WorkerID: w.id,
		Attempt: r.Attempt, Succeeded: r.Outcome == OutcomeSucceeded, OutputBytes: r.OutputBytes, End: m.now, RunTime: r.RunTime,
		Queue: m.queued(r, t), Phases: r.Phases,
	}, b.keyOf(t))
	m.countRun(r, b, t)
}

// Runs returns finished attempts with numbers above `after`, at most `limit` of them, and the
// number up to which it has looked; 0: there are no others.
//
// Only attempts count that are in the namespace (empty: in all), of the graph (0: of all), and that
// ended at `begin` or later.
func (m *Machine) Runs(namespace string, graph ids.GraphID, begin time.Time, after uint64, limit int) (found []Run, next uint64) {
	s := &m.runs
	for n := max(after+1, s.first, 1); n <= s.last; n++ {
		kept := s.at(n)
		if kept.End.Before(begin) || namespace != "" && kept.Namespace != namespace || graph != 0 && kept.Graph != graph {
			continue
		}
		if len(found) == limit {
			return found, n - 1
		}
		found = append(found, kept.copied())
	}
	return found, 0
}

// LatestRuns returns finished attempts with numbers above `after`, oldest first, and the number of
// the last one. If there are more than `limit`, it returns that many: the first, the last, and
// others between them, spread evenly. limit is at least 2.
func (m *Machine) LatestRuns(after uint64, limit int) (found []Run, last uint64) {
	s := &m.runs
	if after >= s.last {
		return nil, s.last
	}
	first := max(after+1, s.first)
	after = s.last - first // what follows the first one
	count := min(uint64(limit), after+1)
	for i := range count {
		found = append(found, s.at(first+i*after/max(count-1, 1)).copied())
	}
	return found, s.last
}

// RunsIf returns the wanted ones of the finished attempts with the numbers from after+1 to upTo,
// oldest first, and the number of the last one that it has looked at. It looks at runsVisited
// attempts at most, and ends after `limit` wanted ones. It passes over attempts that are not kept
// any more. wanted gets each attempt once, without its key, and must not keep it.
func (m *Machine) RunsIf(wanted func(*Run) bool, after, upTo uint64, limit int) (found []Run, last uint64) {
	s := &m.runs
	upTo = min(upTo, s.last)
	last = min(max(after, s.first-min(s.first, 1)), max(after, upTo))
	for end := last + runsVisited; last < min(upTo, end) && len(found) < limit; {
		last++
		if kept := s.at(last); wanted(&kept.Run) {
			found = append(found, kept.copied())
		}
	}
	return found, last
}

// LastRun returns the number of the latest finished attempt; 0: there was none.
func (m *Machine) LastRun() uint64 { return m.runs.last }

// RunFilter selects finished attempts; zero fields select all.
type RunFilter struct {
	Op, Worker string
	Task       ids.TaskID
}

func (f *RunFilter) selects(r *Run) bool {
	return (f.Op == "" || r.Op == f.Op) && (f.Worker == "" || r.Worker == f.Worker) && (f.Task == 0 || r.Task == f.Task)
}

// RunsBefore returns selected finished attempts with numbers below `before` (0: all), newest first,
// at most `limit`. next is the number before which to continue; 0: there are no others.
func (m *Machine) RunsBefore(before uint64, limit int, filter RunFilter) (found []Run, next uint64) {
	s := &m.runs
	if before == 0 || before > s.last {
		before = s.last + 1
	}
	for n, visited := before, 0; n > max(s.first, 1); visited++ {
		if len(found) == limit || visited == runsVisited {
			return found, n
		}
		n--
		kept := s.at(n)
		if filter.selects(&kept.Run) {
			found = append(found, kept.copied())
		}
	}
	return found, 0
}
