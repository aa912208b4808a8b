package schedapi

import (
	"time"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/copies"
	"github.com/millrace/millrace/server/members"
	"github.com/millrace/millrace/server/sched"
)

// GraphState summarizes the states of a graph's tasks.
type GraphState uint8

// States of graphs; the values equal those of the API.
const (
	GraphRunning   GraphState = 1
	GraphSucceeded GraphState = 2
	GraphFailed    GraphState = 3
	GraphCancelled GraphState = 4
)

// WorkerState is the state of a worker incarnation.
type WorkerState uint8

// States of workers; the values equal those of the API.
const (
	WorkerActive       WorkerState = 1
	WorkerDisconnected WorkerState = 2
	WorkerDraining     WorkerState = 3
	WorkerDrained      WorkerState = 4
	WorkerLost         WorkerState = 5
)

// Graph is the row of one graph. Zero times mean "not yet" (EndedAt) or "never" (ExpiresAt).
type Graph struct {
	ID         ids.GraphID
	Name       string
	Namespace  string
	Client     ids.ClientID
	State      GraphState
	Counts     sched.Counts
	Ops        []sched.OpSummary
	CreatedAt  time.Time
	EndedAt    time.Time
	ExpiresAt  time.Time
	FirstError string
	// Revision is set by the commit that stored the row, like that of every other row.
	Revision uint64
}

// Worker is the row of one worker incarnation.
type Worker struct {
	ID                ids.WorkerID
	Name              string
	Incarnation       string
	State             WorkerState
	Host              string
	PID               int64
	DataAddress       string
	Device            uint8 // value of the API's DeviceKind
	GPU               GPU
	GPUHealth         *GPUHealth // nil if unknown
	Slots             uint32
	Resources         map[string]float64
	MemoryLimitBytes  uint64
	MemoryUsedBytes   uint64
	RSSBytes          uint64
	AssignedTasks     uint32
	Objects           uint64
	FinishedTasks     uint64
	RegisteredAt      time.Time
	LastSeenAt        time.Time
	Deaths            []members.Death // newest first, of all incarnations of the name
	Version           string
	Executors         []string
	ExecutorDeaths    uint64
	LastExecutorDeath string
	ReceivedBytes     uint64
	SentBytes         uint64
	Routes            []Route
	// The Spilled bytes are on disk now. SpillFailure is the reason why the worker cannot write
	// there.
	SpilledBytes, SpillWrittenBytes, SpillReadBytes uint64
	SpillFailure                                    string
	// MemoryEvictableBytes are those of the used bytes that can leave the slab to make room. Tiers
	// are nil until the worker has reported.
	MemoryEvictableBytes uint64
	Tiers                []Tier
	Network              []NetworkDevice
	// Drain is nil if the worker is not drained.
	Drain      *copies.DrainInfo
	Supervised bool
	Linalg     sched.Linalg
	Revision   uint64
}

// Client is the row of one client lease.
type Client struct {
	ID         ids.ClientID
	Name       string
	Namespace  string
	Origin     string
	TTL        time.Duration
	OpenedAt   time.Time
	LastSeenAt time.Time
	HeldTasks  uint64
	Revision   uint64
}

// Dataset is the row of one published dataset. Number identifies its hold in the machine.
type Dataset struct {
	Number    uint64
	Name      string
	Namespace string
	Keys      []string
	// Value is the published value, a serialised pb.Value whose inputs are indices into Keys.
	Value     []byte
	CreatedAt time.Time
	Revision  uint64
}
