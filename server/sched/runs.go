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
	// runsChunk is the number of attempts that have their memory together.
	runsChunk = 1 << 12
	// runsVisited bounds the attempts that one call reads.
	runsVisited = 1 << 14
)

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

// runs is a ring buffer of the latest finished attempts, with the numbers from first to last. It
// has one chunk more than runsLength attempts need, so a chunk is emptied, with all its names and
// keys, when none of its attempts is kept any more.
type runs struct {
	chunks      [runsLength/runsChunk + 1]*runChunk
	first, last uint64
	// keyBytes is the memory of the keys of all chunks.
	keyBytes int
	// base is the time of the first attempt.
	base time.Time
}

// runChunk has the attempts of runsChunk numbers.
type runChunk struct {
	runs []keptRun
	// keys has the keys of the attempts, one after the other, and phases those that are known.
	keys   []byte
	phases []Phases
	// names are those of ops, namespaces and workers. numbers has their places, and workers the
	// place + 1 of the name of a worker whose number ends with that byte.
	names   []string
	numbers map[string]uint16
	workers [256]uint16
}

// keptRun is a Run in its chunk. It has no pointers, so the garbage collector does not look at it.
type keptRun struct {
	task        ids.TaskID
	graph       ids.GraphID
	outputBytes uint64
	end         time.Duration // since runs.base
	runTime     time.Duration
	queue       time.Duration
	worker      ids.WorkerID
	attempt     ids.Attempt
	// key is the offset of the key in the keys, phases the place + 1 in the phases; 0: unknown.
	key    uint32
	phases uint16
	keyLen uint16
	// The numbers of names.
	op, namespace, workerName uint16
	succeeded                 bool
}

func (s *runs) at(number uint64) (*runChunk, *keptRun) {
	i := (number - 1) % uint64(len(s.chunks)*runsChunk)
	c := s.chunks[i/runsChunk]
	return c, &c.runs[i%runsChunk]
}

// add keeps an attempt. It is on the path of each task, so it copies nothing twice.
func (s *runs) add(r *Run, key []byte) {
	if s.last == 0 {
		s.base = r.End
	}
	i := s.last % uint64(len(s.chunks)*runsChunk)
	s.last++
	if s.first == 0 || s.last-s.first >= runsLength {
		s.first++
	}
	c := s.chunks[i/runsChunk]
	switch {
	case c == nil:
		c = &runChunk{runs: make([]keptRun, 0, runsChunk), numbers: map[string]uint16{}}
		s.chunks[i/runsChunk] = c
	case i%runsChunk == 0:
		c.empty()
	}
	var op, namespace uint16 // most attempts have the same names as those before them
	if n := len(c.runs); n > 0 {
		op, namespace = c.runs[n-1].op, c.runs[n-1].namespace
	}
	c.runs = append(c.runs, keptRun{
		task: r.Task, graph: r.Graph, outputBytes: r.OutputBytes, end: r.End.Sub(s.base), runTime: r.RunTime, queue: r.Queue,
		worker: r.WorkerID, attempt: r.Attempt, key: uint32(len(c.keys)), keyLen: uint16(len(key)),
		op: c.number(r.Op, op), namespace: c.number(r.Namespace, namespace), workerName: c.numberOfWorker(r),
		succeeded: r.Succeeded,
	})
	if r.Phases.known() {
		c.phases = append(c.phases, r.Phases)
		c.runs[len(c.runs)-1].phases = uint16(len(c.phases))
	}
	before := cap(c.keys)
	c.keys = append(c.keys, key...)
	s.keyBytes += cap(c.keys) - before
	if s.keyBytes > runsKeyBytes {
		s.dropKeys()
	}
}

// dropKeys forgets the oldest attempts until the keys take no more memory than they may.
func (s *runs) dropKeys() {
	current, _ := s.at(s.last)
	for s.keyBytes > runsKeyBytes {
		oldest, _ := s.at(s.first)
		s.keyBytes -= cap(oldest.keys)
		if oldest != current {
			oldest.keys = nil
			s.first += runsChunk - (s.first-1)%runsChunk
			continue
		}
		// The latest ones stay, with half of the memory.
		from := oldest.runs[(s.first-1)%runsChunk].key
		for ; s.first < s.last && len(oldest.keys)-int(from) > runsKeyBytes/2; s.first++ {
			from = oldest.runs[s.first%runsChunk].key
		}
		oldest.keys = append([]byte(nil), oldest.keys[from:]...)
		for i := int((s.first - 1) % runsChunk); i < len(oldest.runs); i++ {
			oldest.runs[i].key -= from
		}
		s.keyBytes += cap(oldest.keys)
	}
}

