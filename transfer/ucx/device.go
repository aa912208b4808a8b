package ucx

import (
	"errors"
	"fmt"
	"os"
	"time"

	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/cuda"
)

// deviceTLS are the transports for a slab on a GPU. cuda_ipc reads the memory of GPUs; the others
// carry messages, and read host memory. rdmaTLS are those of hosts with RDMA devices, which read
// both.
const (
	deviceTLS = "self,posix,sysv,cma,cuda_copy,cuda_ipc"
	rdmaTLS   = ",rc,dc,ud"
	tcpTLS    = ",tcp"
)

// deviceKeepalive is the interval at which UCX checks that peers on this host are alive; each check
// reads /proc.
const deviceKeepalive = 100 * time.Millisecond

// onDevice sets the defaults for a slab on a GPU.
func (c Config) onDevice() Config {
	if c.TLS == "" && os.Getenv("UCX_TLS") == "" {
		c.TLS = deviceTLS
		if hasRDMADevice("/sys") {
			c.TLS += rdmaTLS
		}
		if !c.NoTCP {
			c.TLS += tcpTLS
		}
	}
	c.keepalive = deviceKeepalive
	c.InlineBytes = -1
	return c
}

// mapOurselves maps a peer's slab in addition to UCX's own mapping, which UCX never closes. With
// our mapping, both can be closed when the peer is dead (see cuda.Peer.Retire). Only then does the
// peer's GPU get its memory back.
func (c *Context) mapOurselves(n *conn, source *workerv1.Endpoint) error {
	e := cuda.Export{SizeBytes: source.GetMemoryBytes(), Identity: memory.Identity{Nonce: source.GetNonce()}}
	copy(e.Handle[:], source.GetDevice().GetIpcHandle())
	copy(e.Device[:], source.GetDevice().GetDeviceUuid())
	copy(e.Identity.WorkerUUID[:], source.GetWorkerUuid())
	copy(e.Identity.Incarnation[:], source.GetIncarnation())
	peer, err := c.slab.Device().OpenPeer(e)
	if errors.Is(err, cuda.ErrIdentity) {
		return fmt.Errorf("%w: %w", ErrProof, err)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNoConnection, err)
	}
	unmap := func(dead bool) {
		if !dead {
			err = peer.Close()
		} else {
			peer.Retire(func(e error) { err = e })
		}
		if err != nil {
			c.config.Log.Error("the memory of a peer could not be unmapped, and stays allocated", "peer", n.peer, "error", err)
		}
	}
	set, closed := ask(c, func(l *loop) bool {
		if l.conns[n.token] != n {
			return false // it has failed in the meantime
		}
		n.unmap, n.watch = unmap, sender(source.GetAddress()).watch()
		return true
	})
	if closed != nil || !set {
		unmap(false)
		return errors.Join(closed, ErrNoConnection)
	}
	return nil
}
