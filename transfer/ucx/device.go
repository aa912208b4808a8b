package ucx

import (
	"errors"
	"fmt"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/cuda"
)

// deviceTLS are the transports for a slab on a GPU. cuda_ipc reads the bytes; the others carry
// messages.
const (
	deviceTLS    = "self,posix,sysv,cma,cuda_copy,cuda_ipc"
	deviceTLSTCP = deviceTLS + ",tcp"
)

// deviceKeepalive is the interval at which UCX checks that peers on this host are alive; each check
// reads /proc.
const deviceKeepalive = 100 * time.Millisecond

// onDevice sets the defaults for a slab on a GPU.
func (c Config) onDevice() Config {
	if c.TLS == "" && os.Getenv("UCX_TLS") == "" {
		if c.TLS = deviceTLSTCP; c.NoTCP {
			c.TLS = deviceTLS
		}
	}
	if c.Keepalive == 0 {
		c.Keepalive = deviceKeepalive
	}
	c.InlineBytes = -1
	return c
}

// scratch is memory of the same kind as the slab, outside of it.
type scratch struct {
	host   []byte
	device *cuda.Scratch
}

func newScratch(slab *cuda.Slab) (s scratch, err error) {
	if slab != nil {
		s.device, err = slab.Device().NewScratch(proofs*proofBytes, 0)
		return s, err
	}
	s.host, err = unix.Mmap(-1, 0, proofs*proofBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	return s, err
}

func (s scratch) base() uint64 {
	if s.device != nil {
		return s.device.Pointer(0, 0)
	}
	return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(s.host))))
}

// read returns the n bytes from offset at.
func (s scratch) read(at, n uint64) ([]byte, error) {
	if s.device == nil {
		return s.host[at : at+n], nil
	}
	p := make([]byte, n)
	return p, s.device.ReadInto(at, p)
}

// tidy gives the pages of a slot back to the system.
func (s scratch) tidy(at uint64) {
	if s.host != nil {
		_ = unix.Madvise(s.host[at:at+proofBytes], unix.MADV_DONTNEED) // it only frees memory
	}
}

func (s scratch) close() error {
	if s.device != nil {
		return s.device.Close()
	}
	return unix.Munmap(s.host)
}

// mapOurselves maps a peer's slab in addition to UCX's own mapping, which UCX never closes. With
// our mapping, both can be closed when the peer is dead (see cuda.Peer.Retire). Only then does the
// peer's GPU get its memory back.
func (c *Context) mapOurselves(n *conn, source *workerv1.Endpoint) error {
	if c.slab == nil {
		return nil
	}
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

// spinAhead is how long before the predicted end of a read the progress thread begins to poll.
const spinAhead = 60 * time.Microsecond

// pace predicts when reads from a peer end; owned by the progress thread.
type pace struct {
	// rate is in bytes per second.
	rate float64
	// free is the predicted time at which the link becomes free.
	free time.Time
	// last is when the last read ended.
	last time.Time
}

const (
	// assumedRate is the initial rate, that of NVLink on an H200. readBase is the fixed time of a
	// read.
	assumedRate = 380e9
	readBase    = 9 * time.Microsecond
)

// posted returns the predicted end of a read that is posted now.
func (p *pace) posted(r *read, now time.Time) time.Time {
	if p.rate == 0 {
		p.rate = assumedRate
	}
	if p.free.Before(now) {
		p.free = now.Add(readBase)
	}
	r.began = p.free
	p.free = p.free.Add(time.Duration(float64(r.length) / p.rate * float64(time.Second)))
	return p.free
}

// landed corrects the rate after large reads.
func (p *pace) landed(r *read, now time.Time) {
	if began := r.began; r.length >= chunkBytes/4 && !began.IsZero() {
		if began.Before(p.last) {
			began = p.last
		}
		if took := now.Sub(began); took > 0 {
			p.rate += 0.1 * (float64(r.length)/took.Seconds() - p.rate)
		}
	}
	p.last = now
}