// empty forgets all attempts, and keeps most of the memory for others.
func (c *runChunk) empty() {
	c.runs, c.keys, c.phases, c.workers = c.runs[:0], c.keys[:0], c.phases[:0], [256]uint16{}
	clear(c.names)
	c.names = c.names[:0]
	clear(c.numbers)
}

// number returns the number of a name. It looks at the guess first.
func (c *runChunk) number(name string, guess uint16) uint16 {
	if int(guess) < len(c.names) && c.names[guess] == name {
		return guess
	}
	n, ok := c.numbers[name]
	if !ok {
		n = uint16(len(c.names)) // three names an attempt at most
		c.names = append(c.names, name)
		c.numbers[name] = n
	}
	return n
}

func (c *runChunk) numberOfWorker(r *Run) uint16 {
	guess := &c.workers[r.WorkerID%256]
	n := c.number(r.Worker, *guess-1)
	*guess = n + 1
	return n
}

// run returns an attempt without its key.
func (s *runs) run(number uint64) Run {
	c, k := s.at(number)
	r := Run{
		Number: number, Task: k.task, Graph: k.graph, Namespace: c.names[k.namespace], Op: c.names[k.op], Worker: c.names[k.workerName],
		WorkerID: k.worker, Attempt: k.attempt, Succeeded: k.succeeded, OutputBytes: k.outputBytes, End: s.base.Add(k.end),
		RunTime: k.runTime, Queue: k.queue,
	}
	if k.phases != 0 {
		r.Phases = c.phases[k.phases-1]
	}
	return r
}

// copied returns an attempt with memory of its own.
func (s *runs) copied(number uint64) Run {
	c, k := s.at(number)
	r := s.run(number)
	r.Key = string(c.keys[k.key:][:k.keyLen])
	return r
}

// noteRun keeps an attempt that a worker has reported as finished.
func (m *Machine) noteRun(r *Report, b *block, t *task, w *worker) {
	g, queued := m.graphs[t.graph], m.queued(r, t)
	m.runs.add(&Run{
		Task: r.Task, Graph: g.id, Namespace: g.ns.name, Op: m.ops[t.op].spec.Name, Worker: w.name, WorkerID: w.id,
		Attempt: r.Attempt, Succeeded: r.Outcome == OutcomeSucceeded, OutputBytes: r.OutputBytes, End: m.now, RunTime: r.RunTime,
		Queue: queued, Phases: r.Phases,
	}, b.keyOf(t))
	m.countRun(r, b, t, queued)
}

// Runs returns finished attempts with numbers above `after`, at most `limit` of them, and the
// number up to which it has looked; 0: there are no others.
//
// Only attempts count that are in the namespace (empty: in all), of the graph (0: of all), and that
// ended at `begin` or later.
func (m *Machine) Runs(namespace string, graph ids.GraphID, begin time.Time, after uint64, limit int) (found []Run, next uint64) {
	s := &m.runs
	for n := max(after+1, s.first, 1); n <= s.last; n++ {
		c, kept := s.at(n)
		if s.base.Add(kept.end).Before(begin) || namespace != "" && c.names[kept.namespace] != namespace || graph != 0 && kept.graph != graph {
			continue
		}
		if len(found) == limit {
			return found, n - 1
		}
		found = append(found, s.copied(n))
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
		found = append(found, s.copied(first+i*after/max(count-1, 1)))
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
	var run Run
	for end := last + runsVisited; last < min(upTo, end) && len(found) < limit; {
		last++
		if run = s.run(last); wanted(&run) {
			found = append(found, s.copied(last))
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
		if run := s.run(n); filter.selects(&run) {
			found = append(found, s.copied(n))
		}
	}
	return found, 0
}
