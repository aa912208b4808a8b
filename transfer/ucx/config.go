package ucx

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/cuda"
	"github.com/millrace/millrace/transfer"
)

// The kinds of errors, besides those of transfer.
var (
	// ErrUnavailable: this process has no UCX.
	ErrUnavailable = errors.New("ucx is not available")
	// ErrNoLane: this path does not lead to that peer, as both are now; others may.
	// It is a transfer.ErrNoWay.
	ErrNoLane = fmt.Errorf("%w: no ucx lane", transfer.ErrNoWay)
	// ErrVersion: the peer has another version of UCX. It is an ErrNoLane.
	ErrVersion = fmt.Errorf("%w: versions differ", ErrNoLane)
	// ErrProof: what was read through the lane is not the peer's memory. It is an
	// ErrNoLane.
	ErrProof = fmt.Errorf("%w: not the memory that the peer described", ErrNoLane)
)

// Config is fixed for the life of a Context.
type Config struct {
	// Library is the path of libucp.so.0. Empty: Find is asked.
	Library string
	// TLS and NetDevices choose transports and network devices, as UCX_TLS and
	// UCX_NET_DEVICES do; empty leaves it to those.
	TLS        string
	NetDevices string
	// NoTCP takes TCP out of the transports that UCX chooses from if neither TLS nor UCX_TLS is set: then it listens on no port.
	NoTCP bool
	// LogFile is where UCX writes warnings; empty: stderr.
	LogFile string
	// Keepalive is how often UCX looks whether idle peers live. 0: 1 s.
	Keepalive time.Duration
	// Spin is how long the thread looks for more before it sleeps. 0: 50 µs.
	Spin time.Duration
	// Space is the slab: what peers read, and where fetches must place. It must
	// stay mapped until Close has returned.
	Space memory.Space
	// Source is what peers read from; nil: Accept refuses.
	Source transfer.Source
	// SourceIsQuick: Lease and Release of the source wait for nothing but short
	// locks, so they may be called on the thread that moves bytes. That saves two
	// switches of threads per object.
	SourceIsQuick bool
	// InlineBytes is the size up to which an object travels inside the answer to
	// the lease request. 0: 64 KiB; negative: none does.
	InlineBytes int
	// Log, if set, is told of lanes that open, fail and close.
	Log *slog.Logger
}

func (c Config) withDefaults() Config {
	if c.Spin == 0 {
		c.Spin = 50 * time.Microsecond
	}
	switch {
	case c.InlineBytes == 0:
		c.InlineBytes = 64 << 10
	case c.InlineBytes < 0:
		c.InlineBytes = -1
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if _, device := c.Space.(*cuda.Slab); !device && c.TLS == "" && os.Getenv("UCX_TLS") == "" && c.NoTCP {
		c.TLS = "^tcp"
	}
	return c
}

// environment is UCX's, for those variables that it reads as it is loaded or
// that belong to single transports. What the user has set wins.
func (c Config) environment() [][2]string {
	log := c.LogFile
	if log == "" {
		log = "stderr"
	}
	return [][2]string{
		// Signals stay with Go: a nil dereference must remain a panic, and SIGHUP
		// must arrive.
		{"UCX_HANDLE_ERRORS", "none"},
		{"UCX_ERROR_SIGNALS", ""},
		{"UCX_DEBUG_SIGNO", "0"},
		// One slab, registered once: nothing has to watch allocations.
		{"UCX_MEM_EVENTS", "n"},
		{"UCX_MEMTYPE_CACHE", "n"},
		{"UCX_VFS_ENABLE", "n"},
		// Without these, endpoints that notice a dead peer get no shared memory.
		{"UCX_MM_ERROR_HANDLING", "y"},
		{"UCX_CMA_MEMORY_INVALIDATE", "y"},
		{"UCX_KEEPALIVE_INTERVAL", "1s"},
		{"UCX_CUDA_IPC_ENABLE_GET_ZCOPY", "on"},
		{"UCX_LOG_FILE", log},
		{"UCX_LOG_LEVEL", "warn"},
		{"UCX_WARN_UNUSED_ENV_VARS", "n"},
	}
}

// settings are those of one context.
func (c Config) settings() (s [][2]string) {
	if c.TLS != "" {
		s = append(s, [2]string{"TLS", c.TLS})
	}
	if c.NetDevices != "" {
		s = append(s, [2]string{"NET_DEVICES", c.NetDevices})
	}
	if c.Keepalive > 0 {
		s = append(s, [2]string{"KEEPALIVE_INTERVAL", fmt.Sprintf("%dus", c.Keepalive.Microseconds())})
	}
	return s
}

// DefaultStallTimeout is how long a fetch waits for the next sign of life if nothing else is said.
const DefaultStallTimeout = 5 * time.Second

// PathConfig is fixed for the life of a Path.
type PathConfig struct {
	// Connect carries the wire-up to a peer: DataService.ConnectLane, with errors
	// that are gRPC statuses.
	Connect func(context.Context, transfer.Peer, *millracev1.ConnectLaneRequest) (*millracev1.ConnectLaneResponse, error)
	// Worker is the number that we read as; a function because a worker gets a new
	// one when it registers anew. Nil: 0.
	Worker func() ids.WorkerID
	// StallTimeout is how long a fetch waits for the next sign of life, and how
	// long each step of making a connection may take, but for the first, the peer's
	// answer, which may take four times as long. 0: DefaultStallTimeout.
	StallTimeout time.Duration
	// LeaseTTL is how long the source holds an object for a reader that went away
	// without a trace. 0: 30 s.
	LeaseTTL time.Duration
	// Received, if set, is told of the bytes that arrived.
	Received func(bytes int)
}

func (c PathConfig) withDefaults() PathConfig {
	if c.StallTimeout <= 0 {
		c.StallTimeout = DefaultStallTimeout
	}
	if c.LeaseTTL <= 0 {
		c.LeaseTTL = 30 * time.Second
	}
	if c.Worker == nil {
		c.Worker = func() ids.WorkerID { return 0 }
	}
	if c.Received == nil {
		c.Received = func(int) {}
	}
	return c
}

// Lane is a connection to a peer, as proved.
type Lane struct {
	// Transport is what carries the reads: "cma", "tcp".
	Transport string
	// Transports are all that the connection uses, with their devices.
	Transports []string
	// BytesPerSecond is the rate of a read of 4 MiB.
	BytesPerSecond float64
	// Latency is that of a read of a few bytes.
	Latency time.Duration
	// Emulated: no transport of the pair reads remote memory by itself, so the peer
	// is asked to send the bytes in messages.
	Emulated bool
	// Why says why the lane is not a better one; empty if it is the best for
	// host memory.
	Why string
}

// String is one line for people.
func (l Lane) String() string {
	s := fmt.Sprintf("%s, %.2f GB/s, %v", l.Transport, l.BytesPerSecond/1e9, l.Latency)
	if l.Emulated {
		s += ", emulated"
	}
	if l.Why != "" {
		s += ": " + l.Why
	}
	return s
}
