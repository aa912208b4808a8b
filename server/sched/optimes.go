package sched

import "time"

const (
	// namedOps bounds the ops that have counts of their own. The ops whose attempts end first get
	// them, and keep them: a count that moved to another name would look like a restart. All
	// further ops are counted together, as OtherOps.
	namedOps = 48
	// opNameBytes bounds the name of an op in its counts. Longer names are cut.
	opNameBytes = 80
)

// OtherOps is the name of the counts of all ops that have none of their own.
const OtherOps = "other"

// timeBuckets is the number of buckets of a Histogram.
const timeBuckets = 15

// TimeBounds are the upper bounds of the buckets of a Histogram, but the last bucket's, which has
// none. Tasks take from fractions of a millisecond to hours.
func TimeBounds() [timeBuckets - 1]time.Duration {
	return [...]time.Duration{
		100 * time.Microsecond, time.Millisecond, 5 * time.Millisecond, 10 * time.Millisecond, 50 * time.Millisecond, 100 * time.Millisecond,
		500 * time.Millisecond, time.Second, 5 * time.Second, 10 * time.Second, time.Minute, 5 * time.Minute, 30 * time.Minute, 3 * time.Hour,
	}
}

// Histogram counts durations by size.
type Histogram struct {
	// Buckets count the durations up to each bound, without those of the buckets before.
	Buckets [timeBuckets]uint64
	Sum     time.Duration
}

// Observe counts a duration.
func (h *Histogram) Observe(d time.Duration) {
	d = max(d, 0)
	h.Sum += d
	bounds := TimeBounds()
	at := 0
	for at < len(bounds) && d > bounds[at] {
		at++
	}
	h.Buckets[at]++
}

// Count returns the number of durations.
func (h *Histogram) Count() (n uint64) {
	for _, b := range h.Buckets {
		n += b
	}
	return n
}

// OpTimes counts the ended attempts of the ops that have a name.
type OpTimes struct {
	// Op is the name that summaries of graphs show as well, or OtherOps.
	Op string
	// Succeeded and Failed count the attempts by their ends. An attempt that is retried has failed.
	Succeeded, Failed uint64
	// Run is the time in the function. Queue is the time from the moment at which all inputs
	// existed until the function began; it contains the transfer of the inputs, and has a
	// resolution of 1 ms. Transfer is the time in which inputs came from other workers, of the
	// attempts that had any to wait for.
	Run, Queue, Transfer Histogram
	// LastFailure is the message of the last failure, with the key of its task.
	LastFailure string
}

// opTimes has the counts by op. The last one that is made is that of the other ops.
type opTimes struct {
	all    []*OpTimes
	byName map[string]*OpTimes
	others *OpTimes
}

// of returns the counts of an op. They are the same for all ops with one name.
func (s *opTimes) of(name string) *OpTimes {
	if len(name) > opNameBytes {
		name = name[:opNameBytes]
	}
	if o := s.byName[name]; o != nil {
		return o
	}
	if len(s.all) == namedOps || name == OtherOps {
		if s.others == nil {
			s.others = &OpTimes{Op: OtherOps}
		}
		return s.others
	}
	if s.byName == nil {
		s.byName = make(map[string]*OpTimes, namedOps)
	}
	o := &OpTimes{Op: name}
	s.all = append(s.all, o)
	s.byName[name] = o
	return o
}

// countRun counts an attempt that has ended with this report.
func (m *Machine) countRun(r *Report, b *block, t *task, queued time.Duration) {
	o := &m.ops[t.op]
	if o.times == nil {
		o.times = m.opTimes.of(o.spec.Name)
	}
	c := o.times
	if r.Outcome == OutcomeSucceeded {
		c.Succeeded++
	} else {
		c.Failed++
		c.LastFailure = failureOf(r, string(b.keyOf(t)))
	}
	run := max(r.RunTime, 0)
	c.Run.Observe(run)
	c.Queue.Observe(queued)
	if r.Phases.Fetch > 0 && r.Phases.FetchedBytes > 0 { // otherwise they came from lower tiers
		c.Transfer.Observe(r.Phases.Fetch)
	}
}

// queued returns the time that an attempt waited until its function began, see OpTimes.Queue.
func (m *Machine) queued(r *Report, t *task) time.Duration {
	ready := time.Duration(int32(m.millis-t.readied)) * time.Millisecond
	return max(ready-max(r.RunTime, 0), 0)
}

func failureOf(r *Report, key string) string {
	message := "no reason was reported"
	if r.Err != nil && r.Err.Message != "" {
		message = r.Err.Message
	}
	const shown = 300
	return "task " + key + ": " + message[:min(len(message), shown)]
}

// OpTimes returns the counts of ended attempts by op, in the order of the first ends.
func (m *Machine) OpTimes() []OpTimes {
	list := make([]OpTimes, 0, len(m.opTimes.all)+1)
	for _, o := range m.opTimes.all {
		list = append(list, *o)
	}
	if m.opTimes.others != nil {
		list = append(list, *m.opTimes.others)
	}
	return list
}
