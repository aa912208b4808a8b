package ucx

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// transportCUDA reads from one GPU to another.
const transportCUDA = "cuda_ipc"

// reading are the transports that can read remote memory by themselves, the best first. Other
// transports only carry messages.
var reading = []string{transportCUDA, "xpmem", "knem", "cma", "rc", "dc", "self"}

// fabric are the transports of network devices, which can read the memory of a GPU if they were
// given it.
var fabric = []string{"rc", "dc"}

// copying are the transports whose reads are copies by our own thread, so that everything else
// waits for them.
var copying = []string{"xpmem", "knem", "cma", "self"}

// Connection describes a connection to a peer that was proved.
type Connection struct {
	// Transport is the transport that reads, such as "cma" or "tcp".
	Transport string
	// Transports are all transports that the connection uses, with their devices.
	Transports []string
	// BytesPerSecond is the rate of a read of 4 MiB, as measured at connect; of several such reads
	// at once if they are staged.
	BytesPerSecond float64
	// Latency is the shortest time of a read of a few bytes. Neither figure includes the copy from
	// the reader's ring to its slab.
	Latency time.Duration
	// Staged says at which ends the bytes go through a ring of host memory: "", "source", "reader"
	// or "both".
	Staged string
	// Emulated says that no transport of the pair can read remote memory by itself, so the peer is
	// asked to send the bytes in messages.
	Emulated bool
	// Why is the reason why the connection is not a better one; empty if it is the best for host
	// memory.
	Why string
}

// String describes the connection in one line.
func (x Connection) String() string {
	s := x.Transport
	switch x.Staged {
	case "":
	case "both":
		s += ", staged at both ends"
	default:
		s += ", staged at the " + x.Staged
	}
	s += fmt.Sprintf(", %.2f GB/s, %v", x.BytesPerSecond/1e9, x.Latency)
	if x.Emulated {
		s += ", emulated"
	}
	if x.Why != "" {
		s += ": " + x.Why
	}
	return s
}

// matches says whether a transport is one of the given ones: its name is equal, or begins with the
// name and "_".
func matches(transport string, names []string) bool {
	for _, name := range names {
		if transport == name || strings.HasPrefix(transport, name+"_") {
			return true
		}
	}
	return false
}

// describe finds the transport that reads, or says that reads are emulated. gpus says that both
// slabs lie on GPUs and are read directly; only then cuda_ipc reads.
func describe(v version, transports []string, gpus bool) (x Connection) {
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
			if matches(name, []string{want}) && (gpus || want != transportCUDA) {
				x.Transport = name
				return x
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
	return x
}
