package ucx

import (
	"slices"
	"strings"
)

// transportCUDA reads from one GPU to another.
const transportCUDA = "cuda_ipc"

// reading are the transports that can read remote memory by themselves, the best first. A transport
// matches if its name is equal or begins with one of these and "_". Other transports only carry
// messages.
var reading = []string{transportCUDA, "xpmem", "knem", "cma", "rc", "dc", "self"}

// copying are the transports whose reads are copies by our own thread, so that everything else
// waits for them.
var copying = []string{"xpmem", "knem", "cma", "self"}

// describe fills in the transport that reads, or says that reads are emulated.
func (x *Connection) describe(v version, transports []string) {
	x.Transports = transports
	defer func() {
		if v.major == 1 && v.minor < 19 && !x.Emulated {
			x.Emulated = true
			x.Why = "UCX " + v.String() + " emulates reads wherever it must notice dead peers; 1.19 does not"
		}
	}()
	var names []string
	for _, t := range transports {
		name, _, _ := strings.Cut(t, "/")
		names = append(names, name)
	}
	for _, want := range reading {
		for _, name := range names {
			if name == want || strings.HasPrefix(name, want+"_") {
				x.Transport = name
				return
			}
		}
	}
	x.Emulated = true
	switch {
	case len(names) == 0:
		x.Transport, x.Emulated = "unknown", false
		x.Why = "this libucp cannot tell which transports it uses"
	case slices.Contains(names, "tcp"):
		x.Transport = "tcp"
		x.Why = "tcp cannot read remote memory; on one host cma would, which needs the same user, or ptrace rights, and cma among UCX_TLS"
	default:
		x.Transport = names[0]
		x.Why = names[0] + " cannot read memory that it did not allocate; cma would, which needs the same user, or ptrace rights, and cma among UCX_TLS"
	}
}
