package ucx

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/cuda"
	"github.com/millrace/millrace/transfer"
)

// The kinds of errors of this package, in addition to those of package transfer.
var (
	// ErrUnavailable: UCX cannot be used in this process.
	ErrUnavailable = errors.New("ucx is not available")
	// ErrNoConnection: this path cannot reach that peer as both are now; other paths may. It is a
	// transfer.ErrUnreachable.
	ErrNoConnection = fmt.Errorf("%w: no ucx connection", transfer.ErrUnreachable)
	// ErrVersion: the peer has an incompatible version of UCX. It is an ErrNoConnection.
	ErrVersion = fmt.Errorf("%w: versions differ", ErrNoConnection)
	// ErrProof: the bytes read through the connection are not from the memory that the peer
	// described. It is an ErrNoConnection.
	ErrProof = fmt.Errorf("%w: not the memory that the peer described", ErrNoConnection)
)

// Config does not change during the life of a Context.
type Config struct {
	// Library is the path of libucp.so.0. Empty: Find searches for it.
	Library string
	// TLS and NetDevices choose the transports and network devices, as UCX_TLS and UCX_NET_DEVICES
	// do. Empty: these variables apply.
	TLS        string
	NetDevices string
	// NoTCP removes TCP from the transports that UCX may choose, if neither TLS nor UCX_TLS is set.
	// UCX then listens on no port.
	NoTCP bool
	// LogFile is the file for UCX's warnings; empty: stderr.
	LogFile string
	// Keepalive is the interval at which UCX checks that idle peers are alive. 0: 1 s; 100 ms with
	// a slab on a GPU.
	Keepalive time.Duration
	// Spin is how long the progress thread polls for events before it blocks. 0: 50 µs.
	Spin time.Duration
	// Space is the slab that peers read from and that fetches must place objects in. It must stay
	// mapped until Close has returned.
	Space memory.Space
	// Source is the store that peers read from; nil: Accept refuses all connections.
	Source transfer.Source
	// SourceIsQuick says that Lease and Release of the source wait for nothing but short locks, so
	// they may be called on the progress thread. That saves two thread switches per object.
	SourceIsQuick bool
	// InlineBytes is the size up to which an object travels inside the answer to the lease request.
	// 0: 64 KiB; negative: no object does. It is always negative for a slab on a GPU.
	InlineBytes int
	// Log, if set, receives records about connections that open, fail and close.
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

// environment returns UCX's environment variables that it reads while it is loaded, or that belong
// to single transports. A variable that the user has set is not changed.
func (c Config) environment() [][2]string {
	log := c.LogFile
	if log == "" {
		log = "stderr"
	}
	return [][2]string{
		// Signals must stay with Go: a nil dereference must remain a panic, and SIGHUP must arrive.
		{"UCX_HANDLE_ERRORS", "none"},
		{"UCX_ERROR_SIGNALS", ""},
		{"UCX_DEBUG_SIGNO", "0"},
		// There is one slab, registered once, so UCX need not watch allocations.
		{"UCX_MEM_EVENTS", "n"},
		{"UCX_MEMTYPE_CACHE", "n"},
		{"UCX_VFS_ENABLE", "n"},
		// Without these two variables, endpoints that detect dead peers cannot use shared memory.
		{"UCX_MM_ERROR_HANDLING", "y"},
		{"UCX_CMA_MEMORY_INVALIDATE", "y"},
		{"UCX_KEEPALIVE_INTERVAL", "1s"},
		{"UCX_CUDA_IPC_ENABLE_GET_ZCOPY", "on"},
		{"UCX_LOG_FILE", log},
		{"UCX_LOG_LEVEL", "warn"},
		{"UCX_WARN_UNUSED_ENV_VARS", "n"},
	}
}

// settings returns the settings of one context.
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

// DefaultStallTimeout is the default of PathConfig.StallTimeout.
const DefaultStallTimeout = 5 * time.Second

// PathConfig does not change during the life of a Path.
type PathConfig struct {
	// Connect sends a request of the control connection to a peer: PeerService.Connect. Its
	// errors are gRPC statuses.
	Connect func(context.Context, transfer.Peer, *workerv1.ConnectRequest) (*workerv1.ConnectResponse, error)
	// Worker returns the worker ID to read as. It is a function because a worker gets a new ID when
	// it registers again. Nil: 0.
	Worker func() ids.WorkerID
	// StallTimeout is how long a fetch waits without any progress. It also limits each step of
	// opening a connection, except for the first: the peer's answer may take four times as long.
	// The default is DefaultStallTimeout.
	StallTimeout time.Duration
	// LeaseTTL is how long the source keeps an object for a reader that has disappeared without
	// notice. 0: 30 s.
	LeaseTTL time.Duration
	// Received, if set, is called with the number of bytes that arrived.
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

// Connection describes a connection to a peer that was proved.
type Connection struct {
	// Transport is the transport that reads, such as "cma" or "tcp".
	Transport string
	// Transports are all transports that the connection uses, with their devices.
	Transports []string
	// BytesPerSecond is the rate of a read of 4 MiB, as measured at connect.
	BytesPerSecond float64
	// Latency is the shortest time of a read of a few bytes.
	Latency time.Duration
	// Emulated says that no transport of the pair can read remote memory by itself, so the peer is
	// asked to send the bytes in messages.
	Emulated bool
	// Why is the reason why the connection is not a better one; empty if it is the best for host
	// memory.
	Why string
}

// String describes the connection in one line.
func (x Connection) String() string {
	s := fmt.Sprintf("%s, %.2f GB/s, %v", x.Transport, x.BytesPerSecond/1e9, x.Latency)
	if x.Emulated {
		s += ", emulated"
	}
	if x.Why != "" {
		s += ": " + x.Why
	}
	return s
}
