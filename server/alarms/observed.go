package alarms

import "time"

// Observed is the state of the cluster at one time.
type Observed struct {
	Workers []Worker
	// Routes are those that Policy.Compare has found not to be good.
	Routes []Standing
	// Readers are those that it has found not to be good beside other readers.
	Readers  []Reading
	Ops      []Op
	Unserved []Unserved
	// Journal is nil if there is none.
	Journal   *Journal
	Scheduler Scheduler
	// Peers are all schedulers with one journal, this one among them. Empty: it is alone.
	Peers []Peer
}

// Peer is one of several schedulers with one journal.
type Peer struct {
	Address string
	// Votes: it counts for a majority. Away: it does not answer, and Trouble says why. Behind is
	// the number of entries of the log that it lacks.
	Votes, Away bool
	Trouble     string
	Behind      uint64
}

// Worker is the newest incarnation of a name, which may be dead. Counters grow from 0 with each
// incarnation.
type Worker struct {
	Name string
	// Lost says that it is dead: only its deaths count.
	Lost                     bool
	MemoryBytes              uint64 // limit
	MemoryUsedBytes          uint64
	MemoryEvictableBytes     uint64
	SpillWrittenBytes        uint64
	DiskBytes, DiskUsedBytes uint64 // 0: it has none
	DiskFailure              string // empty: none
	GPU                      string // UUID; empty: none
	Throttled                []string
	Celsius                  uint32
	XIDs, UncorrectedECC     uint64
	LastGPUEvent             string
	Deaths                   []Death // newest first
}

// Death is the end of an incarnation.
type Death struct {
	At    time.Time
	Cause string
}

// Route is the best open path by which one worker reads from another.
type Route struct {
	Reader, Source string
	// Relation tells which routes are comparable: on one host or between two, and of which kinds
	// of memory.
	Relation string
	// Path is its name, and Order its place among all paths, best first.
	Path  string
	Order int
	// Why is the reason why no better path is taken; may be empty.
	Why            string
	BytesPerSecond float64
	Bytes, Fetches uint64
}

// Op has the counts of ended attempts of a group of tasks.
type Op struct {
	Name              string
	Succeeded, Failed uint64
	LastFailure       string
}

// Unserved is a set of ready tasks that no worker can run.
type Unserved struct {
	Op, Key, Why string
	Tasks        int
}

// Journal is the state of the journal. Trouble is the error of the disk; Lost says that nothing is
// recorded any more.
type Journal struct {
	Lag     time.Duration
	Trouble string
	Lost    bool
}

// Scheduler is the state of the scheduler's process.
type Scheduler struct {
	// Delay is the time for which a call waited for its turn.
	Delay                 time.Duration
	HeldBytes, LimitBytes uint64 // of descriptions of tasks; limit 0: none
}
