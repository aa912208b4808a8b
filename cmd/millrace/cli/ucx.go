package cli

import (
	"time"

	"github.com/spf13/pflag"

	"github.com/millrace/millrace/worker"
)

// ucxFlagNames are the flags of workers for UCX.
var ucxFlagNames = []string{"ucx-library", "ucx-tls", "ucx-net-devices", rcTimeout, rcRetries}

const (
	rcTimeout = "ucx-rc-timeout"
	rcRetries = "ucx-rc-retries"
)

func ucxFlags(f *pflag.FlagSet) {
	f.String("ucx-library", "", "libucp.so.0 to use; default: the one found beside this program, else the system's")
	f.String("ucx-tls", "", "UCX transports, as UCX_TLS")
	f.String("ucx-net-devices", "", "UCX network devices, as UCX_NET_DEVICES; default: on a GPU the RDMA cards near it, up to two that are alike, else those that UCX chooses")
	f.Duration(rcTimeout, time.Second, "how long an RDMA connection waits for an acknowledgement before it sends a packet again, as UCX_RC_TIMEOUT (1ms to 1m); a peer counts as dead after 1 + --ucx-rc-retries times this, so that must exceed the longest pause of the fabric")
	f.Int(rcRetries, worker.MaxRCRetries, "how often an RDMA connection sends a packet again before the peer counts as dead, as UCX_RC_RETRY_COUNT (1 to 7)")
}

// ucx reads the settings of UCX. Defaults are left to UCX, because its environment variables apply
// instead of them.
func (a *app) ucx() worker.UCX {
	s := a.settings
	u := worker.UCX{Library: s.String("ucx-library"), TLS: s.String("ucx-tls"), NetDevices: s.String("ucx-net-devices")}
	if s.origin[rcTimeout] != "default" {
		u.RCTimeout = s.Duration(rcTimeout)
	}
	if s.origin[rcRetries] != "default" {
		u.RCRetries = s.Int(rcRetries)
	}
	return u
}
