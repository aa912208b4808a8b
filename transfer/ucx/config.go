package ucx

import (
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"time"

	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/cuda"
	"github.com/millrace/millrace/transfer"
)

// Config does not change during the life of a Context.
type Config struct {
	// Library is the path of libucp.so.0. Empty: it is searched for beside the program and in the
	// system.
	Library string
	// TLS and NetDevices choose the transports and network devices, as UCX_TLS and UCX_NET_DEVICES
	// do. Empty: these variables apply.
	TLS        string
	NetDevices string
	// NoTCP removes TCP from the transports that UCX may choose, if neither TLS nor UCX_TLS is set.
	// UCX then listens on no port.
	NoTCP bool
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
	// RCTimeout is how long a reliable RDMA connection waits for the acknowledgement of a packet
	// before it sends the packet again, and RCRetries how often it does so before it fails. 0:
	// UCX_RC_TIMEOUT and UCX_RC_RETRY_COUNT apply, else UCX's defaults, 1 s and 7 times.
	RCTimeout time.Duration
	RCRetries int
	// Rails is how many network devices share the reads of a connection. 0: UCX's default, 1.
	// UCX_MAX_RMA_RAILS comes first.
	Rails int
	// keepalive is the interval at which UCX checks that idle peers are alive. 0: 1 s.
	keepalive time.Duration
	// slotTime is how long a reader may keep a slot of the ring. 0: transfer.DefaultStallTimeout.
	slotTime time.Duration
	// asHost registers a slab on a GPU as host memory, for tests with a driver whose memory is host
	// memory: any network device can read it then. Reads that can be direct are never staged.
	asHost bool
	// Log, if set, receives records about connections that open, fail and close.
	Log *slog.Logger
}

// defaultInline is the default of Config.InlineBytes. It must stay far below inlineRoom, so that
// one answer takes many objects.
const defaultInline = 64 << 10

func (c Config) withDefaults() Config {
	switch {
	case c.InlineBytes == 0:
		c.InlineBytes = defaultInline
	case c.InlineBytes < 0:
		c.InlineBytes = -1
	}
	if c.slotTime == 0 {
		c.slotTime = transfer.DefaultStallTimeout
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
	s := [][2]string{
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
		// UCX's default is segments of 8 KiB, which halves the rate over TCP.
		{"UCX_TCP_TX_SEG_SIZE", "64k"},
		{"UCX_TCP_RX_SEG_SIZE", "64k"},
		{"UCX_CUDA_IPC_ENABLE_GET_ZCOPY", "on"},
		{"UCX_LOG_FILE", "stderr"},
		{"UCX_LOG_LEVEL", "warn"},
		{"UCX_WARN_UNUSED_ENV_VARS", "n"},
	}
	if c.Rails > 0 {
		s = append(s, [2]string{"UCX_MAX_RMA_RAILS", strconv.Itoa(c.Rails)})
	}
	return s
}

// chosen returns further such variables, which replace those that the user has set.
func (c Config) chosen() (s [][2]string) {
	if c.RCTimeout > 0 {
		s = append(s, [2]string{"UCX_RC_TIMEOUT", fmt.Sprintf("%dus", c.RCTimeout.Microseconds())})
	}
	if c.RCRetries > 0 {
		s = append(s, [2]string{"UCX_RC_RETRY_COUNT", strconv.Itoa(c.RCRetries)})
	}
	return s
}

// settings returns the settings of one context.
func (c Config) settings() (s [][2]string) {
	if c.TLS != "" {
		s = append(s, [2]string{"TLS", c.TLS})
	}
	if c.NetDevices != "" {
		s = append(s, [2]string{"NET_DEVICES", c.NetDevices})
	}
	if c.keepalive > 0 {
		s = append(s, [2]string{"KEEPALIVE_INTERVAL", fmt.Sprintf("%dus", c.keepalive.Microseconds())})
	}
	return s
}
