//go:build cgo && linux

package ucx

import (
	"fmt"
	"maps"
	"slices"

	"github.com/millrace/millrace/transfer"
)

// Allocations is the number of the shim's allocations that were not freed.
func Allocations() int64 { return allocations() }

// Connections returns the number of open connections.
func (p *Path) Connections() (open int) {
	p.mu.Lock()
	addresses := slices.Collect(maps.Keys(p.conns))
	p.mu.Unlock()
	for _, address := range addresses {
		if _, ok := p.Connection(address); ok {
			open++
		}
	}
	return open
}

// Connections returns the number of connections, of both directions.
func (c *Context) Connections() int {
	n, _ := ask(c, func(l *loop) int { return len(l.conns) })
	return n
}

// LoseReaders makes our endpoints to readers fail without a failure of the readers' endpoints. UCX
// does the same sometimes, when a connection in the other direction is closed. end closes our
// endpoints; call it before the context is closed.
func (c *Context) LoseReaders() (end func()) {
	lost, _ := ask(c, func(l *loop) (lost []*conn) {
		for _, n := range l.conns {
			if n.serves() && n.failure == nil {
				n.failure = fmt.Errorf("%w: lost by a test", transfer.ErrPeerLost)
				l.forgetLeases(n)
				lost = append(lost, n)
			}
		}
		return lost
	})
	return func() {
		c.do(func(l *loop) {
			for _, n := range lost {
				n.failure = nil
				l.fail(n, fmt.Errorf("%w: lost by a test", transfer.ErrPeerLost))
			}
		})
	}
}

// SendByRendezvous sends a message by rendezvous to each peer that we read from; our own code never
// does so. It returns the number of these peers.
func (c *Context) SendByRendezvous(bytes int) int {
	n, _ := ask(c, func(l *loop) (sent int) {
		for _, n := range l.conns {
			if n.serves() {
				continue
			}
			m := composed(l.engine, preamble{token: n.theirs, request: 1, kind: messageLease, count: 1}, bytes, func(b []byte) []byte { return b[:bytes] })
			l.orders = append(l.orders, op{
				kind: opSend, endpoint: n.endpoint, header: m.header, local: m.handle, length: uint64(m.bytes), remote: m.handle, rendezvous: 1,
			})
			sent++
		}
		return sent
	})
	return n
}

// Open returns the configuration for a GPU whose memory the transports read as they read host
// memory. Only the fake GPU's memory is such memory.
func (c Config) Open() Config {
	c.asHost = true
	return c
}

//nolint:gochecknoinits // cma stands for a network device: it reads the memory of an open GPU
func init() { fabric = append(fabric, "cma") }

// Kinds of messages, for SendToSources and AnswerStagings.
const (
	MessageRead    = int(messageRead)
	MessageStage   = int(messageStage)
	MessageStaged  = int(messageStaged)
	MessageUnstage = int(messageUnstage)
)

// FreeSlots returns the numbers of free slots of the two rings, and of all slots of each.
func (c *Context) FreeSlots() (out, in, all int) {
	if c.out == nil {
		return 0, 0, 0
	}
	_, _ = ask(c, func(l *loop) struct{} {
		out, in, all = len(l.stager.free), len(l.inFree), len(c.out.slots)
		return struct{}{}
	})
	return out, in, all
}

// SendToSources sends a message some times to each peer that we read from.
func (c *Context) SendToSources(kind, count int, payload []byte, times int) {
	c.do(func(l *loop) {
		for _, n := range l.conns {
			for i := range times {
				if !n.serves() {
					l.send(n, preamble{token: n.theirs, request: uint64(1)<<32 + uint64(i), kind: messageKind(kind), count: uint32(count)}, len(payload), func(b []byte) []byte { return append(b, payload...) })
				}
			}
		}
	})
}

// AnswerStagings sends a message to each peer that waits for a copy to our ring, in place of the
// answer.
func (c *Context) AnswerStagings(kind, count int, payload []byte) {
	c.do(func(l *loop) {
		for _, x := range l.stager.lent {
			if n := x.conn; n.failure == nil && x.since.IsZero() {
				l.send(n, preamble{token: n.theirs, request: x.request, kind: messageKind(kind), count: uint32(count)}, len(payload), func(b []byte) []byte { return append(b, payload...) })
			}
		}
	})
}

// Readers returns the number of connections on which we serve, without those that have failed.
func (c *Context) Readers() int {
	n, _ := ask(c, func(l *loop) (readers int) {
		for _, n := range l.conns {
			if n.serves() && n.failure == nil {
				readers++
			}
		}
		return readers
	})
	return n
}
